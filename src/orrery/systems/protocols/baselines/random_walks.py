"""Random simulation: walks through an automaton, in the hope of stepping on a violation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orrery.base.rand import Stream
from orrery.parts import Count, Whole
from orrery.systems.protocols.baselines.explicit_state import asked_of, starts, valuations
from orrery.systems.protocols.problems.property_verification import Verifier
from orrery.systems.protocols.taco import library
from orrery.systems.protocols.taco.answer import UNKNOWN, UNSAFE, UNSATISFIABLE, Answer
from orrery.systems.protocols.taco.automaton import Automaton, Property
from orrery.systems.protocols.taco.trace import Counterexample, breaks, fire, may_fire


class RandomWalks(Verifier):
    """Takes random steps from random starts; finds violations by luck, and proves nothing.

    The random walk of C. H. West (1986, "Protocol validation by random state exploration"): a
    valuation of the parameters, a start, and then, as long as there is one, a rule that can fire,
    each as likely as the others.

    Knobs: `walks`; `most_n`, the largest value of any parameter; `most_steps` of one walk; `seed`.
    Differs from the paper: the protocol is a threshold automaton, not communicating machines.

    >>> from orrery.systems.protocols.taco import library
    >>> RandomWalks(walks=50)(library.automaton("strb"), "may_accept").verdict
    'unsafe'
    """

    walks: Count = 200
    most_n: Count = 5
    most_steps: Count = 200
    seed: Whole = 0

    def __call__(self, automaton: Automaton, name: str = "") -> Answer:
        asked = asked_of(automaton, name)
        rng = Stream(self.seed, "random_walks", "steps")
        choices = [
            (parameters, start)
            for parameters in valuations(automaton, self.most_n)
            for start in starts(automaton, parameters)
        ]
        if not choices:
            said = f"no parameters up to {self.most_n} meet the assumptions of {automaton.name}"
            return Answer(UNSATISFIABLE, reason=said)
        for walk in range(1, self.walks + 1):
            parameters, start = rng.choice(choices)
            found = self._walk(automaton, asked, parameters, start, rng)
            if found is not None:
                return Answer(UNSAFE, found, f"{walk} walks", (("walks", UNSAFE),), walk)
        said = f"no violation in {self.walks} walks"
        return Answer(UNKNOWN, None, said, (("walks", UNKNOWN),), self.walks)

    def _walk(
        self, automaton: Automaton, asked: Property, parameters: dict[str, int],
        start: dict[str, int], rng: Any,
    ) -> Counterexample | None:  # fmt: skip
        first = here = {**parameters, **start}
        schedule: list[str] = []
        while not breaks(asked, first, here):
            able = [rule for rule in automaton.live_rules if may_fire(rule, here)]
            if not able or len(schedule) == self.most_steps:
                return None
            rule = rng.choice(able)
            here = fire(rule, here)
            schedule.append(rule.name)
        return Counterexample(tuple(parameters.items()), tuple(start.items()), tuple(schedule))

    def reference(self, automaton: Automaton, name: str = "") -> Answer:
        """Every walk there is: what the walks find must be there, here on questions of one side."""
        from orrery.systems.protocols.baselines.explicit_state import ExplicitState

        return ExplicitState(most_n=self.most_n)(automaton, name)

    def samples(self, rng: Any) -> Iterable[tuple[Any, ...]]:
        # Either no walk breaks it, or nearly every walk does: luck plays no part.
        yield library.automaton("strb"), "unforgeability"
        yield library.automaton("frb"), "may_deliver"
        yield library.automaton("strb"), "no such property"
