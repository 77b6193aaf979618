"""`DirectedAuth`: consensus over one-way links with signed messages, exact or approximate."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from orrery.parts import Positive, rpc
from orrery.parts.byzantine import Strategy
from orrery.systems.protocols.directed_byzantine_auth import adversary, attack, conditions
from orrery.systems.protocols.directed_byzantine_auth.approximate import (
    ApproximateMachine,
    Flood,
    Report,
    Said,
)
from orrery.systems.protocols.directed_byzantine_auth.exact import ExactMachine, Plan, Statement
from orrery.systems.protocols.problems.digraphs import Digraph
from orrery.systems.protocols.problems.directed_node import DirectedNode
from orrery.systems.protocols.problems.signing import Scheme, keys_for

MOST_HEARD = 8  # messages of one sender in one round
MOST_EARLY = 4096  # messages that came before the client's word


class DirectedAuth(DirectedNode):
    """Consensus over one-way links with signatures: exact in rounds, approximate without a clock.

    "Byzantine Consensus in Directed Graphs with Message Authentication" (2026).

    Synchronous: for each set F of f suspects, in a fixed order, all nodes flood their bit under
    signatures for f + 2 super-rounds; a member of F or of the source S_F that F leaves believes a
    bit in super-round r only with r - 1 signatures of such members, and adds its own. Then S_F
    holds one and the same collection if F are the liars. Its verdict is 1 if more than f origins
    signed 1 and at most f signed 0; it floods that, and all others take a verdict that f + 1 of
    S_F have signed. The turn of the true F makes all equal; no turn breaks unanimity. This works
    exactly where each F leaves one source, of f + 1 nodes at least (n >= 2 f + 1 if complete).

    Asynchronous: in a round, flood the signed value; with values of all who reach this node around
    some F, flood a signed report of them; with reports of as many, drop who signed two values, trim
    the rest and move to the middle. The range halves in each round. This works exactly where what
    any two nodes can wait for shares f + 1 nodes (n >= 3 f + 1 if complete).

    C(n, f) (f + 3) n rounds, with up to 2 n statements over each link a turn; and 2 n floods over
    each link in an asynchronous round.

    Knobs: `timing`, "synchronous" or "asynchronous"; `round_s`, the seconds of a round, above the
    longest delay plus what clocks differ; `tight`: super-rounds as long as the graph needs in place
    of n rounds; `signature` ("token", "ed25519", or "auto": tokens in virtual time and Ed25519 on
    real processes); `checked`, off: signatures are not looked at; those of `DirectedNode`.

    **Differs from the paper**: only its abstract was at hand, which says that tight conditions
    exist and not what they are; conditions and protocols here are our own, with our proof, and
    exact consensus is on one bit. Signatures lie under the single statement and not under a chain.
    Keys come from a trusted dealer who derives them from a word. Links lose nothing.

    >>> from orrery.systems.protocols.problems.digraphs import complete
    >>> DirectedAuth().suits(complete(3), 1), DirectedAuth(timing="asynchronous").suits(
    ...     complete(3), 1)
    (True, False)
    """

    timing: Literal["synchronous", "asynchronous"] = "synchronous"
    round_s: Positive = 0.05
    tight: bool = False
    signature: Scheme = "auto"
    checked: bool = True

    tolerates: ClassVar[tuple[str, ...]] = ("duplicate", "reorder", "crash", "byzantine")
    byzantine: ClassVar[dict[str, type[Strategy]]] = adversary.STRATEGIES

    @property
    def goal(self) -> str:  # type: ignore[override]
        """What the timing allows: exact or approximate consensus."""
        return "exact" if self.timing == "synchronous" else "approximate"

    @property
    def halves(self) -> bool:  # type: ignore[override]
        """The asynchronous protocol promises halving."""
        return self.goal == "approximate"

    @property
    def binary(self) -> bool:  # type: ignore[override]
        """The synchronous protocol takes bits."""
        return self.goal == "exact"

    def suits(self, graph: Digraph, f: int) -> bool:
        if self.goal == "exact":
            return conditions.synchronous(graph, f)
        return conditions.asynchronous(graph, f)

    def refuted(self, graph: Digraph, f: int) -> bool:
        """Play the worlds of the necessity proof on machines; whether one of them goes wrong."""
        if self.goal == "exact":
            return bool(attack.broken_exact(graph, f, tight=self.tight))
        return bool(attack.broken_approximate(graph, f, rounds=self.rounds))

    def start(self) -> None:
        super().start()
        self.round = -1
        self.last = 0  # how many rounds there are
        self.inbox: dict[int, dict[int, list[tuple[Statement, ...]]]] = {}
        self.early: list[tuple[int, Any, int]] = []
        self.machine: ExactMachine | ApproximateMachine | None = None

    async def main(self) -> None:
        await self.begun()
        if self.goal == "exact":
            await self.agree()
        else:
            await self.until(self.begin_s)
            self.draw_together()

    # -- synchronous

    async def agree(self) -> None:
        """The synchronous protocol, on the node's clock."""
        plan = Plan.of(self.graph, self.tolerated, self.tight)
        self.last = len(plan.rounds)
        machine = ExactMachine(self.id, plan, int(self.value), self._keys())
        for number in range(self.last):
            await self.until(self.begin_s + number * self.round_s)
            self._close(machine, number - 1)
            self.round = number
            if news := machine.news(number):
                self.shout(DirectedAuth.hear, number, news)
        await self.until(self.begin_s + self.last * self.round_s)
        self._close(machine, self.last - 1)
        self.round = self.last
        self._count(machine.counted)
        self.decide(float(machine.value), self.last, machine.said, machine.taken)

    def _close(self, machine: ExactMachine, number: int) -> None:
        """End a round: hear what came in it, in order of the senders, and close it."""
        if number < 0:
            return
        heard = self.inbox.pop(number, {})
        for sender in sorted(heard):
            for news in heard[sender]:
                machine.take(number, news)
        machine.close(number)

    @rpc
    def hear(self, number: int, news: tuple[Statement, ...], sender: int) -> None:
        """What a neighbour tells in a round; before its end it waits, after it is too late."""
        if not self.linked(sender):
            return
        n = self.graph.n
        if number < self.round:
            self.refuse("too late")
        elif number >= self.last or len(news) > 4 * n or any(len(s.signers) > n for s in news):
            self.refuse("oversized")
        else:
            heard = self.inbox.setdefault(number, {}).setdefault(sender, [])
            # One is all that a fault-free node sends; a network or a liar may add to that.
            if len(heard) < MOST_HEARD and news not in heard:
                heard.append(news)

    # -- asynchronous

    def draw_together(self) -> None:
        """Begin the asynchronous protocol; everything else happens when something is heard."""
        f, keys = self.tolerated, self._keys()
        made = ApproximateMachine(self.id, self.graph, f, self.value, self.rounds, keys)
        self.machine = made
        self._flood(made, made.begin(), 0)
        waiting, self.early = self.early, []
        for number, what, sender in waiting:
            self._take(number, what, sender)

    @rpc
    def hear_value(self, number: int, said: Said, sender: int) -> None:
        """A signed value of a round, from its origin or a relay."""
        self._take(number, said, sender)

    @rpc
    def hear_report(self, number: int, report: Report, sender: int) -> None:
        """A signed report of a round, from its origin or a relay."""
        self._take(number, report, sender)

    def _take(self, number: int, what: Said | Report, sender: int) -> None:
        machine = self.machine
        if machine is None:  # the client has not told this node yet what it told others
            if len(self.early) < MOST_EARLY:
                self.early.append((number, what, sender))
            return
        assert isinstance(machine, ApproximateMachine)
        if not self.linked(sender):
            return
        before = machine.number
        if isinstance(what, Said):
            floods = machine.take_said(number, what)
        else:
            floods = machine.take_report(number, what)
        self._flood(machine, floods, before)

    def _flood(self, machine: ApproximateMachine, floods: list[Flood], before: int) -> None:
        for number, said, report in floods:
            if said is not None:
                self.shout(DirectedAuth.hear_value, number, said)
            else:
                self.shout(DirectedAuth.hear_report, number, report)
        for number in range(before, machine.number):
            self.step(number, machine.values[number + 1])
        if machine.decided and before < machine.number:
            self._count(machine.counted)
            self.decide(machine.value, machine.rounds, machine.said, machine.taken)

    # -- both

    def _keys(self) -> Any:
        keys = keys_for(self, self.signature)
        self.emit(scheme=type(keys).__name__)
        if not self.checked:
            keys.good = lambda *_: True  # type: ignore[method-assign]
        return keys

    def _count(self, counted: dict[str, int]) -> None:
        for why, times in counted.items():
            self.refused[why] = self.refused.get(why, 0) + times
