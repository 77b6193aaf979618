"""Max-min fair fluid flows in pure Python: the twin of `_flows.c`, and its specification.

A flow crosses a set of directed links and may have a rate cap of its own. The rates are max-min
fair: no flow can gain without a loss to one that has no more. They are found by filling
(Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). A heap holds a lower bound of each
link's fair share. The lowest one is brought up to date; if it did not grow, the link is a
bottleneck and its waiting flows get that rate. A cap below every bound fixes its flow first.

Both twins do the same IEEE operations in the same order. Two facts keep that cheap to hold:

- All flows fixed by one bottleneck get one rate, so the order inside a link does not matter.
- A link's arithmetic sees only flows that share links with it, directly or through others, so a
  change is re-solved in its connected component alone, to the same bits as a full solve.

Hence the rates depend on the running flows and the capacities, never on how they came about.
Changes are lazy: the solve happens at the next question, or when time moves on. Bytes are settled
for a flow only when its rate changes, so a steady flow gathers no rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from operator import index

from orrery.base.errors import SpecError
from orrery.base.units import FOREVER_NS

# Two units in the last place: a flow that ends on a whole nanosecond but for rounding ends there.
_ROUNDING = 1.0 - 2.0**-51

_REFUSALS = {
    "time": ("is not a time", "give whole nanoseconds with 0 <= now_ns < FOREVER_NS"),
    "past": ("lies before the last call, at {}", "pass times that never go back"),
    "overdue": ("lies after the end of a flow, at {}", "call finish_due at next_ns() first"),
    "capacities": ("is not a sequence of capacities", "give one number of bytes/s for each link"),
    "capacity": ("is not a capacity", "give a finite number of bytes/s >= 0 (0: a dead link)"),
    "route": ("is not a route", "give a sequence of link indices"),
    "link": ("is not a link", "give an index below {}, the number of links"),
    "twice": ("comes twice in the route", "name each link once"),
    "size": ("is not a size", "give a finite number of bytes >= 0"),
    "cap": ("is not a rate", "give a number of bytes/s >= 0, or inf for no cap"),
    "flow": ("is not a running flow", "give an id of start() that has not finished"),
}


def refusal(kind: str, path: str, value: object, extra: object = None) -> SpecError:
    """The error for a bad argument; both twins raise what this makes, so the words agree."""
    try:
        shown = repr(value)
    except Exception:  # a broken __repr__, or an int too long to print, must not hide the reason
        shown = f"a value of type {type(value).__name__}"
    if len(shown) > 80:
        shown = shown[:77] + "..."
    problem, fix = _REFUSALS[kind]
    return SpecError(path, f"{shown} {problem.format(extra)}", fix.format(extra))


def _number(kind: str, path: str, value: object, largest: float) -> float:
    """A float in [0, largest]; text is refused, which `float` would have parsed."""
    try:
        number = math.ldexp(value, 0)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise refusal(kind, path, value) from None
    if not 0.0 <= number <= largest:
        raise refusal(kind, path, value)
    return number


def _whole(kind: str, path: str, value: object, below: int, extra: object = None) -> int:
    """An int in [0, below)."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refusal(kind, path, value, extra) from None
    if not 0 <= number < below:
        raise refusal(kind, path, value, extra)
    return number


_LARGEST = math.nextafter(math.inf, 0.0)


def _due_ns(since_ns: int, left_B: float, rate_Bps: float) -> int:
    """When a flow with so many bytes left ends at this rate, rounded up to the nanosecond."""
    if left_B <= 0.0 or rate_Bps == math.inf:
        return since_ns
    if rate_Bps <= 0.0:
        return FOREVER_NS
    wait_ns = left_B * 1e9 / rate_Bps * _ROUNDING
    if not wait_ns < 9.2e18:
        return FOREVER_NS
    return min(since_ns + math.ceil(wait_ns), FOREVER_NS)


