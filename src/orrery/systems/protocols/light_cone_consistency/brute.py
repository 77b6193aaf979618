"""The definitions themselves, tried out one by one: the slow twin of `existence`.

Every order of the writes and every choice of views is enumerated, so it serves only for a handful
of operations. It shares no code with the fast checker beyond reading the history.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from orrery.base.errors import SpecError
from orrery.systems.protocols.light_cone_consistency.cone import INITIAL, Cone
from orrery.systems.protocols.light_cone_consistency.coordinates import Config

MOST_WRITES = 5
Views = dict[int, tuple[int, ...]]


def exists(cone: Cone, config: Config) -> bool:
    """Whether some map from reads to writes, some orders and some views satisfy everything."""
    writes = [at for at in range(cone.n) if not cone.is_read[at]]
    if len(writes) > MOST_WRITES:
        fix = f"the reference takes at most {MOST_WRITES}"
        raise SpecError("case.history", f"{len(writes)} writes", fix)
    maps = cone.maps()
    return maps is not None and any(_with_map(cone, config, writes, source) for source in maps)


def _with_map(cone: Cone, config: Config, writes: list[int], source: dict[int, int]) -> bool:
    past = _past(cone, source)
    if any(at in past[at] for at in range(cone.n)):
        return False
    orders = [
        order
        for order in itertools.permutations(writes)
        if _keeps(order, _depends(cone, source, past, config.order.refines), config, cone)
    ]
    groups = list(cone.lines.values())
    if config.order.scope == "local":
        return all(
            any(_views(cone, config, source, past, [line], order) for order in orders)
            for line in groups
        )
    return any(_views(cone, config, source, past, groups, order) for order in orders)


def _past(cone: Cone, source: dict[int, int]) -> list[set[int]]:
    """The causal past of each operation (session order and reads-from, transitively)."""
    past: list[set[int]] = [set() for _ in range(cone.n)]
    while True:
        size = sum(map(len, past))
        for at in range(cone.n):
            for d in (cone.session_before[at], source.get(at, INITIAL)):
                if d >= 0:
                    past[at] |= past[d] | {d}
        if sum(map(len, past)) == size:
            return past


def _earlier(cone: Cone, at: int) -> list[int]:
    """The operations of the same session before this one."""
    found = []
    while (at := cone.session_before[at]) >= 0:
        found.append(at)
    return found


def _depends(
    cone: Cone, source: dict[int, int], past: list[set[int]], refines: str
) -> set[tuple[int, int]]:
    """The pairs of writes (one, two) in which two depends on one in the refined way."""
    pairs = set()
    for two in range(cone.n):
        if cone.is_read[two]:
            continue
        before = _earlier(cone, two)
        if refines == "session":
            pairs |= {(one, two) for one in before if not cone.is_read[one]}
        elif refines == "reads":
            pairs |= {(source[r], two) for r in before if cone.is_read[r] and source[r] >= 0}
        elif refines == "causality":
            pairs |= {(one, two) for one in past[two] if not cone.is_read[one]}
    return pairs


def _keeps(order: Sequence[int], pairs: set[tuple[int, int]], config: Config, cone: Cone) -> bool:
    place = {at: n for n, at in enumerate(order)}
    if config.time == "real_time" and any(
        cone.ret[one] < cone.call[two] and place[one] > place[two]
        for one in order for two in order
    ):  # fmt: skip
        return False
    return all(place[one] < place[two] for one, two in pairs)


def _views(cone: Cone, config: Config, source: dict[int, int], past: list[set[int]],
           lines: list[list[int]], order: Sequence[int]) -> bool:  # fmt: skip
    """Whether the reads of these sessions can be given views in this order."""
    reads = [at for line in lines for at in line if cone.is_read[at]]
    choices = [list(_one_view(cone, config, source, past, at, order)) for at in reads]
    for chosen in itertools.product(*choices):
        views = dict(zip(reads, map(frozenset, chosen), strict=True))
        if "grow" in config.closure and any(
            not views[one] <= views[two] for two in reads for one in _earlier(cone, two)
            if one in views
        ):  # fmt: skip
            continue
        if config.time == "real_time" and not _timely(cone, views, reads):
            continue
        return True
    return False


def _one_view(cone: Cone, config: Config, source: dict[int, int], past: list[set[int]], at: int,
              order: Sequence[int]) -> Iterator[tuple[int, ...]]:  # fmt: skip
    """Every view that shows this read its value: closed, without its own future."""
    size = len(order)
    if config.order.form == "log":
        sets: Iterator[tuple[int, ...]] = (tuple(order[:n]) for n in range(size + 1))
    else:
        sets = (c for n in range(size + 1) for c in itertools.combinations(order, n))
    before = _earlier(cone, at)
    for view in sets:
        inside = set(view)
        own = {one for one in before if not cone.is_read[one]}
        if any(at in _earlier(cone, one) for one in inside):
            continue
        if "own" in config.closure and not own <= inside:
            continue
        if config.time == "settled" and cone.settled >> at & 1 and len(inside) < size:
            continue
        if not all(_closed(cone, config, source, inside, one) for one in inside):
            continue
        mine = [one for one in view if cone.key[one] == cone.key[at]]
        if (mine[-1] if mine else INITIAL) == source[at]:
            yield view


def _closed(
    cone: Cone, config: Config, source: dict[int, int], inside: set[int], write: int
) -> bool:
    for one in _earlier(cone, write):
        if not cone.is_read[one]:
            if "session" in config.closure and one not in inside:
                return False
        elif "reads" in config.closure and source[one] != INITIAL and source[one] not in inside:
            return False
    return True


def _timely(cone: Cone, views: dict[int, frozenset[int]], reads: list[int]) -> bool:
    """What ended before a read began is in its view, what began after its end is not."""
    for at in reads:
        for write in range(cone.n):
            if cone.is_read[write]:
                continue
            if cone.ret[write] < cone.call[at] and write not in views[at]:
                return False
            if cone.ret[at] < cone.call[write] and write in views[at]:
                return False
        if any(cone.ret[one] < cone.call[at] and not views[one] <= views[at] for one in reads):
            return False
    return True
