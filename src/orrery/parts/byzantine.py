"""Byzantine strategies: how a node lies, without a line changed in its part.

A strategy sees each message that its node sends or receives, and each value that it computes, and
says what becomes of it. Several act in the order in which they are declared, each on what the last
let out. They know nothing of the engine: it asks them, and carries out what they answer. What a
node says to itself, to the driver or hears from it is left alone.

A new strategy is a subclass of `Strategy` with a `name` of its own. A part that knows better how to
lie in its protocol gives `byzantine = {"selfish": MyMiner}` as a class attribute, which replaces
the strategy of that name for its own nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from orrery.base.codec import encode
from orrery.base.errors import CodecError, FaultError, PartError, did_you_mean
from orrery.base.rand import Stream
from orrery.parts.mutation import changed

REMEMBERED = 64

STRATEGIES: dict[str, type[Strategy]] = {}


class Message(NamedTuple):
    """One message as a strategy sees it; for an answer, `args` is the value that goes back."""

    src: int
    dst: int
    method: str
    args: Any
    is_reply: bool = False
    delay_s: float = 0.0


class Liar(NamedTuple):
    """What a strategy may know: who it is, its stream, the true time, and its figures."""

    me: int
    size: int
    rng: Stream
    now: Callable[[], float]
    p: float = 1.0
    delay_s: float = 0.1
    to: tuple[int, ...] = ()

    def in_second_half(self, peer: int) -> bool:
        """Whether a peer belongs to the half that hears the other story."""
        rank = peer if peer < self.me else peer - 1
        return 2 * rank >= self.size - 1


class Strategy:
    """Does nothing; subclasses override what they bend."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = cls.__dict__.get("name", "")
        if not name:
            return  # a shared base, or a variant that a part names itself
        known = STRATEGIES.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise PartError(
                f"strategy {name!r} of {cls.__qualname__} is taken by {known.__qualname__}; "
                "give it another name"
            )
        STRATEGIES[name] = cls

    def __init__(self, liar: Liar) -> None:
        self.liar = liar

    def on_send(self, message: Message) -> list[Message]:
        """What goes out instead of this message."""
        return [message]

    def on_receive(self, message: Message) -> list[Message]:
        """What comes in instead of this message."""
        return [message]

    def on_compute(self, value: Any) -> Any:
        """What a computation gives instead of this value."""
        return value


def build(
    names: Iterable[str], liar: Liar, own: Mapping[str, type[Any]] | None = None
) -> list[Strategy]:
    """The strategies of one node, in order; a part's `own` come before the common ones."""
    known: dict[str, type[Any]] = {**STRATEGIES, **(own or {})}
    made: list[Strategy] = []
    for name in names:
        if name not in known:
            fix = did_you_mean(str(name), known)
            raise FaultError("Byzantine.strategies", f"unknown strategy {name!r:.60}", fix)
        made.append(known[name](liar))
    return made


def pass_through(
    strategies: Iterable[Strategy], message: Message, receiving: bool = False
) -> list[Message]:
    """What the strategies make of one message, each acting on what the last let out."""
    messages = [message]
    for strategy in strategies:
        act = strategy.on_receive if receiving else strategy.on_send
        messages = [out for each in messages for out in act(each)]
    return messages


class Silence(Strategy):
    """Sends nothing at all, not even answers."""

    name = "silence"

    def on_send(self, message: Message) -> list[Message]:
        return []


class Equivocate(Strategy):
    """Tells one half of the peers the truth and the other half one consistent lie.

    The lie depends only on what is said, so all of the second half hears the same one.
    """

    name = "equivocate"

    def on_send(self, message: Message) -> list[Message]:
        if not self.liar.in_second_half(message.dst):
            return [message]
        said = (message.method, message.is_reply, message.args)
        try:
            text = encode(said)
        except CodecError:
            text = repr(said).encode()
        # `liar.rng` is not drawn from here, as the lie must not depend on how often it was told.
        head = self.liar.rng.key.to_bytes(8, "little")
        key = hashlib.blake2b(head + text, digest_size=8).digest()
        lie = changed(message.args, Stream.keyed(int.from_bytes(key, "little")))
        return [message._replace(args=lie)]


class Mutate(Strategy):
    """Changes one field of a message, or the result of a computation, with chance `p`."""

    name = "mutate"

    def on_send(self, message: Message) -> list[Message]:
        if self.liar.rng.random() >= self.liar.p:
            return [message]
        return [message._replace(args=changed(message.args, self.liar.rng))]

    def on_compute(self, value: Any) -> Any:
        return changed(value, self.liar.rng) if self.liar.rng.random() < self.liar.p else value


class Delay(Strategy):
    """Holds each message back by `delay_s`."""

    name = "delay"

    def on_send(self, message: Message) -> list[Message]:
        return [message._replace(delay_s=message.delay_s + self.liar.delay_s)]


class Selective(Strategy):
    """Speaks only to the peers in `to`."""

    name = "selective"

    def on_send(self, message: Message) -> list[Message]:
        return [message] if message.dst in self.liar.to else []


class Replay(Strategy):
    """After a message, sends an old one of the same method again with chance `p`."""

    name = "replay"

    def __init__(self, liar: Liar) -> None:
        super().__init__(liar)
        self._old: dict[str, list[Any]] = {}

    def on_send(self, message: Message) -> list[Message]:
        if message.is_reply:
            return [message]
        old = self._old.setdefault(message.method, [])
        out = [message]
        if old and self.liar.rng.random() < self.liar.p:
            out.append(message._replace(args=self.liar.rng.choice(old)))
        old.append(message.args)
        if len(old) > REMEMBERED:
            del old[0]
        return out


class Twins(Strategy):
    """Two copies of the node run behind one identity, each seen by one half of the peers.

    After Bano et al., "Twins: BFT systems made robust" (2021). The engine makes the second copy;
    messages themselves pass unchanged.
    """

    name = "twins"


class Selfish(Strategy):
    """Withholds what it sends and lets it out in bursts, every `delay_s` seconds.

    Withholding in general; a part that knows what its rivals have found can subclass this and
    release at the best moment, as selfish mining does (Eyal and Sirer, 2014).
    """

    name = "selfish"

    def on_send(self, message: Message) -> list[Message]:
        return [message._replace(delay_s=message.delay_s + self.wait_s(message))]

    def wait_s(self, message: Message) -> float:
        """How long to keep a message; here: until the next burst."""
        period_s = self.liar.delay_s
        if period_s <= 0:
            return 0.0
        return period_s - self.liar.now() % period_s
