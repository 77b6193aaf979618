"""The kinds of faults: one schedule language for every engine.

Times are absolute seconds of the run: a fault begins at `at_s` and ends at `until_s`; without
`until_s` it lasts for ever. What it hits is named in one of three ways:

    node = 3, node = (3, 4), node = "random"    one node, several, or one picked by the seed
    link = (0, 1)                               the way from node 0 to node 1, and back
    domain = "frankfurt"                        all nodes of a group (a role) or of a site

A kind that is given no target hits every node. `generators.py` has the kinds that draw faults from
the seed; `schedule.py` turns a world's faults into the list that an engine follows.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from orrery.base.errors import FaultError, SpecError
from orrery.world.spec import Fraction, Index, NonNegative, Positive, Spec, field_names

Target = Index | tuple[Index, ...] | Literal["random"] | None
Link = tuple[Index, Index] | None
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Factor = Annotated[float, Meta(ge=1, le=1e9)]
STRATEGIES = ("silence", "equivocate", "mutate", "delay", "selective", "replay", "twins", "selfish")
# A part may bring strategies of its own, so any word is data; the engine refuses unknown ones.
Strategy = Annotated[str, Meta(pattern="^[a-z][a-z_0-9]*$")]


class Fault(
    Spec, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag=True
):
    """What every fault has: a beginning and, perhaps, an end."""

    error: ClassVar[type[SpecError]] = FaultError
    label: ClassVar[str] = "fault"
    one_of: ClassVar[tuple[str, ...]] = ()
    """Of these fields at least one must be given."""

    at_s: Seconds = 0.0
    until_s: Seconds | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.label = cls.__name__

    def _check(self) -> None:
        if self.until_s is not None and self.until_s <= self.at_s:
            fix = f"end after at_s = {self.at_s}, or leave it out"
            raise self._refuse("until_s", f"{self.until_s} is not after the beginning", fix)
        names = field_names(type(self))
        if self.one_of and all(getattr(self, name) is None for name in self.one_of):
            raise self._refuse(self.one_of[0], "no target", f"give {' or '.join(self.one_of)}")
        aims = [name for name in ("node", "link", "domain") if name in names]
        given = [name for name in aims if getattr(self, name) is not None]
        if len(given) > 1:
            raise self._refuse(given[1], f"comes with {given[0]}", f"give one of {', '.join(aims)}")
        if getattr(self, "node", None) == ():
            raise self._refuse("node", "() is empty", "name a node, or leave it out")
        link = getattr(self, "link", None)
        if link is not None and link[0] == link[1]:
            raise self._refuse("link", f"{link} joins a node to itself", "name two nodes")

    @property
    def kind(self) -> str:
        """The name of the kind, as in files: "Crash"."""
        return type(self).__name__

    def during(self, time_s: float) -> bool:
        """Whether the fault is on at that time."""
        return self.at_s <= time_s and (self.until_s is None or time_s < self.until_s)


class _OnNodes(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of machines."""

    one_of: ClassVar[tuple[str, ...]] = ("node", "domain")
    node: Target = None
    domain: str | None = None


