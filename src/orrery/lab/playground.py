"""The playground: a run that one stops, breaks by hand, rewinds, forks and keeps as a test.

    play = Playground.open("raft", seed=7)
    play.move(0.5)                      # the view stands at 0.5 s
    play.crash(1)                       # an edit at that time; the run is made again with it
    play.at(1.0)["nodes"][1]["state"]   # "down"
    other = play.fork()                 # another future from here
    print(play.save_test())             # the source of a test that replays exactly this

A playground is a part, a problem, a world and a seed, and a tree of branches. A branch is a list of
edits, each a fault of the world's own schedule language at a virtual time. Nothing is copied or
undone: every moment is reached by executing the run from the beginning with the branch's edits, and
since runs are deterministic, the same moment always looks the same. Executions are kept by (edits,
time) up to a number of rows.
"""

from __future__ import annotations

import bisect
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orrery.base.errors import OrreryError, UsageError, did_you_mean
from orrery.base.units import show
from orrery.lab import edits as editing
from orrery.lab import moments, saved_test
from orrery.lab.edits import Edit
from orrery.lab.opening import listed, with_knobs, world_by_name
from orrery.lab.playback import Limits, Played, check_playable, play
from orrery.world import World

MOST_BRANCHES = 64
MOST_EDITS = 200
MOST_ROWS = 4_000_000
MOST_KEPT = 40
SEED_MOST = (1 << 63) - 1
_TITLE = re.compile(r"[\w .,:–-]{0,80}", re.ASCII)


class Branch(msgspec.Struct, kw_only=True):
    """One line of what may happen: its edits, and where it left its parent."""

    id: str
    title: str = ""
    parent: str = ""
    from_s: float = 0.0
    edits: list[Edit] = []
    warning: str = ""


