"""The port of `dnn_edge_serving`: what a policy sees, what it may answer, and how it is judged."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from orrery.base.errors import PartError
from orrery.parts import Count, Policy
from orrery.systems.serve.problems.dnn_edge_serving.profile import Profile

Late = Literal["serve", "last", "drop"]


class Turn(NamedTuple):
    """One batch: the earliest deadlines of a model's queue, past the first `skip` of them.

    `batch` is a size of the profile. Where fewer requests wait, the batch is padded and takes its
    full time, as an engine compiled for that size would.
    """

    model: int
    exit: int
    batch: int
    skip: int = 0


class Drop(NamedTuple):
    """Give up the `number` earliest deadlines of a model's queue."""

    model: int
    number: int


class Done(NamedTuple):
    """A batch that has ended: what it was, and the seconds for which it held the executor."""

    model: int
    exit: int
    batch: int
    seconds: float
    alone: bool = True  # whether it had the executor to itself


class View(msgspec.Struct, frozen=True):
    """What a policy may know when the executor has room for a batch.

    `deadlines_s[m]` are the absolute deadlines that wait for model m, ascending; `oldest_s[m]` is
    the arrival of the one that waits longest. `slo_s[m]` is a model's usual time from arrival to
    deadline, `arrived[m]` counts arrivals so far, `running` names the models of the batches that
    run now, `finished` holds what ended since the last view.
    """

    now_s: float
    deadlines_s: tuple[tuple[float, ...], ...]
    oldest_s: tuple[float, ...]
    slo_s: tuple[float, ...]
    arrived: tuple[int, ...]
    profile: Profile
    running: tuple[int, ...] = ()
    finished: tuple[Done, ...] = ()

    def __len__(self) -> int:
        """How many requests wait."""
        return sum(map(len, self.deadlines_s))

    def waiting(self) -> list[int]:
        """The models that have requests waiting, in order."""
        return [m for m, queue in enumerate(self.deadlines_s) if queue]


class EdgePolicy(Policy):
    """Which model runs next on the executor, to which exit, with how many requests.

    `late` says what becomes of a request that even its fastest run would bring home too late:
    "serve" treats it like the others, "last" serves it when nothing better waits, "drop" gives it
    up.
    """

    late: Late = "serve"
    # How many batches may run at once; more than one shares the executor in space.
    streams: ClassVar[int] = 1

    def next_turn(self, view: View) -> Turn | Drop | None:
        """The next batch, or requests to give up, or None to wait for the next event."""
        raise PartError(f"{type(self).__name__} has no next_turn(view); write it")


def why_illegal(answer: Any, view: View) -> str:
    """What is wrong with an answer to a view; empty when it may be given.

    >>> from orrery.systems.serve.problems.dnn_edge_serving.profile import plain_profile
    >>> view = View(0.0, ((1.0,),), (0.0,), (1.0,), (1,), plain_profile(1))
    >>> why_illegal(Turn(0, 0, 1), view), why_illegal(Turn(3, 0, 1), view)
    ('', 'there is no model 3')
    """
    if answer is None:
        return ""
    if not isinstance(answer, Turn | Drop):
        return f"{answer!r:.60} is no Turn, Drop or None"
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in answer):
        return f"{answer!r:.60} has a field that is no whole number"
    if not 0 <= answer.model < len(view.deadlines_s):
        return f"there is no model {answer.model}"
    waits = len(view.deadlines_s[answer.model])
    if isinstance(answer, Drop):
        return "" if 1 <= answer.number <= waits else f"drops {answer.number} of {waits} requests"
    profile = view.profile
    if not 0 <= answer.exit < profile.exits(answer.model):
        return f"model {answer.model} has no exit {answer.exit}"
    if answer.batch not in profile.batches:
        return f"{answer.batch} is no batch size of the profile"
    if not 0 <= answer.skip < max(waits, 1) or not waits:
        return f"skips {answer.skip} of {waits} requests"
    return ""


# -- what several policies share


def hopeless(view: View, model: int, exit: int) -> int:
    """How many waiting requests would be late even if they ran now, alone, to this exit."""
    ends_s = view.now_s + view.profile.seconds[model][exit][0]
    return bisect_left(view.deadlines_s[model], ends_s)


def fitting_batch(view: View, model: int, exit: int, skip: int = 0, most: int = 1 << 30) -> int:
    """Adaptive batching: the batch that answers the most per second and meets its deadlines.

    On most tables that is the largest that the earliest deadline in it allows. Where even a batch
    of one is late, deadlines no longer count: throughput is what is left to win.
    """
    queue = view.deadlines_s[model]
    waits, left_s = len(queue) - skip, queue[skip] - view.now_s
    row = view.profile.seconds[model][exit]
    chosen, best = view.profile.batches[0], 0.0
    for size, seconds in zip(view.profile.batches, row, strict=True):
        if size > most:
            break
        rate = min(size, waits) / seconds
        if rate > best and (seconds <= left_s or left_s < row[0]):
            chosen, best = size, rate
    return chosen


class FixedDepth(EdgePolicy):
    """Always the same exit, with adaptive batching; a subclass says which model comes first.

    `most_batch` caps the batch size.
    """

    most_batch: Count = 1 << 20
    # Which exit: -1 is full depth.
    depth: ClassVar[int] = -1

    def pick(self, view: View, models: list[int], skips: list[int]) -> int:
        """Which of the models with work comes next; `skips[m]` requests of it are passed over."""
        raise PartError(f"{type(self).__name__} has no pick(view, models, skips); write it")

    def exit_of(self, view: View, model: int) -> int:
        """The exit that this policy always takes."""
        return self.depth % view.profile.exits(model)

    def next_turn(self, view: View) -> Turn | Drop | None:
        """The next batch by this policy's order."""
        models = [m for m in view.waiting() if self.may_start(view, m)]
        if not models:
            return None
        skips = [0] * len(view.deadlines_s)
        if self.late != "serve":
            late = {m: hopeless(view, m, self.exit_of(view, m)) for m in models}
            if self.late == "drop":
                for m, count in late.items():
                    if count:
                        return Drop(m, count)
            hopeful = [m for m in models if late[m] < len(view.deadlines_s[m])]
            if hopeful:
                models = hopeful
                for m in models:
                    skips[m] = late[m]
        model = self.pick(view, models, skips)
        exit = self.exit_of(view, model)
        batch = fitting_batch(view, model, exit, skips[model], self.most_batch)
        return Turn(model, exit, batch, skips[model])

    def may_start(self, view: View, model: int) -> bool:
        """Whether a batch of this model may start beside those that run."""
        return True