class _OnTraffic(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of messages: on one link, on all links of some nodes, or everywhere."""

    node: Target = None
    link: Link = None
    domain: str | None = None


# -- machines that stop or lag


class Crash(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node stops and forgets all but its disk; it starts again at `until_s`.

    Virtual: its tasks end, messages to it are lost, unsynced writes are lost, `start()` runs again.
    Real: SIGKILL, then a new process.
    """


class Pause(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node stands still and remembers all.

    Virtual: its events wait until the end of the pause. Real: SIGSTOP and SIGCONT.
    """


class Slow(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gray failure: computing on the node takes `factor` times as long.

    Virtual: `compute` and handlers stretch. Real: SIGSTOP and SIGCONT by turns, so that the process
    runs one part in `factor`.
    """

    factor: Factor


class Hang(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node takes messages in but its code does not run; connections stay up.

    Virtual: messages queue up and are handled afterwards. Real: the event loop of the process is
    held while its sockets stay open.
    """


class Straggler(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each computation is slower by `factor` with chance `p`, drawn anew each time.

    Virtual: the modelled time is stretched. Real: the worker sleeps for the difference.
    """

    factor: Factor
    p: Fraction = 1.0


class DeviceLoss(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accelerator number `device` of the node is gone until `until_s`.

    Virtual: work on it fails with a named error. Real: the worker hides the device from the part.
    """

    device: Index = 0


class PowerCap(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node may draw no more than `watts`; it computes slower to stay below.

    Virtual: rooflines shrink. Real: a slowdown by the same factor, as no engine may set a cap.
    """

    one_of: ClassVar[tuple[str, ...]] = ()
    watts: Positive


class SpotReclaim(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider takes the node at `at_s` and says so `notice_s` before.

    Virtual and real: the part's `on_notice` is called if it has one, then the node crashes; it
    comes back at `until_s`, if that is given.
    """

    notice_s: NonNegative = 120.0


class DomainLoss(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole group or site crashes at once, as when a rack or a region loses power.

    Virtual and real: a `Crash` of each of its nodes at the same time.
    """

    domain: str


# -- the network


class Partition(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages pass only inside a group of `groups`; nodes in no group form one more group.

    With `node` or `domain` instead, those nodes are cut off from the rest. `one_way` lets messages
    pass from a later group to an earlier one (from the rest to the cut-off nodes: yes; from them
    to the rest: no).
    Virtual: messages are lost and flows stall. Real: frames are dropped at the sender's socket.
    """

    one_of: ClassVar[tuple[str, ...]] = ("groups", "node", "domain")
    groups: tuple[tuple[Index, ...], ...] | None = None
    node: Target = None
    domain: str | None = None
    one_way: bool = False

    def _check(self) -> None:
        Fault._check(self)
        if self.groups is None:
            return
        if self.node is not None or self.domain is not None:
            raise self._refuse("groups", "comes with node or domain", "give one of them")
        members = [node for group in self.groups for node in group]
        if not members or any(not group for group in self.groups):
            raise self._refuse("groups", f"{self.groups} has an empty group", "name its nodes")
        if len(set(members)) != len(members):
            twice = next(node for node in members if members.count(node) > 1)
            raise self._refuse("groups", f"node {twice} is in two groups", "name it once")


class Clog(_OnTraffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages are late by `delay_s`, and only a `fraction` of the bandwidth is left.

    Virtual: added to the latency; capacities shrink. Real: the sender's shim waits.
    """

    delay_s: NonNegative = 0.0
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def _check(self) -> None:
        Fault._check(self)
        if self.delay_s == 0 and self.fraction == 1:
            raise self._refuse("delay_s", "0 changes nothing", "give delay_s > 0 or fraction < 1")


class Drop(_OnTraffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each message is lost with chance `p`.

    Virtual: drawn from the link's stream. Real: the sender's shim throws the frame away.
    """

    p: Fraction


class Duplicate(_OnTraffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each message comes twice with chance `p`.

    Virtual: a second delivery with its own latency. Real: the frame is sent twice.
    """

    p: Fraction


class Reorder(_OnTraffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each message is held back with chance `p`, for a uniform time up to `spread_s`.

    Virtual: later messages may overtake it, also on a fifo network. Real: the shim holds the frame.
    """

    p: Fraction
    spread_s: Positive


class Corrupt(_OnTraffic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each message has one bit flipped on the wire with chance `p`.

    Virtual: the checksum of the frame fails, so the message is lost and counted as corrupt. Real:
    the bit is flipped below the checksum, and the receiver drops the frame.
    """

    p: Fraction


class NicFlap(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The NIC goes down for `down_fraction` of every `period_s`.

    Virtual: messages and flows of the node stop in those times. Real: the shim drops frames.
    """

    period_s: Positive
    down_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.5


# -- clocks


class ClockSkew(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`clock()` is off by `skew_s` (it may be negative) while the fault lasts.

    Virtual and real: added to what `clock()` answers; `now` stays true.
    """

    skew_s: Annotated[float, Meta(ge=-1e6, le=1e6)]


class ClockDrift(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`clock()` runs fast (or slow, if negative) by the fraction `drift` while the fault lasts.

    Virtual and real: what it gained or lost stays afterwards.
    """

    drift: Annotated[float, Meta(gt=-1, le=1)]


class ClockJump(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`clock()` jumps by `jump_s` once at `at_s`, forwards or backwards, and stays so.

    Virtual and real: added to what `clock()` answers from then on.
    """

    jump_s: Annotated[float, Meta(ge=-1e6, le=1e6)]


# -- storage and memory


class DiskFull(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every write and append fails with a named error.

    Virtual and real: raised by the disk of the node before any byte is written.
    """


class TornWrite(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the node crashes in this time, an unsynced write survives in part with chance `p`.

    Virtual: a prefix of its pages stays. Real: the file is cut in the same way before the restart.
    """

    p: Fraction


class MisdirectedWrite(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A write lands on another page of the same file with chance `p`.

    Virtual and real: the disk of the node shifts the offset by whole pages.
    """

    p: Fraction


class BitFlip(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bit flips: in each value read with chance `p`, or once at `at_s` when `p` is left out.

    `where` says of what: "disk" (data at rest), "memory" (an array handed to `compute`) or
    "message" (after the checksum, so that the part itself must notice).
    Virtual and real: done on the real bytes, at a place drawn from the seed.
    """

    p: Fraction | None = None
    where: Literal["disk", "memory", "message"] = "disk"


# -- money


class PriceJump(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machine and energy prices are multiplied by `factor`.

    Virtual and real: money is integrated with the new price while the fault lasts.
    """

    factor: Annotated[float, Meta(gt=0, le=1e6)]


# -- malice


class Byzantine(_OnNodes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node lies. The strategies are applied in the order given, each to what the last let out.

    silence      sends nothing
    equivocate   tells different peers different values
    mutate       changes a field with chance `p`
    delay        holds each message back by `delay_s`
    selective    answers only the peers in `to`
    replay       sends old messages again with chance `p`
    twins        two copies of it run under one id
    selfish      keeps what it finds to itself until publishing gains it more
    Virtual and real: they wrap the node's send, receive and compute; the part's code is untouched.
    """

    strategies: Annotated[tuple[Strategy, ...], Meta(min_length=1)] = ("equivocate",)
    p: Fraction = 1.0
    delay_s: NonNegative = 0.1
    to: tuple[Index, ...] = ()

    def _prepare(self) -> None:
        if isinstance(self.strategies, str):
            msgspec.structs.force_setattr(self, "strategies", (self.strategies,))

    def _check(self) -> None:
        Fault._check(self)
        if "selective" in self.strategies and not self.to:
            raise self._refuse("to", "is empty for selective", "name the peers that are answered")
        if self.to and "selective" not in self.strategies:
            raise self._refuse("to", "means nothing here", 'add "selective", or leave it out')


KINDS: tuple[type[Fault], ...] = (
    Crash, Pause, Slow, Hang, Straggler, DeviceLoss, PowerCap, SpotReclaim, DomainLoss,
    Partition, Clog, Drop, Duplicate, Reorder, Corrupt, NicFlap,
    ClockSkew, ClockDrift, ClockJump, DiskFull, TornWrite, MisdirectedWrite, BitFlip,
    PriceJump, Byzantine,
)  # fmt: skip
