"""The texts that `orrery new` writes: small, working, and meant to be changed."""

from __future__ import annotations

GOSSIP = '''"""$name: $job"""

from __future__ import annotations

from typing import ClassVar

from orrery.parts import Count, Positive, rpc
from $problem_module import Broadcaster


class $class_name(Broadcaster):
    """Tells what is new at once, and everything again from time to time.

    Knobs: `fanout`, how many peers are told; `period_s`, how often everything is sent again.

    >>> $class_name(fanout=2)
    $class_name(fanout=2)
    """

    fanout: Count = 3
    period_s: Positive = 0.05

    tolerates: ClassVar[tuple[str, ...]] = (
        "drop", "duplicate", "reorder", "crash", "restart", "pause", "partition",
    )  # fmt: skip

    def start(self) -> None:
        self.seen: set[int] = set()

    @rpc
    async def broadcast(self, value: int) -> None:
        await self.learn(frozenset({value}))

    @rpc
    async def learn(self, values: frozenset[int]) -> None:
        fresh = values - self.seen
        self.seen |= fresh
        for value in sorted(fresh):
            self.emit(delivered=value)
        if fresh:
            self._tell_some(fresh)

    async def main(self) -> None:
        while True:
            await self.sleep(self.period_s)
            # What was lost the first time is sent again here.
            self._tell_some(frozenset(self.seen))

    def _tell_some(self, values: frozenset[int]) -> None:
        for peer in self.rng.sample(self.peers, min(self.fanout, len(self.peers))):
            self.tell(peer, $class_name.learn, values)
'''

CHILD = '''"""$name: $job"""

from __future__ import annotations

from $parent_module import $parent


class $class_name($parent):
    """Does what $parent does; override what yours does otherwise.

    Its methods and knobs are in $parent_module.

    >>> $class_name()
    $class_name()
    """
'''

STEM = '''id = "$id"
name = "$name"
room = "$room"
origin = "classic" # not one of the catalogue's published systems
how = "both"
size = "S"
shape = "$shape"
problem = "$problem"
class = "$class_name"
job = """$job"""
mechanisms = ["""Say how it works, one sentence for each idea."""]
rivals = []

# A claim is data; `orrery check $id` puts it to the test. For example:
# [[claims]]
# metric = "$metric"
# says = "no worse than $rival"
# form = "direction"
# better = "$better"
# against = "$rival"
'''

TEST = '''"""$name: right on its problem, the same for the same seed, all laws obeyed."""

from __future__ import annotations

import pytest

from orrery import run
from orrery.lab import laws
from orrery.lab.questions import problem_class
from $module import $class_name

PROBLEM = problem_class("$problem")()


def run_it(seed):
    return run($class_name(), problem=PROBLEM, seed=seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nothing_goes_wrong(seed):
    assert run_it(seed).violations == []


def test_equal_seeds_give_equal_runs():
    assert run_it(7).digest == run_it(7).digest


def test_it_obeys_every_law_of_its_shape():
    # Among them: it survives what `tolerates` names, and bad knobs are refused by name.
    assert laws.check($class_name(), PROBLEM) == []
'''

PROBLEM = '''\
"""The problem `$problem`: every question gets the right answer in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from orrery.base.errors import DeadlineExceeded, PartError
from orrery.parts import Count, Driver, Metric, Node, Outcome, Positive, Problem, Violation, rpc
from orrery.world import World


class ${class_name}Node(Node):
    """The port of `$class_name`: what a part must write."""

    @rpc
    async def double(self, number: int) -> int:
        """Twice the number."""
        raise PartError(f"{type(self).__name__} has no double(number); write it")


class $class_name(Problem):
    """Ask random nodes for the double of `questions` numbers, each within `patience_s`.

    >>> $class_name(questions=5).questions
    5
    """

    questions: Count = 20
    patience_s: Positive = 0.5

    port: ClassVar[type] = ${class_name}Node
    metrics: ClassVar[Mapping[str, Metric]] = {
        "answered": Metric("", "higher", "share of questions that were answered in time"),
        "mean_s": Metric("s", "lower", "mean time to an answer"),
    }

    def world(self) -> World:
        return World.lan(5)

    async def drive(self, driver: Driver) -> list[tuple[int, int | None, float]]:
        """The workload: (question, answer or None, time taken) of each."""
        told: list[tuple[int, int | None, float]] = []
        for number in range(self.questions):
            node, began_s = driver.rng.choice(driver.nodes), driver.now
            answer: int | None = None
            try:
                async with driver.deadline(self.patience_s):
                    answer = await driver.ask(node, ${class_name}Node.double, number)
            except DeadlineExceeded:
                pass
            told.append((number, answer, driver.now - began_s))
        return told

    def check(self, outcome: Outcome) -> list[Violation]:
        """A wrong answer is a violation; none at all only counts in the metrics."""
        return [
            Violation(kind="wrong", message=f"asked for twice {number}, was told {answer}")
            for number, answer, _ in outcome.driven or []
            if answer is not None and answer != 2 * number
        ]

    def measure(self, outcome: Outcome) -> dict[str, float]:
        told: list[Any] = outcome.driven or []
        times = [taken_s for _, answer, taken_s in told if answer is not None]
        share = len(times) / len(told) if told else 0.0
        return {"answered": share, "mean_s": sum(times) / len(times) if times else 0.0}
'''

PROBLEM_TEST = '''\
"""The problem `$problem`: a right part passes, a wrong one is found."""

from __future__ import annotations

from orrery import World, run
from orrery.lab import laws
from orrery.parts import rpc
from orrery.world import Crash
from $module import $class_name, ${class_name}Node


class Right(${class_name}Node):
    """Answers as it should."""

    @rpc
    async def double(self, number: int) -> int:
        return 2 * number


class Wrong(${class_name}Node):
    """Is wrong about one number."""

    @rpc
    async def double(self, number: int) -> int:
        return 2 * number + (number == 7)


def test_a_right_part_passes():
    made = run(Right(), problem=$class_name())
    assert made.violations == []
    assert made.metrics["answered"] == 1.0


def test_a_wrong_answer_is_found():
    made = run(Wrong(), problem=$class_name())
    assert [violation.kind for violation in made.violations] == ["wrong"]


def test_it_obeys_the_laws_of_problems():
    assert laws.check_problem($class_name()) == []


def test_silence_is_counted():
    world = World.lan(2).with_faults(Crash(node=(0, 1), at_s=0.0))
    made = run(Right(), problem=$class_name(), world=world)
    assert made.metrics["answered"] == 0.0
'''

WORLD_NOTE = """# The world "$name": five servers on one switch; change what differs in yours.
# Every figure that you measured or read deserves its source beside it.
# Units come last in the names: _s seconds, _Bps bytes a second, _B bytes, _W watts.
# orrery worlds $path   checks it;   orrery run push-gossip --world $path   uses it.
"""
