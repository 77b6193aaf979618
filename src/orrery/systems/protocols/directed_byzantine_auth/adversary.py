"""How nodes lie in this protocol; `Byzantine(strategies=("withhold",))` in a world attaches one.

Each strategy bends what an otherwise honest node sends or hears. A liar signs whatever it likes
with its own keys and can get no others; whatever else it says is a copy, or a forgery.
"""

from __future__ import annotations

from typing import Any

from orrery.parts.byzantine import REMEMBERED, Liar, Message, Strategy
from orrery.systems.protocols.directed_byzantine_auth.approximate import (
    Report,
    Said,
    report_text,
    value_text,
)
from orrery.systems.protocols.directed_byzantine_auth.exact import Statement, text_of
from orrery.systems.protocols.problems.signing import keys_like

FAR = 1000.0  # how far a lie in the approximate protocol lies outside


class Liars(Strategy):
    """What the strategies share: own statements told otherwise, under a good signature."""

    def other(self, each: Statement) -> Statement:
        """One's own statement with the other bit."""
        keys = keys_like(self.liar.me, each.tokens[0], text_of(*each[:4]))
        token = keys.sign(text_of(each.kind, each.turn, each.origin, 1 - each.value))
        me = self.liar.me
        return each._replace(value=1 - each.value, signers=(me,), tokens=(token,))

    def moved(self, number: int, said: Said, by: float) -> Said:
        """One's own value moved away."""
        keys = keys_like(self.liar.me, said.token, value_text(number, *said[:2]))
        token = keys.sign(value_text(number, said.origin, said.value + by))
        return said._replace(value=said.value + by, token=token)

    def shortened(self, number: int, report: Report, keep: int) -> Report:
        """One's own report with its first entries only."""
        heard = report.heard[:keep]
        keys = keys_like(
            self.liar.me, report.token, report_text(number, report.origin, report.heard)
        )
        token = keys.sign(report_text(number, report.origin, heard))
        return report._replace(heard=heard, token=token)

    def on_send(self, message: Message) -> list[Message]:
        number, what = message.args[0], message.args[1] if len(message.args) > 1 else None
        if message.is_reply or what is None:
            return [message]
        if message.method == "hear":
            return self.bend(message, number, what)
        mine = isinstance(what, Said | Report) and what.origin == self.liar.me
        return self.bend_flood(message, number, what, mine)

    def bend(self, message: Message, number: int, news: tuple[Statement, ...]) -> list[Message]:
        """What becomes of the news of a round."""
        return [message]

    def bend_flood(self, message: Message, number: int, what: Any, mine: bool) -> list[Message]:
        """What becomes of a value or a report of the asynchronous protocol."""
        return [message]

    def mine(self, each: Statement) -> bool:
        return each.origin == self.liar.me


class Equivocate(Liars):
    """Signs the other bit, or another value, for the second half of the peers."""

    def bend(self, message: Message, number: int, news: tuple[Statement, ...]) -> list[Message]:
        if not self.liar.in_second_half(message.dst):
            return [message]
        told = tuple(self.other(each) if self.mine(each) else each for each in news)
        return [message._replace(args=(number, told))]

    def bend_flood(self, message: Message, number: int, what: Any, mine: bool) -> list[Message]:
        far = FAR if self.liar.in_second_half(message.dst) else -FAR
        if mine and isinstance(what, Said):
            what = self.moved(number, what, far)
        elif mine and far > 0:
            what = self.shortened(number, what, 1)
        return [message._replace(args=(number, what))]


class Replay(Liars):
    """Tells old statements again, as if they were of this round, with chance `p`."""

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.old: list[Any] = []

    def again(self, what: Any) -> Any | None:
        told = None
        if self.old and self.liar.rng.random() < self.liar.p:
            told = self.liar.rng.choice(self.old)
        self.old.append(what)
        if len(self.old) > 4 * REMEMBERED:
            del self.old[0]
        return told

    def bend(self, message: Message, number: int, news: tuple[Statement, ...]) -> list[Message]:
        told = [each for each in map(self.again, news) if each is not None]
        later = message._replace(args=(number + 1 + self.liar.rng.below(8), news))
        return [message._replace(args=(number, (*news, *told))), later]

    def bend_flood(self, message: Message, number: int, what: Any, mine: bool) -> list[Message]:
        told = self.again((message.method, what))
        if told is None or told[0] != message.method:
            return [message]
        return [message, message._replace(args=(number, told[1]))]


