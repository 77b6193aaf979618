"""What the stages of a pipeline noted, put together: faults, delays, and a replay without stages.

The referee trusts no stage's word on its weights: every pass carries a mark of the block that it
read, which must be that of the version it names; and the replay takes the whole model's gradient at
the versions that were read, block by block, and must end at the same weights.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Any

import numpy as np

from orrery.base.violation import Violation
from orrery.models.learn import make
from orrery.parts.collectives import Array
from orrery.systems.train.problems.cuts import Cut
from orrery.systems.train.problems.stage import BACK, FORTH, mark

# Two events of a pipeline closer than this part of a pass are at the same time.
SAME = 0.01


class Notes:
    """The notes of all stages of a run, in columns: of passes, and of updates by batch."""

    def __init__(self, outcome: Any, stages: int) -> None:
        said = {r.node: r.values for r in outcome.records if "passes" in r.values}
        self.nodes = sorted(said)
        self.said = [said[node] for node in self.nodes]
        self.stages = stages
        self.key = int(self.said[0]["key"])
        passes = np.concatenate([each["passes"] for each in self.said])
        self.way, self.stage, self.replica, self.batch, self.version, self.mark = passes.T
        self.began_s, self.ended_s = np.concatenate([each["times"] for each in self.said]).T
        rows = [each["used"].reshape(-1, 5) for each in self.said]
        self.used: Array = np.concatenate(rows)
        self.used_s: Array = np.concatenate([each["used_s"] for each in self.said])

    # -- time

    def span_s(self) -> float:
        """From the first pass to the end of the last one."""
        return float(self.ended_s.max() - self.began_s.min()) if len(self.ended_s) else 0.0

    def bubble(self, workers: int) -> float:
        """The part of the workers' time, from first to last pass, in which they did none."""
        span_s = self.span_s()
        busy_s = float(np.sum(self.ended_s - self.began_s))
        return 1.0 - busy_s / (workers * span_s) if span_s > 0 else 0.0

    # -- staleness

    def delays(self, one_block: bool) -> list[tuple[int, int, int, int]]:
        """(stage, batch, delay, of which by other batches) of each block update.

        The delay is the number of block updates of the replica strictly between the read of the
        forward pass and the write of the gradient. Where each iteration updates one block, it is
        the number of earlier iterations that the point which was read does not have.
        """
        forth = self.way == FORTH
        if one_block:
            seen: dict[int, int] = defaultdict(int)
            for batch, version in zip(self.batch[forth], self.version[forth], strict=True):
                seen[int(batch)] += int(version)
            return [
                (stage, batch, batch - seen[batch], batch - seen[batch])
                for stage, _, _, batch, _ in self.used.tolist()
            ]  # fmt: skip
        read_s = dict(zip(
            zip(self.stage[forth].tolist(), self.batch[forth].tolist(), strict=True),
            self.began_s[forth].tolist(), strict=True,
        ))  # fmt: skip
        same_s = SAME * float(np.min(self.ended_s - self.began_s, initial=np.inf))
        found = []
        for replica in np.unique(self.used[:, 1]):
            rows = np.flatnonzero((self.used[:, 1] == replica) & (self.used[:, 3] >= 0))
            # An update by several batches is one update.
            _, first = np.unique(self.used[rows][:, [0, 2]], axis=0, return_index=True)
            writes = np.sort(self.used_s[rows][first])
            own: dict[int, list[float]] = defaultdict(list)
            for row in rows[np.argsort(self.used_s[rows], kind="stable")]:
                own[int(self.used[row, 3])].append(float(self.used_s[row]))
            for row in rows:
                stage, _, _, batch, _ = self.used[row].tolist()
                if (stage, batch) not in read_s:
                    continue  # the referee has its word on such an update
                window = (read_s[stage, batch] + same_s, float(self.used_s[row]) - same_s)
                before = np.searchsorted(writes, window[1], "left")
                delay = max(int(before - np.searchsorted(writes, window[0], "right")), 0)
                mine = bisect_left(own[batch], window[1]) - bisect_right(own[batch], window[0])
                found.append((stage, batch, delay, delay - max(mine, 0)))
        return found

    # -- versions

    def read_versions(self) -> Array:
        """The version that each stage had when each batch went forward: (stages, batches)."""
        forth = self.way == FORTH
        found = np.zeros((self.stages, int(self.batch.max(initial=-1)) + 1), np.int64)
        found[self.stage[forth], self.batch[forth]] = self.version[forth]
        return found


def faults(notes: Notes, cut: Cut, part: Any, steps: int) -> list[Violation]:
    """What the stages did that they must not: batches lost or used twice, weights mistaken."""
    return _batches(notes, part, steps) or _versions(notes, cut, part)