class _Flow:
    """One running flow: `left_B` bytes were left at `since_ns`, and `rate_Bps` holds since then."""

    __slots__ = ("cap_Bps", "due_ns", "id", "left_B", "links", "rate_Bps", "since_ns", "solve",
                 "tag")  # fmt: skip

    def __init__(
        self,
        id: int,
        now_ns: int,
        links: tuple[int, ...],
        size_B: float,
        cap_Bps: float,
        tag: object,
    ) -> None:
        self.id = id
        self.links = links
        self.cap_Bps = cap_Bps
        self.tag = tag
        self.left_B = size_B
        self.since_ns = now_ns
        self.rate_Bps = 0.0 if links else cap_Bps
        self.due_ns = _due_ns(now_ns, size_B, self.rate_Bps)
        self.solve = 0

    def left_at(self, now_ns: int) -> float:
        """Bytes not yet sent at a time within the present rate's span."""
        if self.due_ns <= now_ns:
            return 0.0
        left_B = self.left_B - self.rate_Bps * (now_ns - self.since_ns) / 1e9
        return left_B if left_B > 0.0 else 0.0


class FlowNet:
    """Fluid flows over links with capacities, shared max-min fairly, in integer nanoseconds.

    Call `finish_due` at each `next_ns()`; every other change must come at or before that time.

    >>> net = FlowNet([1e9])
    >>> net.start(0, [0], 1e6, tag="a"), net.start(0, [0], 2e6, tag="b")
    (0, 1)
    >>> net.next_ns(), net.finish_due(2_000_000), net.next_ns()
    (2000000, [(0, 'a')], 3000000)
    """

    def __init__(self, capacities_Bps: Iterable[float]) -> None:
        try:
            given = tuple(capacities_Bps)
        except TypeError:
            raise refusal("capacities", "capacities_Bps", capacities_Bps) from None
        self._capacity_Bps = [
            _number("capacity", f"capacities_Bps[{link}]", value, _LARGEST)
            for link, value in enumerate(given)
        ]
        self._flows: dict[int, _Flow] = {}  # by id, hence in order of ids
        self._members: list[dict[int, _Flow]] = [{} for _ in given]
        self._busy = 0  # links with at least one flow
        self._capped: list[tuple[float, int]] = []  # (cap, id) of the flows on links, sorted
        self._dues: list[tuple[int, int]] = []  # heap of (due, id); stale entries are skipped
        self._dirty: dict[int, None] = {}  # links whose component must be solved again
        self._clock_ns = 0
        self._next_id = 0
        self._solve_count = 0

    # -- changes

    def start(
        self,
        now_ns: int,
        links: Iterable[int],
        size_B: float,
        cap_Bps: float = math.inf,
        tag: object = None,
    ) -> int:
        """Begin a flow and return its id; with no links, only its cap limits it."""
        now_ns = _whole("time", "now_ns", now_ns, FOREVER_NS)
        route = self._route(links)
        size_B = _number("size", "size_B", size_B, _LARGEST)
        cap_Bps = _number("cap", "cap_Bps", cap_Bps, math.inf)
        self._advance(now_ns)
        flow = _Flow(self._next_id, now_ns, route, size_B, cap_Bps, tag)
        self._next_id += 1
        self._flows[flow.id] = flow
        heappush(self._dues, (flow.due_ns, flow.id))
        for link in route:
            self._busy += not self._members[link]
            self._members[link][flow.id] = flow
            self._dirty[link] = None
        if route and cap_Bps < math.inf:
            insort(self._capped, (cap_Bps, flow.id))
        return flow.id

    def cancel(self, now_ns: int, flow_id: int) -> float:
        """End a flow early and return its bytes not yet sent."""
        now_ns = _whole("time", "now_ns", now_ns, FOREVER_NS)
        flow = self._flow(flow_id)
        self._advance(now_ns)
        left_B = flow.left_at(now_ns)
        self._remove(flow)
        return left_B

    def set_capacity(self, now_ns: int, link: int, capacity_Bps: float) -> None:
        """Change a link's capacity from now on; 0 stalls its flows."""
        now_ns = _whole("time", "now_ns", now_ns, FOREVER_NS)
        link = self._link("link", link)
        capacity_Bps = _number("capacity", "capacity_Bps", capacity_Bps, _LARGEST)
        self._advance(now_ns)
        self._capacity_Bps[link] = capacity_Bps
        self._dirty[link] = None

    def finish_due(self, now_ns: int) -> list[tuple[int, object]]:
        """Remove and return the flows complete at now as (id, tag), in order of ids.

        When called late, each end takes effect at its own time, and the list follows those times.
        """
        now_ns = _whole("time", "now_ns", now_ns, FOREVER_NS)
        if now_ns < self._clock_ns:
            raise refusal("past", "now_ns", now_ns, self._clock_ns)
        done: list[tuple[int, object]] = []
        while (due_ns := self.next_ns()) <= now_ns:
            self._clock_ns = due_ns
            # Equal times pop in order of ids, because the heap's entries are (due, id).
            while self._dues and self._dues[0][0] <= due_ns:
                flow = self._flows.get(self._dues[0][1])
                if flow is not None and flow.due_ns == self._dues[0][0]:
                    done.append((flow.id, flow.tag))
                    self._remove(flow)
                heappop(self._dues)
            if due_ns == now_ns:
                break  # whatever is left ends later, so the solve can wait for the next question
        self._clock_ns = now_ns
        return done

    # -- questions

    def next_ns(self) -> int:
        """The time of the earliest completion at the present rates, or FOREVER_NS."""
        self._solve()
        dues = self._dues
        while dues:
            due_ns, flow_id = dues[0]
            flow = self._flows.get(flow_id)
            if flow is not None and flow.due_ns == due_ns:
                return due_ns
            heappop(dues)
        return FOREVER_NS

    def rate_Bps(self, flow_id: int) -> float:
        """The present rate of a flow."""
        flow = self._flow(flow_id)
        self._solve()
        return flow.rate_Bps

    def remaining_B(self, now_ns: int, flow_id: int) -> float:
        """Bytes of a flow not yet sent at now, if nothing changes before."""
        now_ns = _whole("time", "now_ns", now_ns, FOREVER_NS)
        flow = self._flow(flow_id)
        if now_ns < self._clock_ns:
            raise refusal("past", "now_ns", now_ns, self._clock_ns)
        self._solve()
        return flow.left_at(now_ns)

    def link_rate_Bps(self, link: int) -> float:
        """The sum of the present rates on a link, added in order of flow ids."""
        link = self._link("link", link)
        self._solve()
        total_Bps = 0.0
        for flow in self._members[link].values():
            total_Bps += flow.rate_Bps
        return total_Bps

    def rates(self) -> dict[int, float]:
        """The present rate of every flow, in order of ids."""
        self._solve()
        return {flow_id: flow.rate_Bps for flow_id, flow in self._flows.items()}

    def __len__(self) -> int:
        return len(self._flows)

    # -- inside

    def _link(self, path: str, value: object) -> int:
        count = len(self._capacity_Bps)
        return _whole("link", path, value, count, count)

    def _route(self, links: Iterable[int]) -> tuple[int, ...]:
        try:
            given = tuple(links)
        except TypeError:
            raise refusal("route", "links", links) from None
        route = tuple(self._link(f"links[{place}]", value) for place, value in enumerate(given))
        if len(set(route)) < len(route):
            place = next(i for i, link in enumerate(route) if link in route[:i])
            raise refusal("twice", f"links[{place}]", route[place])
        return route

    def _flow(self, flow_id: object) -> _Flow:
        try:
            return self._flows[index(flow_id)]  # type: ignore[arg-type]
        except (TypeError, KeyError):
            raise refusal("flow", "flow_id", flow_id) from None

    def _advance(self, now_ns: int) -> None:
        """Move the clock; what changed before is solved first, for the time that it held."""
        if now_ns == self._clock_ns:
            return
        if now_ns < self._clock_ns:
            raise refusal("past", "now_ns", now_ns, self._clock_ns)
        due_ns = self.next_ns()
        if due_ns < now_ns:
            raise refusal("overdue", "now_ns", now_ns, due_ns)
        self._clock_ns = now_ns

    def _remove(self, flow: _Flow) -> None:
        del self._flows[flow.id]
        for link in flow.links:
            del self._members[link][flow.id]
            self._busy -= not self._members[link]
            self._dirty[link] = None
        if flow.links and flow.cap_Bps < math.inf:
            del self._capped[bisect_left(self._capped, (flow.cap_Bps, flow.id))]

    def _solve(self) -> None:
        """Bring all rates up to date at the clock's time."""
        if not self._dirty:
            return
        self._solve_count += 1
        links, caps = self._component()
        changed = self._fill(links, caps)
        # Many new entries are cheaper as a fresh heap; so is a heap that is mostly stale.
        if 4 * len(changed) > len(self._flows) or len(self._dues) > 4 * len(self._flows) + 64:
            self._dues = [(flow.due_ns, flow_id) for flow_id, flow in self._flows.items()]
            heapify(self._dues)
        else:
            for flow in changed:
                heappush(self._dues, (flow.due_ns, flow.id))

    def _component(self) -> tuple[list[int], list[tuple[float, int]]]:
        """The busy links joined to the dirty ones by flows, and the (cap, id) of their flows."""
        members = self._members
        links = [link for link in self._dirty if members[link]]
        self._dirty = {}
        seen_links = set(links)
        seen_flows: dict[int, _Flow] = {}
        for link in links:  # the list grows while it is walked
            if len(links) == self._busy:
                return links, self._capped
            for flow_id, flow in members[link].items():
                if flow_id not in seen_flows:
                    seen_flows[flow_id] = flow
                    for other in flow.links:
                        if other not in seen_links:
                            seen_links.add(other)
                            links.append(other)
        caps = [(f.cap_Bps, f.id) for f in seen_flows.values() if f.cap_Bps < math.inf]
        caps.sort()
        return links, caps

    def _fill(self, links: list[int], caps: list[tuple[float, int]]) -> list[_Flow]:
        """Give every flow on these links its fair rate; return those whose rate is a new one."""
        members, solve = self._members, self._solve_count
        spare_Bps = {link: self._capacity_Bps[link] for link in links}
        waiting = {link: len(members[link]) for link in links}
        shares = [(spare_Bps[link] / waiting[link], link) for link in links]
        heapify(shares)
        changed: list[_Flow] = []
        cap_place = 0
        cap_Bps = caps[0][0] if caps else math.inf
        while shares:
            rate_Bps, link = shares[0]
            if cap_Bps <= rate_Bps:
                fixed: Iterable[_Flow] = (self._flows[caps[cap_place][1]],)
                rate_Bps = cap_Bps
                cap_place += 1
                cap_Bps = caps[cap_place][0] if cap_place < len(caps) else math.inf
            elif not waiting[link]:
                heappop(shares)
                continue
            else:
                share_Bps = spare_Bps[link] / waiting[link]
                if share_Bps > rate_Bps:  # the bound was stale; a share never truly shrinks
                    heapreplace(shares, (share_Bps, link))
                    continue
                heappop(shares)
                fixed = members[link].values()
            for flow in fixed:
                if flow.solve != solve:
                    flow.solve = solve
                    for other in flow.links:
                        spare_Bps[other] -= rate_Bps
                        waiting[other] -= 1
                    if flow.rate_Bps != rate_Bps:
                        self._retime(flow, rate_Bps)
                        changed.append(flow)
        return changed

    def _retime(self, flow: _Flow, rate_Bps: float) -> None:
        """Settle the bytes sent at the old rate, then go on at the new one."""
        flow.left_B = flow.left_at(self._clock_ns)
        flow.since_ns = self._clock_ns
        flow.rate_Bps = rate_Bps
        flow.due_ns = _due_ns(flow.since_ns, flow.left_B, rate_Bps)