class Playground:
    """A run to play with; see the module for how it works."""

    def __init__(
        self,
        part: Any,
        *,
        problem: Any = None,
        world: World | None = None,
        seed: int = 0,
        until_s: float | None = None,
        name: str = "",
        setting: saved_test.Setting | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.part, self.problem, self.seed = part, problem, _seed(seed)
        if world is None:
            world = problem.world() if problem is not None else World.lan(5)
        self.limits = limits or Limits()
        check_playable(part, world, self.limits)
        if problem is not None:
            problem.accept(part)
        self.world = world
        self.until_s = until_s
        self.name = name or type(part).__name__
        self.title = type(part).__name__
        self.setting = setting
        self.branches: dict[str, Branch] = {"main": Branch(id="main", title="as it was")}
        self.branch, self.now_s = "main", 0.0
        self._kept: OrderedDict[tuple[Any, ...], Played] = OrderedDict()

    @classmethod
    def open(
        cls,
        id: str,
        *,
        problem: str = "",
        world: str = "",
        seed: int = 0,
        knobs: Mapping[str, Any] | None = None,
        problem_knobs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> Playground:
        """A playground of a listed system or classic, on its own problem unless one is named.

        Everything is named by id; no module, file or path is taken, so that a request can never
        bring code or read a file.
        """
        from orrery.lab import discover

        entry = discover.find(listed(id, "system"))
        if not entry.built:
            raise UsageError(f"{entry.id} is planned: it has no code yet; `orrery list` shows more")
        part = with_knobs(discover.load(entry.id), knobs or {})
        asked = listed(problem or entry.problem, "problem")
        given = dict(problem_knobs or {})
        question = with_knobs(discover.problem_class(asked), given)
        if "virtual" not in question.engines:
            raise UsageError(f"{asked} does not run in virtual time, so it has no moments to go to")
        place = world_by_name(world) if world else None
        setting = saved_test.Setting(
            system=entry.id, problem=asked, world=world, knobs=part.changed_knobs(),
            problem_knobs=question.changed_knobs(),
        )  # fmt: skip
        made = cls(part, problem=question, world=place, seed=seed, name=entry.id, setting=setting,
                   limits=limits)  # fmt: skip
        made.title = entry.name
        return made

    # -- the view

    def of(self, branch: str | None = None) -> Branch:
        """A branch by id; the current one where none is named."""
        id = self.branch if branch is None else branch
        if not isinstance(id, str) or id not in self.branches:
            raise UsageError(f"there is no branch {str(id)[:40]!r}; "
                             f"{did_you_mean(str(id)[:40], self.branches)}")  # fmt: skip
        return self.branches[id]

    def switch(self, branch: str) -> None:
        """Look at another branch."""
        self.branch = self.of(branch).id

    def move(self, at_s: float) -> dict[str, Any]:
        """Move the view to a time and give the scene there."""
        self.now_s = _time(at_s)
        return self.at(self.now_s)

    def rewind(self, at_s: float = 0.0) -> dict[str, Any]:
        """Go back in time. The edits stay: what comes later comes again."""
        return self.move(at_s)

    def step(self, node: int | None = None) -> dict[str, Any]:
        """Go on to the next thing that happens, to one node if so asked."""
        found = self.next_event(self.now_s, node)
        if found is None:
            raise UsageError("nothing happens after this; the run is over")
        return self.move(found["time_s"])

    # -- executing

    def whole(self, branch: str | None = None) -> Played:
        """The branch's run to its end."""
        return self._play(self.of(branch), None)

    def at(self, at_s: float, branch: str | None = None) -> dict[str, Any]:
        """The scene at a time: nodes, links, messages on their way, reports, what is wrong."""
        one, when = self.of(branch), _time(at_s)
        whole = self._play(one, None)
        when = min(when, whole.run.seconds)
        # The end of a run is what the whole run shows; stopping it there would cut its last words.
        cut = whole if when >= whole.run.seconds else self._play(one, when)
        return moments.scene(self, one, whole, cut, when)

    def next_event(
        self, after_s: float, node: int | None = None, branch: str | None = None, back: bool = False
    ) -> dict[str, Any] | None:
        """The next (or the last) thing that happens, to any node or to one."""
        if node is not None and (isinstance(node, bool) or not isinstance(node, int)
                                 or not 0 <= node <= self.world.size):  # fmt: skip
            raise UsageError(f"node={str(node)[:20]}: this world has nodes 0 to "
                             f"{self.world.size - 1}")  # fmt: skip
        found = moments.happenings(self, self.of(branch), node)
        times = [each[0] for each in found]
        at_ns = round(_time(after_s) * 1e9)
        if back:
            place = bisect.bisect_left(times, at_ns) - 1
        else:
            place = bisect.bisect_right(times, at_ns)
        if not 0 <= place < len(found):
            return None
        return {"time_s": found[place][0] / 1e9, "node": found[place][1], "what": found[place][2]}

    def story(self, node: int, at_s: float, branch: str | None = None) -> dict[str, Any]:
        """What happened to one node until a time, the latest first, and what it holds."""
        return moments.story(self, self.of(branch), node, _time(at_s))

    def world_of(self, branch: str | None = None) -> World:
        """The world of a branch: the first one with the branch's faults added."""
        return self.world.with_faults(*editing.compiled(self.of(branch).edits))

    def _play(self, branch: Branch, until_s: float | None) -> Played:
        faults = editing.compiled(branch.edits)
        until = self.until_s if until_s is None else until_s
        key = (faults, until)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        found = play(
            self.part, problem=self.problem, world=self.world.with_faults(*faults),
            seed=self.seed, until_s=until, limits=self.limits,
        )  # fmt: skip
        self._kept[key] = found
        while len(self._kept) > MOST_KEPT or (
            len(self._kept) > 1 and sum(each.rows for each in self._kept.values()) > MOST_ROWS
        ):
            self._kept.popitem(last=False)
        return found

    # -- edits

    def edit(
        self,
        action: str,
        nodes: Sequence[int],
        *,
        at_s: float | None = None,
        value: float | None = None,
        branch: str | None = None,
    ) -> Edit:
        """Add an edit at a time (now, if none is given); the branch is executed with it at once.

        An edit that the branch cannot take leaves the branch as it was.
        """
        one = self.of(branch)
        if len(one.edits) >= MOST_EDITS:
            raise UsageError(f"a branch has at most {MOST_EDITS} edits; fork or take some out")
        made = editing.checked(
            self.now_s if at_s is None else at_s, action, nodes, value, self.world.size
        )
        before, old = self.whole(one.id), one.edits
        self._set(one, sorted([*old, made], key=lambda each: each.at_s))
        one.warning = moments.earlier_change(before, self.whole(one.id), made.at_s)
        return made

    def take_out(self, place: int, branch: str | None = None) -> Edit:
        """Remove an edit, by its place in the list; and those of its ends that then mean nothing.

        Taking a crash out takes its restart out too.
        """
        one = self.of(branch)
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(one.edits):
            raise UsageError(f"edit {str(place)[:20]}: the branch has {len(one.edits)} edits, "
                             "counted from 0")  # fmt: skip
        gone = one.edits[place]
        left = [each for i, each in enumerate(one.edits) if i != place]
        self._set(one, _without_orphans(left))
        one.warning = ""
        return gone

    def _set(self, branch: Branch, edits: list[Edit]) -> None:
        """Give a branch other edits if it can be executed with them, else leave it alone."""
        old = branch.edits
        try:
            faults = editing.compiled(edits)
            self.world.with_faults(*faults)
            branch.edits = edits
            self._play(branch, None)
        except OrreryError:
            branch.edits = old
            raise

    def crash(self, *nodes: int) -> Edit:
        """The nodes stop now and forget all but their disks."""
        return self.edit("crash", nodes)

    def restart(self, *nodes: int) -> Edit:
        """Crashed nodes start again now."""
        return self.edit("restart", nodes)

    def pause(self, *nodes: int) -> Edit:
        """The nodes stand still from now on and remember all."""
        return self.edit("pause", nodes)

    def resume(self, *nodes: int) -> Edit:
        """Nodes that stand still go on now."""
        return self.edit("resume", nodes)

    def slow(self, *nodes: int, factor: float = editing.DEFAULT_FACTOR) -> Edit:
        """The nodes compute and send `factor` times as slowly from now on."""
        return self.edit("slow", nodes, value=factor)

    def cut(self, a: int, b: int) -> Edit:
        """Messages between two nodes are lost from now on, both ways."""
        return self.edit("cut", (a, b))

    def heal(self, a: int, b: int) -> Edit:
        """The link between two nodes is whole again."""
        return self.edit("heal", (a, b))

    # -- branches

    def fork(self, at_s: float | None = None, branch: str | None = None, title: str = "") -> Branch:
        """Another branch with the same past: the edits up to that time, and none after it."""
        if len(self.branches) >= MOST_BRANCHES:
            raise UsageError(f"there are {MOST_BRANCHES} branches already; remove one first")
        if not isinstance(title, str) or not _TITLE.fullmatch(title):
            raise UsageError("title: give at most 80 letters, digits, spaces and .,:-")
        source = self.of(branch)
        when = self.now_s if at_s is None else _time(at_s)
        number = 1 + max([int(id[1:]) for id in self.branches if id[1:].isdigit()], default=0)
        made = Branch(
            id=f"b{number}", title=title or f"branch {number}", parent=source.id, from_s=when,
            edits=_without_orphans([each for each in source.edits if each.at_s <= when]),
        )  # fmt: skip
        self.branches[made.id] = made
        self.branch, self.now_s = made.id, when
        return made

    def remove(self, branch: str) -> None:
        """Forget a branch; its children then hang on its parent."""
        one = self.of(branch)
        if one.id == "main":
            raise UsageError("the first branch stays; remove one of its forks")
        for other in self.branches.values():
            if other.parent == one.id:
                other.parent, other.from_s = one.parent, min(one.from_s, other.from_s)
        del self.branches[one.id]
        if self.branch == one.id:
            self.branch = one.parent

    def difference(self, a: str, b: str) -> dict[str, Any]:
        """Two branches side by side: the first event, the metrics, the verdicts that differ."""
        return moments.difference(self, self.of(a), self.of(b))

    def save_test(self, branch: str | None = None) -> str:
        """The source of a pytest file that replays the branch and asserts what came of it."""
        return saved_test.source(self, self.of(branch))

    def tree(self) -> list[dict[str, Any]]:
        """The branches, parents before children, each with its edits in words."""
        return [
            {
                "id": each.id, "title": each.title, "parent": each.parent, "from_s": each.from_s,
                "warning": each.warning,
                "edits": [{**msgspec.to_builtins(edit), "words": edit.words()}
                          for edit in each.edits],
            }
            for each in self.branches.values()
        ]  # fmt: skip


# -- what comes from outside


def _time(at_s: Any) -> float:
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= 1e9:
        raise UsageError(f"time {str(at_s)[:30]}: give a number of seconds, 0 to 1e9")
    return round(float(at_s), 9)


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= SEED_MOST:
        raise UsageError(f"seed={str(seed)[:30]}: give a whole number, 0 to 2**63 - 1")
    return seed


def _without_orphans(edits: Sequence[Edit]) -> list[Edit]:
    """The edits without those ends whose beginning is gone."""
    kept: list[Edit] = []
    for each in edits:
        try:
            editing.compiled([*kept, each])
        except UsageError:
            continue
        kept.append(each)
    return kept


def in_short(playground: Playground) -> str:
    """What is played with, in one line."""
    problem = type(playground.problem).__name__ if playground.problem is not None else "no problem"
    size = playground.world.size
    length = show(playground.whole("main").run.seconds, "s")
    return f"{playground.name} on {problem}, {size:,} nodes, seed {playground.seed}, {length}"