def _batches(notes: Notes, part: Any, steps: int) -> list[Violation]:
    """Every batch passes each stage once and updates what it must, once."""
    known = (notes.used[:, 3] >= 0) & (notes.used[:, 3] < steps)
    strange = int(np.sum(notes.used[:, 3] >= steps) + np.sum(notes.batch >= steps))
    if strange:
        return [Violation(
            kind="batch_unknown",
            message=f"{strange} passes and updates of batches beyond the last one, {steps - 1}",
        )]  # fmt: skip
    used, forth, back = (np.zeros((notes.stages, steps), np.int64) for _ in range(3))
    np.add.at(used, (notes.used[known, 0], notes.used[known, 3]), 1)
    for times, way in ((forth, FORTH), (back, BACK)):
        np.add.at(times, (notes.stage[notes.way == way], notes.batch[notes.way == way]), 1)
    asked = "one stage once" if part.updates_one else "each stage once"
    wrong = used.sum(axis=0) != 1 if part.updates_one else np.any(used != 1, axis=0)
    for says, bad in (
        (f"updated the stages {{}} times, asked was {asked}", wrong),
        ("went forward {} times, asked was once", np.any(forth != 1, axis=0)),
        ("went back {} times, asked was once before each update", np.any(back < used, axis=0)),
    ):
        if np.any(bad):
            first = int(np.flatnonzero(bad)[0])
            times = (used if "updated" in says else forth if "forward" in says else back)[:, first]
            return [Violation(
                kind="batch_misused", evidence=np.flatnonzero(bad)[:20].tolist(),
                message=f"{int(np.sum(bad))} batches; batch {first} "
                        + says.format(times.tolist()[:8]),
            )]  # fmt: skip
    return []


def _versions(notes: Notes, cut: Cut, part: Any) -> list[Violation]:
    known: dict[tuple[int, int, int], int] = {}
    for replica in np.unique(notes.replica).tolist():
        for stage in range(notes.stages):
            known[stage, replica, 0] = mark(cut.block(stage))
    for stage, replica, version, _, seen in notes.used.tolist():
        known[stage, replica, version] = seen
    rows = zip(
        notes.way.tolist(), notes.stage.tolist(), notes.replica.tolist(), notes.batch.tolist(),
        notes.version.tolist(), notes.mark.tolist(), strict=True,
    )  # fmt: skip
    went: dict[tuple[int, int], int] = {}
    for way, stage, replica, batch, version, seen in rows:
        if known.get((stage, replica, version)) != seen:
            return [Violation(
                kind="weights_mistaken",
                message=f"stage {stage} passed batch {batch} through weights that are not its "
                        f"version {version}",
            )]  # fmt: skip
        if way == FORTH:
            went[stage, batch] = version
        elif part.goes_back_as_forth and went.get((stage, batch)) != version:
            return [Violation(
                kind="weights_changed",
                message=f"stage {stage}: batch {batch} went back through version {version}, "
                        f"forth through {went.get((stage, batch))}",
            )]  # fmt: skip
    return []


def replay(notes: Notes, cut: Cut, part: Any, rate: float, steps: int) -> list[Array]:
    """The blocks at the end, found without stages from the versions that were read.

    Batch by batch: the gradient of the whole model at the point whose blocks are of the versions
    noted, cut by block; then the updates that wait for it. What a batch reads was written by
    earlier batches, so their order is enough, and no clock is needed.
    """
    versions, owner = notes.read_versions(), dict(
        zip(notes.batch.tolist(), notes.replica.tolist(), strict=True)
    )  # fmt: skip
    replicas = int(notes.used[:, 1].max(initial=0)) + 1
    places = [(stage, replica) for stage in range(notes.stages) for replica in range(replicas)]
    blocks = {place: {0: cut.block(place[0])} for place in places}
    steppers = {place: make(part.optimiser, rate * part.rate_scale) for place in places}
    # The batches of each update, in order of version; none: an average.
    waiting: dict[tuple[int, int], dict[int, list[int]]] = {place: {} for place in places}
    for stage, replica, version, batch, _ in sorted(map(tuple, notes.used.tolist())):
        waiting[stage, replica].setdefault(version, []).extend([batch] if batch >= 0 else [])
    newest = dict.fromkeys(places, 0)
    sums: dict[tuple[int, int], Any] = dict.fromkeys(places)
    for batch in range(steps):
        replica = owner.get(batch, 0)
        point = np.concatenate([
            blocks[stage, replica][int(versions[stage, batch])] for stage in range(notes.stages)
        ])  # fmt: skip
        gradient = cut.gradient(point, batch)
        for stage in range(notes.stages):
            place = (stage, replica)
            asked = waiting[place].get(newest[place] + 1, [])
            if batch in asked:
                mine = gradient[cut.slices[stage]]
                sums[place] = mine if sums[place] is None else sums[place] + mine
                if batch == max(asked):
                    whole = sums[place] / gradient.dtype.type(len(asked))
                    new = steppers[place].step(blocks[place][newest[place]], whole)
                    newest[place] += 1
                    blocks[place][newest[place]], sums[place] = new, None
                    _forget(blocks[place], versions[stage, batch + 1 :], newest[place], replicas)
            _average(stage, replicas, waiting, newest, blocks)
    return [
        np.mean([blocks[stage, q][newest[stage, q]] for q in range(replicas)], axis=0,
                dtype=cut.whole.dtype)
        for stage in range(notes.stages)
    ]  # fmt: skip


def _forget(block: dict[int, Array], to_read: Array, newest: int, replicas: int) -> None:
    """Drop versions that nobody will read; with replicas there are few anyway."""
    if replicas > 1:
        return
    needed = min(int(to_read.min(initial=newest)), newest)
    for version in [version for version in block if version < needed]:
        del block[version]


def _average(stage: int, replicas: int, waiting: Any, newest: Any, blocks: Any) -> None:
    """Do the averages of a stage for which all its replicas wait."""
    places = [(stage, replica) for replica in range(replicas)]
    while all(waiting[place].get(newest[place] + 1) == [] for place in places):
        mean = np.mean([blocks[place][newest[place]] for place in places], axis=0)
        for place in places:
            newest[place] += 1
            blocks[place][newest[place]] = mean


__all__ = ["BACK", "FORTH", "Notes", "faults", "replay"]