class Withhold(Liars):
    """Passes each origin's statements on to some neighbours and never to the others."""

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self.passes: dict[tuple[int, int], bool] = {}

    def lets(self, dst: int, origin: int) -> bool:
        if (dst, origin) not in self.passes:
            self.passes[dst, origin] = bool(self.liar.rng.below(2))
        return self.passes[dst, origin]

    def bend(self, message: Message, number: int, news: tuple[Statement, ...]) -> list[Message]:
        left = tuple(each for each in news if self.lets(message.dst, each.origin))
        return [message._replace(args=(number, left))] if left else []

    def bend_flood(self, message: Message, number: int, what: Any, mine: bool) -> list[Message]:
        return [message] if self.lets(message.dst, what.origin) else []


class Randomised(Liars):
    """For each statement and neighbour it draws a lie: pass, drop, deny, hold back, strip, forge.

    What is held back is told in a later round, to this neighbour alone: the lie against which the
    growing number of signatures stands.
    """

    def bend(self, message: Message, number: int, news: tuple[Statement, ...]) -> list[Message]:
        now: list[Statement] = []
        out: list[Message] = []
        for each in news:
            match self.liar.rng.below(6):
                case 0:
                    continue
                case 1 if self.mine(each):
                    now.append(self.other(each))
                case 2:
                    late = number + 1 + self.liar.rng.below(32)
                    told = self.other(each) if self.mine(each) else each
                    out.append(message._replace(args=(late, (told,))))
                case 3:
                    now.append(each._replace(signers=each.signers[:1], tokens=each.tokens[:1]))
                case 4:
                    now.append(each._replace(value=1 - each.value))
                case _:
                    now.append(each)
        if now:
            out.append(message._replace(args=(number, tuple(now))))
        return out

    def bend_flood(self, message: Message, number: int, what: Any, mine: bool) -> list[Message]:
        rng = self.liar.rng
        if rng.below(4) == 0:
            return []
        if mine and isinstance(what, Said):
            by = rng.choice((-FAR, -0.5, 0.0, 0.5, FAR))
            told = self.moved(number, what, by) if by else what
            return [message._replace(args=(number, told))]
        if mine:
            short = self.shortened(number, what, rng.below(len(what.heard) + 1))
            return [message._replace(args=(number, short))]
        return [message, message] if rng.below(4) == 0 else [message]


class Forge(Liars):
    """Tells the contrary of what others signed, under the signatures of what they did sign."""

    def bend(self, message: Message, number: int, news: tuple[Statement, ...]) -> list[Message]:
        told = tuple(
            each if self.mine(each) else each._replace(value=1 - each.value) for each in news
        )
        return [message._replace(args=(number, told))]

    def bend_flood(self, message: Message, number: int, what: Any, mine: bool) -> list[Message]:
        if mine:
            return [message]
        if isinstance(what, Said):
            return [message._replace(args=(number, what._replace(value=what.value + FAR)))]
        heard = tuple(each._replace(value=each.value - FAR) for each in what.heard)
        return [message._replace(args=(number, what._replace(heard=heard)))]


class Deaf(Strategy):
    """Hears only the peers in `to`; with "selective" before it, it also speaks to them alone."""

    def on_receive(self, message: Message) -> list[Message]:
        return [message] if message.src in self.liar.to else []


class Pretend(Strategy):
    """Follows the protocol to the letter, with an input of its own choice."""


STRATEGIES: dict[str, type[Strategy]] = {
    "equivocate": Equivocate,
    "replay": Replay,
    "withhold": Withhold,
    "randomised": Randomised,
    "forge": Forge,
    "deaf": Deaf,
    "pretend": Pretend,
}
