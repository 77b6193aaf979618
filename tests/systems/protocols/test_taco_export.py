"""From an annotated Orrery protocol to an automaton, and its verdict."""

from __future__ import annotations

import pytest

pytest.importorskip("z3", reason="pip install 'orrery[verify]'")

from orrery import Node, World, rpc, run
from orrery.base.errors import PartError
from orrery.systems.protocols.taco import Taco, automaton_of, library, transition
from orrery.systems.protocols.taco.export import Model


class EchoBroadcast(Node):
    """Srikanth and Toueg's broadcast as a protocol: echo after t + 1 echoes, accept after n - t."""

    t: int = 1
    sources: tuple[int, ...] = ()

    model = Model(
        parameters="n, t, f", assumptions="n > 3 * t; t >= f;", begins="V0, V1",
        specifications="unforgeability: (V1 == 0) -> [](AC == 0); may_accept: [](AC == 0);",
    )  # fmt: skip

    def start(self):
        self.heard: set[int] = set()
        self.sent = self.accepted = False

    @rpc
    def hear(self, who: int) -> None:
        self.heard.add(who)
        if len(self.heard) >= self.t + 1:
            self.echo()
        if len(self.heard) >= len(self.peers) + 1 - self.t:
            self.accept()

    @transition("V1 -> SE", sends="x")
    @transition("V0 -> SE", when="x >= t + 1 - f", sends="x")
    def echo(self) -> None:
        if not self.sent:
            self.sent = True
            for peer in [self.id, *self.peers]:
                self.tell(peer, EchoBroadcast.hear, self.id)

    @transition("SE -> AC", when="x >= n - t - f")
    def accept(self) -> None:
        if not self.accepted:
            self.accepted = True
            self.emit(accepted=self.id)

    async def main(self):
        if self.id in self.sources:
            self.echo()


class EagerBroadcast(EchoBroadcast):
    """The same with a wrong guard: t echoes, which may all be lies, are enough."""

    @transition("V0 -> SE", when="x >= t - f", sends="x")
    def echo(self) -> None:
        super().echo()


def test_the_protocol_runs_and_its_automaton_is_proved():
    made = run(EchoBroadcast(sources=(0, 1)), world=World.lan(4), seed=1)
    assert len([r for r in made.records if "accepted" in r.values]) == 4
    automaton = automaton_of(EchoBroadcast)
    assert Taco(method="all")(automaton, "unforgeability").verdict == "safe"
    assert Taco()(automaton, "may_accept").verdict == "unsafe"
    # Apart from the idle loop it is the automaton of the library.
    strb = library.automaton("strb")
    mine = {(r.source, r.target, r.guard, r.changes) for r in automaton.live_rules}
    assert mine == {(r.source, r.target, r.guard, r.changes) for r in strb.live_rules}


def test_a_wrong_guard_in_the_protocol_is_found():
    answer = Taco()(automaton_of(EagerBroadcast()), "unforgeability")
    assert answer.verdict == "unsafe"


def test_what_cannot_be_exported_says_what_is_missing():
    class Bare(Node):
        """No model."""

    class Still(Node):
        """No transitions."""

        model = Model(begins="A")

    with pytest.raises(PartError, match="Bare has no model"):
        automaton_of(Bare)
    with pytest.raises(PartError, match="Still has no transitions"):
        automaton_of(Still)
    with pytest.raises(PartError, match="FROM -> TO"):
        transition("A to B")
