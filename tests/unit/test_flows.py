"""Fluid flows: the rates are max-min fair, bytes are conserved, and both twins agree to the bit."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import tracemalloc
import weakref
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import SpecError
from orrery.base.rand import Stream
from orrery.engines.virtual.flows import FOREVER_NS, implementations

TWINS = implementations()
INF = math.inf
needs_c = pytest.mark.skipif("c" not in TWINS, reason="the C twin is not built here")


@pytest.fixture(params=list(TWINS))
def net_class(request: pytest.FixtureRequest) -> Any:
    return TWINS[request.param]


def exact_rates(
    capacities: list[int], routes: list[list[int]], caps: list[float]
) -> list[Fraction | float]:
    """Textbook progressive filling in exact fractions: all rates rise together until one stops."""
    rates: list[Fraction | float] = [Fraction(0)] * len(routes)
    rising = set(range(len(routes)))
    for flow in [f for f in rising if not routes[f] and caps[f] == INF]:
        rates[flow] = INF
        rising.discard(flow)
    level = Fraction(0)
    while rising:
        stops = [Fraction(caps[f]) for f in rising if caps[f] < INF]
        for link, capacity in enumerate(capacities):
            here = [f for f in range(len(routes)) if link in routes[f]]
            up = sum(f in rising for f in here)
            if up:
                held = sum((Fraction(rates[f]) for f in here if f not in rising), Fraction(0))
                stops.append((capacity - held) / up)
        level = min(stops)
        full = []
        for link, capacity in enumerate(capacities):
            here = [f for f in range(len(routes)) if link in routes[f]]
            used = sum((level if f in rising else Fraction(rates[f]) for f in here), Fraction(0))
            if used >= capacity:
                full.append(link)
        ended = [f for f in rising if caps[f] <= level or any(k in full for k in routes[f])]
        assert ended, "the reference itself must move on"
        for flow in ended:
            rates[flow] = level
            rising.discard(flow)
    return rates


def random_instance(draw: Stream) -> tuple[list[int], list[list[int]], list[float]]:
    links = draw.randint(1, 7)
    capacities = [
        0 if draw.random() < 0.08 else draw.choice([1000, 3000, draw.randint(1, 10**9)])
        for _ in range(links)
    ]
    routes = [
        draw.sample(range(links), draw.below(min(links, 4) + 1)) for _ in range(draw.randint(1, 12))
    ]
    caps = [
        draw.choice([0.0, 250.0, float(draw.randint(1, 10**9))]) if draw.random() < 0.4 else INF
        for _ in routes
    ]
    return capacities, routes, caps


@pytest.mark.parametrize("block", range(5))
def test_rates_equal_the_exact_solution(net_class: Any, block: int) -> None:
    for case in range(100):
        capacities, routes, caps = random_instance(Stream(block, case, "exact"))
        net = net_class(capacities)
        for route, cap in zip(routes, caps, strict=True):
            net.start(0, route, 1e6, cap)
        for got, want in zip(
            net.rates().values(), exact_rates(capacities, routes, caps), strict=True
        ):
            assert got == pytest.approx(float(want), rel=1e-9, abs=0), (block, case)


def fairness_faults(net: Any, capacities: list[float], flows: dict[int, tuple[Any, float]]) -> int:
    """Counts flows below their cap with no full link on which they are among the fastest."""
    rates = net.rates()
    fastest = [0.0] * len(capacities)
    used = [0.0] * len(capacities)
    for flow, (route, _) in flows.items():
        for link in route:
            used[link] += rates[flow]
            fastest[link] = max(fastest[link], rates[flow])
    assert all(u <= c * (1 + 1e-9) for u, c in zip(used, capacities, strict=True))
    return sum(
        rates[flow] < cap * (1 - 1e-9)
        and not any(
            used[k] >= capacities[k] * (1 - 1e-9) and rates[flow] >= fastest[k] * (1 - 1e-9)
            for k in route
        )
        for flow, (route, cap) in flows.items()
    )


def test_large_instance_has_a_bottleneck_for_every_flow(net_class: Any) -> None:
    draw = Stream(3, 0, "large")
    capacities = [draw.uniform(1e6, 1e9) for _ in range(80)]
    net = net_class(capacities)
    flows: dict[int, tuple[Any, float]] = {}
    for _ in range(600):
        route = draw.sample(range(80), draw.randint(1, 6))
        cap = draw.uniform(1e4, 1e8) if draw.random() < 0.3 else INF
        flows[net.start(0, route, 1e9, cap)] = (route, cap)
    assert fairness_faults(net, capacities, flows) == 0
    # The count itself must be able to find a fault: twice the capacity leaves flows short.
    assert fairness_faults(net, [2 * c for c in capacities], flows) > 0


def script(net: Any, seed: int, ops: int) -> list[Any]:
    """A random but seeded run of every method; the log holds all that the net answered."""
    draw = Stream(seed, 0, "script")
    links = draw.choice([2, 5, 20, 60])
    net = net([0.0 if draw.random() < 0.05 else draw.uniform(1e6, 1e9) for _ in range(links)])
    capped = draw.choice([0.0, 0.3, 1.0])
    most_hops = min(draw.choice([1, 2, 5]), links)
    now_ns, live, log = 0, [], []
    for _ in range(ops):
        kind = draw.random()
        if kind < 0.45:
            if draw.random() < 0.5:  # several changes at one time share a solve
                now_ns = min(now_ns + draw.below(2_000_000), net.next_ns())
            route = draw.sample(range(links), draw.below(most_hops + 1))
            cap = draw.uniform(1e5, 1e8) if draw.random() < capped else INF
            live.append(net.start(now_ns, route, draw.expovariate(1e-5), cap, len(log)))
        elif kind < 0.55 and live:
            log.append(net.cancel(now_ns, live.pop(draw.below(len(live)))))
        elif kind < 0.62:
            level = 0.0 if draw.random() < 0.2 else draw.uniform(1e6, 1e9)
            net.set_capacity(now_ns, draw.below(links), level)
        elif kind < 0.7 and live:
            log.append((net.rate_Bps(draw.choice(live)), net.link_rate_Bps(draw.below(links))))
            log.append(net.remaining_B(now_ns + draw.below(1000), draw.choice(live)))
        elif (due_ns := net.next_ns()) < FOREVER_NS:
            now_ns = due_ns + (draw.below(3_000_000) if draw.random() < 0.1 else 0)
            done = net.finish_due(now_ns)
            live = [flow for flow in live if flow not in dict(done)]
            log.append((now_ns, done))
    return [*log, net.rates(), len(net), len(live)]


@needs_c
@pytest.mark.parametrize("seed", range(60))
def test_twins_give_identical_runs(seed: int) -> None:
    log = script(TWINS["c"], seed, 400)
    assert log == script(TWINS["python"], seed, 400)
    assert log[-1] == log[-2] and len(log) > 50


def test_rates_do_not_depend_on_history(net_class: Any) -> None:
    """A net that changed piece by piece has the bits of one that was built at once."""
    for seed in range(40):
        draw = Stream(seed, 0, "history")
        capacities = [float(draw.choice([1e6, 3e6, 7e6])) for _ in range(24)]
        net, flows = net_class(capacities), {}
        for _ in range(80):
            if flows and draw.random() < 0.35:
                flow = draw.choice(list(flows))
                net.cancel(0, flow)
                del flows[flow]
            else:
                first = draw.below(12) * 2  # pairs of links, now and then joined: components
                route = (first, first + 1) if draw.random() < 0.85 else draw.sample(range(24), 3)
                cap = draw.choice([INF, 2e5, 3e5])
                flows[net.start(0, route, 1e9, cap)] = (route, cap)
            net.next_ns()
        fresh = net_class(capacities)
        for route, cap in flows.values():
            fresh.start(0, route, 1e9, cap)
        assert list(net.rates().values()) == list(fresh.rates().values())


def test_bytes_delivered_equal_the_size(net_class: Any) -> None:
    draw = Stream(5, 0, "bytes")
    net = net_class([draw.uniform(1e8, 1e9) for _ in range(10)])
    size_B, sent_B, last_Bps = {}, {}, {}
    now_ns = done = 0
    for _ in range(30):
        size = draw.expovariate(1e-6)
        size_B[net.start(0, draw.sample(range(10), 3), size)] = size
    while len(net):
        due_ns = net.next_ns()
        for flow, rate in net.rates().items():
            sent_B[flow] = sent_B.get(flow, 0.0) + rate * (due_ns - now_ns) / 1e9
            last_Bps[flow] = rate
        now_ns = due_ns
        for flow, _ in net.finish_due(now_ns):
            # The end is rounded up to a nanosecond, so up to one nanosecond's bytes are over.
            over_B = sent_B[flow] - size_B[flow]
            assert -1e-9 * size_B[flow] <= over_B <= last_Bps[flow] * 1e-9 + 1e-9 * size_B[flow]
            done += 1
            if done < 300:
                size = draw.expovariate(1e-6)
                size_B[net.start(now_ns, draw.sample(range(10), 3), size)] = size
    assert done >= 300 and len(size_B) == done


def test_one_flow_takes_its_size_over_the_least_capacity(net_class: Any) -> None:
    net = net_class([4e9, 1e9, 2e9])
    assert net.start(1_000, [0, 1, 2], 5e6, tag="x") == 0
    assert net.next_ns() == 1_000 + 5_000_000
    assert net.rate_Bps(0) == net.link_rate_Bps(2) == 1e9
    assert net.remaining_B(1_000 + 2_000_000, 0) == 3e6
    assert net.finish_due(5_000_999) == []
    assert net.finish_due(5_001_000) == [(0, "x")]
    assert len(net) == 0 and net.next_ns() == FOREVER_NS


@pytest.mark.parametrize("count", [1, 2, 3, 29, 49, 201, 1000])
def test_n_flows_on_one_link_take_n_times(net_class: Any, count: int) -> None:
    # 29 and 201 are counts whose share rounds down, so that a bare ceiling would be 1 ns late.
    net = net_class([1e9])
    flows = [net.start(0, [0], 1e6, tag=i) for i in range(count)]
    assert net.next_ns() == count * 1_000_000
    assert net.finish_due(count * 1_000_000) == [(flow, flow) for flow in flows]


def test_a_cap_leaves_the_rest_to_the_others(net_class: Any) -> None:
    net = net_class([10.0])
    slow, fast = net.start(0, [0], 4.0, 2.0), net.start(0, [0], 80.0)
    assert net.rates() == {slow: 2.0, fast: 8.0}
    assert net.finish_due(net.next_ns()) == [(slow, None)]
    assert net.rate_Bps(fast) == 10.0


def test_an_empty_route_is_limited_by_its_cap_alone(net_class: Any) -> None:
    net = net_class([])
    capped, free, nothing = net.start(5, [], 10.0, 2.0), net.start(5, [], 1e9), net.start(5, (), 0)
    stalled = net.start(5, [], 1.0, 0.0)
    assert net.rates() == {capped: 2.0, free: INF, nothing: INF, stalled: 0.0}
    assert net.next_ns() == 5 and net.finish_due(5) == [(free, None), (nothing, None)]
    assert net.next_ns() == 5_000_000_005
    assert net.finish_due(net.next_ns()) == [(capped, None)] and net.next_ns() == FOREVER_NS


def test_a_dead_link_stalls_and_revives(net_class: Any) -> None:
    net = net_class([1e9, 1e9])
    flow = net.start(0, [0, 1], 1e6)
    net.set_capacity(400_000, 1, 0.0)
    assert net.next_ns() == FOREVER_NS and net.rate_Bps(flow) == 0.0
    assert net.remaining_B(9_000_000, flow) == 6e5
    net.set_capacity(10_000_000, 1, 2e9)
    assert net.next_ns() == 10_600_000
    assert net.cancel(10_100_000, flow) == 5e5 and len(net) == 0


def test_zero_bytes_and_tiny_rates_end_or_wait_but_never_spin(net_class: Any) -> None:
    net = net_class([1e-300, 1e9])
    nothing, huge, slow = net.start(7, [1], 0.0), net.start(7, [1], 1e308), net.start(7, [0], 1.0)
    assert net.next_ns() == 7 and net.finish_due(7) == [(nothing, None)]
    assert net.next_ns() == FOREVER_NS and net.rate_Bps(huge) == 1e9
    assert net.rate_Bps(slow) == 1e-300
    quick = net.start(7, [1], 5e-324)
    assert net.next_ns() <= 8 and net.finish_due(net.next_ns()) == [(quick, None)]


def test_a_late_finish_takes_each_end_at_its_own_time(net_class: Any) -> None:
    on_time, late = net_class([1e9]), net_class([1e9])
    for net in (on_time, late):
        for size_B in (3e6, 1e6, 2e6):
            net.start(0, [0], size_B)
    ends = []
    while len(on_time):
        ends += on_time.finish_due(on_time.next_ns())
    assert late.finish_due(10_000_000) == ends == [(1, None), (2, None), (0, None)]


def test_a_flow_that_is_due_stays_due_when_another_starts(net_class: Any) -> None:
    for count in (2, 3, 29, 58, 201):  # for some of them rounding leaves a crumb of a byte
        net = net_class([1e9])
        for _ in range(count):
            net.start(0, [0], 1e6)
        due_ns = net.next_ns()
        net.start(due_ns, [0], 1e6)
        assert net.remaining_B(due_ns, 0) == 0.0
        assert net.next_ns() == due_ns and len(net.finish_due(due_ns)) == count


BAD_CALLS = [
    ("start", (-1, [0], 1.0), "now_ns"),
    ("start", (1.5, [0], 1.0), "now_ns"),
    ("start", (FOREVER_NS, [0], 1.0), "now_ns"),
    ("start", (10**5000, [0], 1.0), "now_ns"),
    ("start", (9, [0], 1.0), "now_ns"),
    ("start", (10**12, [0], 1.0), "now_ns"),
    ("start", (10, 3, 1.0), "links"),
    ("start", (10, "01", 1.0), "links[0]"),
    ("start", (10, [0, 3], 1.0), "links[1]"),
    ("start", (10, [0, -1], 1.0), "links[1]"),
    ("start", (10, [0, 2**70], 1.0), "links[1]"),
    ("start", (10, [2, 0.0], 1.0), "links[1]"),
    ("start", (10, [2, 0, 2], 1.0), "links[2]"),
    ("start", (10, [0], math.nan), "size_B"),
    ("start", (10, [0], -1.0), "size_B"),
    ("start", (10, [0], INF), "size_B"),
    ("start", (10, [0], "1"), "size_B"),
    ("start", (10, [0], 10**400), "size_B"),
    ("start", (10, [0], None), "size_B"),
    ("start", (10, [0], 1.0, math.nan), "cap_Bps"),
    ("start", (10, [0], 1.0, -1.0), "cap_Bps"),
    ("start", (10, [0], 1.0, None), "cap_Bps"),
    ("cancel", (10, 99), "flow_id"),
    ("cancel", (10, "0"), "flow_id"),
    ("cancel", (10, -1), "flow_id"),
    ("cancel", (3, 0), "now_ns"),
    ("set_capacity", (10, 3, 1.0), "link"),
    ("set_capacity", (10, 0, -1.0), "capacity_Bps"),
    ("set_capacity", (10, 0, INF), "capacity_Bps"),
    ("set_capacity", (10, 0, math.nan), "capacity_Bps"),
    ("finish_due", (3,), "now_ns"),
    ("finish_due", ("soon",), "now_ns"),
    ("rate_Bps", (2**80,), "flow_id"),
    ("rate_Bps", (None,), "flow_id"),
    ("remaining_B", (3, 0), "now_ns"),
    ("link_rate_Bps", (-1,), "link"),
]


def refusal_of(net_class: Any, method: str, args: tuple[Any, ...]) -> SpecError:
    net = net_class([10.0, 20.0, 0.0])
    net.start(10, [0, 1], 40.0, tag="a")
    before = (net.rates(), net.next_ns(), len(net))
    with pytest.raises(SpecError) as caught:
        getattr(net, method)(*args)
    assert (net.rates(), net.next_ns(), len(net)) == before, "a refused call changed the net"
    assert net.start(10, [1], 1.0) == 1, "a refused call used up an id"
    return caught.value


@pytest.mark.parametrize(("method", "args", "path"), BAD_CALLS)
def test_bad_arguments_are_named(method: str, args: tuple[Any, ...], path: str) -> None:
    errors = [refusal_of(net_class, method, args) for net_class in TWINS.values()]
    assert {error.path for error in errors} == {path}
    assert len({str(error) for error in errors}) == 1, "the twins use different words"
    assert len(str(errors[0])) < 250 and errors[0].fix


@pytest.mark.parametrize(
    ("capacities", "path"),
    [(None, "capacities_Bps"), (4, "capacities_Bps"), ("ab", "capacities_Bps[0]"),
     ([1.0, math.nan], "capacities_Bps[1]"), ([-1.0], "capacities_Bps[0]"),
     ([1, 2, INF], "capacities_Bps[2]")],
)  # fmt: skip
def test_bad_capacities_are_named(net_class: Any, capacities: Any, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        net_class(capacities)
    assert caught.value.path == path


VALUES = st.one_of(
    st.integers(-3, 12),
    st.integers(),
    st.floats(),
    st.none(),
    st.text(max_size=2),
    st.lists(st.integers(-1, 4), max_size=4),
)
METHODS = ["start", "cancel", "set_capacity", "next_ns", "finish_due", "rate_Bps", "remaining_B",
           "link_rate_Bps", "rates"]  # fmt: skip


def answer(net: Any, method: str, args: list[Any]) -> str:
    try:
        return repr(getattr(net, method)(*args))
    except SpecError as error:
        return f"refused: {error}"
    except TypeError:  # the wrong number of arguments; Python's own words differ by version
        return "TypeError"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(METHODS), st.lists(VALUES, max_size=6)), max_size=25))
def test_misuse_never_crashes_and_twins_agree(calls: list[tuple[str, list[Any]]]) -> None:
    nets = [net_class([5.0, 0.0, 1e9, 7.0]) for net_class in TWINS.values()]
    for method, args in calls:
        assert len({answer(net, method, args) for net in nets}) == 1
        assert len({len(net) for net in nets}) == 1


def test_keywords_work_in_every_method(net_class: Any) -> None:
    net = net_class(capacities_Bps=[8.0])
    flow = net.start(now_ns=0, links=[0], size_B=16.0, cap_Bps=4.0, tag="t")
    assert net.rate_Bps(flow_id=flow) == net.link_rate_Bps(link=0) == 4.0
    assert net.remaining_B(now_ns=1_000_000_000, flow_id=flow) == 12.0
    net.set_capacity(now_ns=0, link=0, capacity_Bps=2.0)
    assert net.finish_due(now_ns=8_000_000_000) == [(flow, "t")]
    for call in (
        lambda: net.start(0, [0]),
        lambda: net.start(0, [0], 1.0, size_B=2.0),
        lambda: net.next_ns(3),
        lambda: net.cancel(0, 0, bogus=1),
    ):
        with pytest.raises(TypeError):
            call()


class Tag:
    """Something that can be weakly referenced and holds a net in a cycle."""

    net: Any = None


def test_tags_are_held_exactly_as_long_as_their_flow(net_class: Any) -> None:
    net, tag = net_class([1e9]), Tag()
    base = sys.getrefcount(tag)
    flows = [net.start(0, [0], 1e3, tag=tag) for _ in range(10)]
    assert sys.getrefcount(tag) > base
    net.cancel(0, flows[3])
    assert len(net.finish_due(net.next_ns())) == 9
    gc.collect()
    assert sys.getrefcount(tag) == base
    net.start(net.next_ns() if len(net) else 10**7, [0], 1e3, tag=tag)
    del net
    gc.collect()
    assert sys.getrefcount(tag) == base


def test_a_cycle_through_a_tag_is_collected(net_class: Any) -> None:
    tag = Tag()
    tag.net = net_class([1.0])
    tag.net.start(0, [0], 1.0, tag=tag)
    gone = weakref.ref(tag)
    del tag
    gc.collect()
    assert gone() is None


@needs_c
def test_a_hundred_thousand_flows_leave_no_memory_behind() -> None:
    net = TWINS["c"]([1e9] * 8)
    draw = Stream(9, 0, "leak")
    routes = [tuple(draw.sample(range(8), 3)) for _ in range(64)]

    def churn(count: int) -> None:
        now_ns = net.next_ns() if len(net) else 0
        for i in range(count):
            net.start(now_ns, routes[i % 64], 1e3 + i % 97, 1e8 + i % 5 if i % 3 else INF, object())
            if len(net) >= 40:
                now_ns = net.next_ns()
                net.finish_due(now_ns)
        while len(net) > 20:
            net.finish_due(net.next_ns())

    churn(2_000)
    gc.collect()
    tracemalloc.start()
    try:
        churn(1_000)
        first_B = tracemalloc.get_traced_memory()[0]
        churn(100_000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - first_B < 20_000
    finally:
        tracemalloc.stop()


def test_arguments_and_tags_may_call_back_into_the_net(net_class: Any) -> None:
    net = net_class([1e9, 1e9])

    class Sly:
        """An index that starts and cancels flows while it is being read."""

        def __index__(self) -> int:
            for _ in range(40):
                net.start(0, [0, 1], 1.0)
            net.cancel(0, 0)
            return 1

    class Last:
        """A tag whose end asks the net that drops it."""

        def __del__(self) -> None:
            seen.append((len(net), net.next_ns()))

    seen: list[Any] = []
    last = net.start(0, [Sly(), 0], 1.0, tag=Last())
    assert last == 40 and len(net) == 40
    net.cancel(0, last)
    gc.collect()
    assert len(seen) == 1 and seen[0][0] == 39
    assert len(net.finish_due(net.next_ns())) == 39 and len(net) == 0


def test_the_environment_chooses_the_python_twin() -> None:
    code = "from orrery.engines.virtual import flows; print(flows.KIND, flows.FlowNet.__module__)"
    environment = {**os.environ, "ORRERY_KERNEL": "python"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["python", "orrery.engines.virtual.flows_py"]
