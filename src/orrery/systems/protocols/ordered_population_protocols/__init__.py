"""Population protocols over ordered agents: compilers, a DA test, and agents that run."""

from __future__ import annotations

from typing import Literal

from orrery.base.errors import UsageError
from orrery.systems.protocols.ordered_population_protocols.heads import (
    Machine,
    compile_head,
    head_protocol,
)
from orrery.systems.protocols.ordered_population_protocols.rankers import compile_rankers
from orrery.systems.protocols.ordered_population_protocols.regular import Dfa, dfa_of, in_da
from orrery.systems.protocols.problems.population_agent import MeetingAgent
from orrery.systems.protocols.problems.population_tables import Protocol

__all__ = [
    "Dfa", "Machine", "OrderedPopulation", "compile_head", "compile_rankers", "dfa_of",
    "head_protocol", "in_da",
]  # fmt: skip


class OrderedPopulation(MeetingAgent):
    """Agents in a line that decide a language by looking at each other, and at who stands first.

    "Population Protocols over Ordered Agents" (2026): finite-state agents meet at random; a rule
    may ask which of the two stands first (`order="<"`) or lets only neighbours meet (`"+1"`). With
    `<` and immediate observation (only one of the two changes) such a swarm decides exactly the
    unambiguous star-free languages; with +1 it decides all of NSPACE(n).

    How it works: with `<`, a formula over rankers ("the last b before the first a") is compiled to
    candidates, marks and blame flags (see `rankers`); with `+1`, a Turing-machine head walks along
    the line (see `heads`). A node is one agent, its id is its place; a meeting is made atomic by
    freezing the agent that asks (see `population_agent`). For one word `decide` proves the answer
    over all fair runs; `simulate` runs a million agents; `in_da` tells from a regular expression
    whether `<` can suffice.

    Knobs: `order`; `repair`, whether blame flags and conflict detection are compiled in (without
    them rankers of two steps go wrong); `period_s`, the mean time between the meetings that an
    agent begins; `patience_s`, after which a lost question is repeated.

    **Differs from the paper**: it proves which languages can be decided; the compilers are ours,
    written from its abstract and the theory of rankers (Weis and Immerman 2009), and not its
    own constructions. The source of the IO-PP[<] compiler is a ranker formula, not an expression.
    The head is PP[+1], two-way and deterministic, so it shows DSPACE(n) languages; the reduction to
    IO-PP[+1] is not built. Agents pick partners at random, which is fair with probability one.

    O(rankers + atoms) for a meeting; a proof takes O(configurations x pairs).

    >>> from orrery.systems.protocols.problems.population_graph import decide
    >>> protocol = OrderedPopulation().protocol("!(Xb < Ya)", "ab")      # a*b*
    >>> protocol.kind, decide(protocol, "aabb").answer, decide(protocol, "aba").answer
    ('IO-PP[<]', 'yes', 'no')
    """

    order: Literal["<", "+1"] = "<"
    repair: bool = True

    def protocol(self, language: str, alphabet: str) -> Protocol:
        if self.order == "<":
            return compile_rankers(language, alphabet, self.repair)
        if not self.repair:
            raise UsageError('repair=False belongs to order="<"; a head has nothing to mend')
        return compile_head(language, alphabet)
