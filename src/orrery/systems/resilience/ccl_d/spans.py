"""CCL-D without a tap: who made a finished run hang or crawl, from its spans alone.

The spans of a run tell when nodes computed and when arrays were on their way. A straggler needs
longer than its fellows for the same computations; ways on which arrays take too long have a NIC in
common, or are one link; and in a long time in which nothing begins and nothing ends, what is still
under way, or who was silent first, is the cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from orrery.base.errors import PartError
from orrery.systems.resilience.ccl_d.attached import CollectiveDoctor, Finding
from orrery.systems.resilience.ccl_d.mirror import at_once
from orrery.systems.resilience.ccl_d.probe import Probe
from orrery.systems.resilience.ccl_d.slowness import Row, cause_of, stands_out
from orrery.systems.resilience.ccl_d.tap import Alone
from orrery.systems.resilience.problems.flight import Channel, Dump
from orrery.systems.resilience.problems.watcher import Report, Sign

KINDS = ("compute", "transfer")
# So many windows of computations tell how much sound ranks differ.
HISTORY = 4


class Piece(msgspec.Struct, frozen=True):
    """A computation of a node, or an array on its way to another."""

    kind: str
    name: str
    start_s: float
    end_s: float
    node: int
    to: int = -1
    size_B: int = 0
    flops: float = 0.0

    @property
    def took_s(self) -> float:
        """From its beginning to its end."""
        return self.end_s - self.start_s


def diagnose(
    run: Any, *, doctor: CollectiveDoctor | None = None, end_s: float | None = None
) -> list[Finding]:
    """Who made a run hang or crawl, by its spans; no monitor has to have been attached.

    `run` is a replayed run (`replay(run).run`; a stored one by its id), or any spans: objects, or
    the rows of a .jsonl file, with `kind`, `name`, `start_ns`, `end_ns`, `node`, `to`, `size_B` and
    `values`. The knobs of `doctor` are those of the judgement; `end_s` is the end of the run.

    Other than a tap it also finds a rank that was slow from its first step on. It does not see
    groups, sequence numbers and sizes, so mismatches and skipped calls look like whatever they led
    to. In a world of unlike machines the slowest of them is called slow, which it is.
    """
    judge = doctor if doctor is not None else CollectiveDoctor()
    judge.check_knobs()
    if not hasattr(run, "spans") and isinstance(run, Iterable):
        run = list(run)  # it is read twice
    pieces = pieces_of(run)
    last_s = max(piece.end_s for piece in pieces)
    if end_s is None:
        end_s = float(getattr(run, "seconds", last_s))
    found: list[Finding] = []
    if judge.hangs:
        found += hangs_in(pieces, max(end_s, last_s), judge.hang_s, words_of(run))
    if judge.slows:
        slow = stragglers_in(pieces, judge)
        found += slow
        # Who computes too long may send late as well; one cause is enough.
        known = {rank for finding in slow for rank in finding.ranks}
        found += [each for each in ways_in(pieces, judge) if not known & set(each.ranks)]
    return sorted(found, key=lambda finding: (finding.since_s, finding.ranks))


def pieces_of(run: Any) -> list[Piece]:
    """The computations and transfers of a run or of some spans, in order of their beginning."""
    spans: Iterable[Any] = run
    if hasattr(run, "spans"):
        spans = run.extra.get("work_spans", ())
    elif not isinstance(run, Iterable):
        raise PartError(f"{run!r:.60} has no spans; give a replayed run, or its spans")
    found = []
    for span in spans:
        get = _getter(span)
        if get("kind", "") not in KINDS:
            continue
        values = get("values", None) or {}
        found.append(Piece(
            get("kind"), get("name"), get("start_ns") / 1e9, get("end_ns") / 1e9, get("node"),
            get("to", -1), get("size_B", 0), float(values.get("flops", 0.0)),
        ))  # fmt: skip
    if not found:
        raise PartError(
            "the run has no spans of computations or transfers; replay it (virtual runs only), and "
            "give the run of the replay"
        )
    return sorted(found, key=lambda piece: (piece.start_s, piece.node))


def words_of(run: Any) -> list[tuple[float, int]]:
    """(when, which node) of all that nodes told by `emit`: who speaks is alive."""
    if hasattr(run, "spans"):
        return [(record.time_s, record.node) for record in run.records]
    get = _getter
    return [
        (get(span)("start_ns") / 1e9, get(span)("node"))
        for span in run if get(span)("kind", "") == "emit"
    ]  # fmt: skip


def _getter(span: Any) -> Callable[..., Any]:
    """How to read a field of a span, which is an object or a row of a file."""
    if isinstance(span, Mapping):
        return span.get
    return lambda key, other=None: getattr(span, key, other)


# -- hangs


def hangs_in(
    pieces: Sequence[Piece], end_s: float, hang_s: float, words: Sequence[tuple[float, int]] = ()
) -> list[Finding]:
    """Long times in which nothing began and nothing ended, and who is behind them."""
    # What is still under way at the end was cut off there, and has not ended.
    times = sorted({t for piece in pieces for t in (piece.start_s, piece.end_s)} | {0.0, end_s})
    nodes = {piece.node for piece in pieces}
    found: list[Finding] = []
    for since_s, until_s in pairwise(times):
        if until_s - since_s < hang_s:
            continue
        alive = {node for time_s, node in words if since_s < time_s <= until_s}
        report = _behind_silence(pieces, nodes, alive, since_s, until_s)
        if report is not None and not any(each.ranks == report.ranks for each in found):
            found.append(Finding("hang", report.ailment, report.ranks, report.why, since_s,
                                 min(since_s + hang_s, until_s)))  # fmt: skip
    return found


def _behind_silence(
    pieces: Sequence[Piece], nodes: set[int], alive: set[int], since_s: float, until_s: float
) -> Report | None:
    lasted = f"nothing else happened for {until_s - since_s:.6g} s"
    under_way = [piece for piece in pieces if piece.start_s <= since_s and piece.end_s >= until_s]
    busy = sorted({piece.node for piece in under_way if piece.kind == "compute"})
    if 2 * len(busy) > len(nodes):
        return None  # most of them compute: that is work, and no hang
    if busy:
        return Report("stuck", tuple(busy), f"it computed, and {lasted}")
    if under_way:
        first = min(under_way, key=lambda piece: (piece.start_s, piece.node))
        ends = tuple(sorted((first.node, first.to)))
        mute = tuple(end for end in ends if end not in alive)
        if alive and len(mute) == 1:
            return Report("stopped", mute, f"an array to or from it was on its way, and {lasted}")
        return Report("hung_link", ends, f"an array was on its way, and {lasted}")
    latest = dict.fromkeys(sorted(nodes), 0.0)
    for piece in pieces:
        if piece.end_s <= since_s:
            latest[piece.node] = max(latest[piece.node], piece.end_s)
    order = sorted(latest, key=lambda node: (latest[node], node))
    if len(order) < 2 or latest[order[0]] == latest[order[1]]:
        return Report("insufficient_data", (), lasted)
    return Report("stopped", (order[0],), f"it was silent first, and then {lasted}")


# -- slowness


def stragglers_in(pieces: Sequence[Piece], judge: CollectiveDoctor) -> list[Finding]:
    """Nodes that need longer than their fellows for the same computations."""
    work: dict[int, list[Piece]] = {}
    for piece in pieces:
        if piece.kind == "compute" and piece.took_s > 0:
            work.setdefault(piece.node, []).append(piece)
    found: list[Finding] = []
    bounds, width = judge.bounds(), HISTORY * judge.window
    for stop in range(judge.window, max(map(len, work.values()), default=0) + 1, judge.window):
        # Who has ended before this place, by a crash or by its own programme, is left out.
        present = {node: mine[max(0, stop - width) : stop] for node, mine in work.items()
                   if len(mine) >= stop}  # fmt: skip
        if len(present) < 2:
            break
        table: list[Row] = [
            {node: _effort(mine[place]) for node, mine in present.items()}
            for place in range(stop - max(0, stop - width))
        ]
        behind = stands_out(table, "", bounds)
        if behind is None:
            continue
        report = behind.report
        if not any(each.ranks == report.ranks for each in found):
            mine = present[report.ranks[0]][-judge.window :]
            found.append(Finding("slow", report.ailment, report.ranks, report.why,
                                 mine[0].start_s, mine[-1].end_s))  # fmt: skip
    return found


def _effort(piece: Piece) -> float:
    """Seconds for each operation, so that batches of different sizes compare."""
    return piece.took_s / piece.flops if piece.flops > 0 else piece.took_s


class _Probes:
    """Probes as a source of dumps."""

    def __init__(self, judge: CollectiveDoctor, period_s: float) -> None:
        self.gone: set[int] = set()
        self.judge, self.period_s = judge, period_s
        self.now_s = 0.0
        self.probes: dict[int, Probe] = {}

    def of(self, node: int) -> Probe:
        """The probe of a node."""
        probe = self.probes.get(node)
        if probe is None:
            probe = self.judge.probe_for(node, lambda: self.now_s, float("inf"))
            probe.period_s = self.period_s
            self.probes[node] = probe
        return probe

    async def dumps_of(self, ranks: Sequence[int], last: int) -> dict[int, Dump | None]:
        """What the probes of some nodes know."""
        return {rank: self.of(rank).dump(last) for rank in ranks}


def ways_in(pieces: Sequence[Piece], judge: CollectiveDoctor) -> list[Finding]:
    """NICs and links on which arrays take longer than is usual for their size."""
    moves = sorted((p for p in pieces if p.kind == "transfer" and p.to != p.node),
                   key=lambda piece: (piece.end_s, piece.node))  # fmt: skip
    if not moves:
        return []
    steps = max(sum(p.kind == "compute" for p in pieces) // len({p.node for p in pieces}), 1)
    probes = _Probes(judge, moves[-1].end_s / steps)
    found: list[Finding] = []
    sure: dict[tuple[int, ...], int] = {}
    since: dict[tuple[int, int], float] = {}
    seen: dict[tuple[int, int], int] = {}
    among, alone = _beside(moves), dict[int, Alone]()
    for (node, to), count in Counter((piece.node, piece.to) for piece in moves).items():
        probes.of(node).sent_before[to] = count // steps
    for place, piece in enumerate(moves):
        probes.now_s = piece.end_s
        probe, key = probes.of(piece.node), (piece.node, piece.to)
        probe.channels.setdefault(piece.to, Channel(piece.to)).shipped += 1
        probes.of(piece.to).channels.setdefault(piece.node, Channel(piece.node))
        alone_s = alone.setdefault(piece.node, Alone()).time(piece.took_s, among[place])
        probe.arrived(piece.to, piece.size_B, alone_s)
        seen[key] = seen.get(key, 0) + 1
        way = probe.ways[piece.to]
        if way.flags.bit_count() < judge.confirm:
            since.pop(key, None)
            continue
        since.setdefault(key, piece.end_s)
        if seen[key] % judge.window:  # a look when half of what it sees is new
            continue
        sign = Sign("send", piece.node, way.ratio(), "", piece.to)
        report = at_once(cause_of(probes, sign, judge.bounds()))
        if report is None or not judge.is_sure(report, sure):
            continue
        if not any(each.ranks == report.ranks for each in found):
            found.append(Finding("slow", report.ailment, report.ranks, report.why, since[key],
                                 piece.end_s))  # fmt: skip
    return found


def _beside(moves: Sequence[Piece]) -> list[int]:
    """Of each transfer the most that its node had under way when it began or ended.

    >>> _beside([Piece("transfer", "", begin, begin + 2.0, node=0) for begin in (0.0, 1.0, 9.0)])
    [2, 2, 1]
    """
    points = sorted(
        (time_s, is_begin, place) for place, piece in enumerate(moves)
        for time_s, is_begin in ((piece.start_s, 1), (piece.end_s, 0))
    )  # fmt: skip
    under_way: dict[int, int] = {}
    found = [1] * len(moves)
    for _, is_begin, place in points:
        node = moves[place].node
        now = under_way.get(node, 0) + is_begin
        found[place] = max(found[place], now)
        under_way[node] = now if is_begin else now - 1
    return found
