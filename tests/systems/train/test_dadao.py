"""DADAO: its acceptance lines, each with what fails when a mechanism is off."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.base.rand import Stream
from orrery.systems.train.baselines.adom_plus import ADOMPlus
from orrery.systems.train.baselines.decentralised_gd import DecentralisedGD
from orrery.systems.train.baselines.gradient_tracking import GradientTracking
from orrery.systems.train.dadao import (
    DADAO,
    Constants,
    Drift,
    cheapest,
    cost_of,
    expm,
    optimised_rates,
    sufficient,
    uniform_rates,
)
from orrery.systems.train.problems.decentralised_optimum import DecentralisedOptimum
from orrery.systems.train.problems.gossip_graphs import graph_of, spectrum
from orrery.world import Crash, Drop, Slow

# The graphs of the lines, each with the fewest nodes that show its shape.
GRAPHS = [("ring", 8), ("grid", 9), ("star", 8), ("barbell", 9), ("complete", 8)]


@lru_cache(maxsize=64)
def solved(part, graph="ring", nodes=8, seed=1, world=None, engine="virtual", **knobs):
    """A run; those that several tests look at are made once."""
    problem = DecentralisedOptimum(graph=graph, **knobs)
    return run(
        part, problem=problem, world=world or World.lan(nodes), seed=seed, engine=engine
    )  # fmt: skip


def emitted(made, name):
    """Every (node, value) that was emitted under a name."""
    return [(r.node, r.values[name]) for r in made.records if name in r.values]


def slope_of(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# -- line 1: every node gets to the optimum, and z adds up to zero


class HalfMeetings(DADAO):
    """The end that answers forgets z~."""

    def settle(self, edge, number, change):
        before = self.state[5].copy()
        super().settle(edge, number, change)
        self.state[5] = before


class LateAsNow(DADAO):
    """The owner applies its side when it hears of it, as if no time had passed."""

    def late_kick(self, spike, change, ticks):
        return super().late_kick(spike, change, 0)


@pytest.mark.works_when("dadao", 1)
@pytest.mark.parametrize(("graph", "nodes"), GRAPHS)
def test_every_node_finds_the_optimum_and_z_adds_up_to_zero(graph, nodes):
    made = solved(DADAO(), graph, nodes, target=1e-8, weigh_every=5)
    assert made.violations == []
    assert made.metrics["distance"] <= 1e-8
    sums = [value for _, value in emitted(made, "sum_error")]
    # Looked at on the way too, where the vectors are still large.
    assert len(sums) > 5 and max(sums) < 1e-9


@pytest.mark.slow
@pytest.mark.works_when("dadao", 1)
@pytest.mark.parametrize(
    ("graph", "nodes"),
    [("ring", 20), ("grid", 25), ("star", 50), ("barbell", 20), ("complete", 30)],
)
def test_larger_graphs(graph, nodes):
    # A long ring meets so often that a round trip must be short beside a gradient.
    made = solved(DADAO(rates="uniform"), graph, nodes, target=1e-8, weigh_every=20, gradient_s=0.1)
    assert made.violations == [] and made.metrics["sum_error"] < 1e-9


@pytest.mark.works_when("dadao", 1)
@pytest.mark.parametrize("part", [HalfMeetings, LateAsNow])
def test_a_sum_that_is_off_is_seen(part):
    made = solved(part(), target=1e-3, weigh_every=2, most=1000)
    assert "sum_not_zero" in {violation.kind for violation in made.violations}


# -- line 2: how the counts grow

CONDITIONS = (10.0, 100.0, 1000.0)


def gradients(part, conditions, **knobs):
    counts = []
    for condition in conditions:
        made = solved(part, condition=condition, target=1e-6, look_every=20.0, **knobs)
        assert made.violations == []
        counts.append(made.metrics["gradients"])
    return counts


@pytest.mark.works_when("dadao", 2)
def test_gradients_grow_with_the_root_of_the_condition_number(record_property):
    counts = gradients(DADAO(), CONDITIONS, nodes=4)
    record_property("gradients", counts)
    assert slope_of(CONDITIONS, counts) == pytest.approx(0.5, abs=0.1)
    plain = gradients(GradientTracking(), CONDITIONS, graph="complete", nodes=3)
    assert slope_of(CONDITIONS, plain) >= 0.85


@pytest.mark.slow
@pytest.mark.works_when("dadao", 2)
def test_gradients_up_to_a_condition_of_ten_thousand():
    conditions = (*CONDITIONS, 1e4)
    counts = gradients(DADAO(), conditions, nodes=8)
    assert slope_of(conditions, counts) == pytest.approx(0.5, abs=0.1)


@pytest.mark.works_when("dadao", 2)
def test_plain_descent_never_gets_there():
    made = solved(DecentralisedGD(), "complete", 4, condition=10.0, target=1e-6)
    assert made.metrics["distance"] > 1e-2


def messages_over_root(sizes, **knobs):
    found = []
    for nodes in sizes:
        made = solved(DADAO(rates="uniform"), "ring", nodes, target=1e-2, **knobs)
        numbers = spectrum(graph_of("ring", nodes))
        assert made.violations == []
        found.append(made.metrics["messages"] / math.sqrt(numbers.chi_1 * numbers.chi_2))
    return found


@pytest.mark.works_when("dadao", 2)
def test_messages_are_linear_in_the_root_of_the_graphs_numbers():
    found = messages_over_root((8, 16, 32))
    assert max(found) / min(found) <= 1.2


@pytest.mark.slow
@pytest.mark.works_when("dadao", 2)
def test_messages_on_a_ring_of_128():
    found = messages_over_root((8, 32, 128), gradient_s=0.2)
    assert max(found) / min(found) <= 1.2


# -- line 3: the graph does not change the gradients


class Starved(DADAO):
    """Gossips at a twentieth of the sufficient rates."""

    def plan(self):
        return [rate / 20 for rate in super().plan()]


@pytest.mark.works_when("dadao", 3)
def test_a_ring_takes_about_the_gradients_of_a_complete_graph():
    ring = solved(DADAO(), "ring", 8, target=1e-8, weigh_every=5)
    complete = solved(DADAO(), "complete", 8, target=1e-8, weigh_every=5)
    assert ring.metrics["gradients"] <= 1.5 * complete.metrics["gradients"]


@pytest.mark.works_when("dadao", 3)
def test_starved_of_gossip_it_does_not():
    ring = solved(Starved(), "ring", 8, target=1e-8, most=1000)
    complete = solved(DADAO(), "complete", 8, target=1e-8, weigh_every=5)
    assert ring.violations or ring.metrics["gradients"] > 1.5 * complete.metrics["gradients"]


# -- line 4: slow links, slow nodes, no barrier


def tailed(sigma):
    return World.lan(6, latency_s=1e-3, jitter=0.0, latency_sigma=sigma)


@pytest.mark.works_when("dadao", 4)
def test_the_lead_over_rounds_grows_with_the_tail_of_the_links(record_property):
    leads = []
    for sigma in (0.0, 1.0, 2.0):
        ours, theirs = (
            solved(part, world=tailed(sigma), target=1e-4) for part in (DADAO(), ADOMPlus())
        )
        assert ours.violations == [] and theirs.violations == []
        leads.append(theirs.metrics["time_s"] / ours.metrics["time_s"])
    record_property("leads", leads)
    print("ADOM+ over DADAO in virtual time, by tail:", leads)
    assert 1.0 < leads[0] < leads[1] < leads[2]


@pytest.mark.works_when("dadao", 4)
def test_one_slow_node_does_not_stop_it(record_property):
    world = World.lan(8).with_faults(Slow(node=3, factor=4.0))
    made = solved(DADAO(), world=world, target=1e-6)
    calm = solved(DADAO(), target=1e-6)
    record_property("times", (made.metrics["time_s"], calm.metrics["time_s"]))
    assert made.violations == [] and made.metrics["distance"] <= 1e-6
    assert made.metrics["grads_per_s"] < 0.95 * calm.metrics["grads_per_s"]


class TwoAtOnce(DADAO):
    """Starts meetings with two neighbours at a time."""

    async def main(self):
        self.spawn(self.meet())
        await super().main()


@pytest.mark.works_when("dadao", 4)
def test_no_node_ever_waits_on_more_than_one_peer():
    assert solved(DADAO(), world=tailed(2.0), target=1e-4).metrics["waits_on"] == 1
    assert solved(ADOMPlus(), world=tailed(2.0), target=1e-4).metrics["waits_on"] == 2
    assert solved(TwoAtOnce(), graph="complete", target=1e-2).metrics["waits_on"] == 2


# -- line 5: rates


@pytest.mark.works_when("dadao", 5)
@pytest.mark.parametrize(("graph", "nodes"), [*GRAPHS, ("cliques", 12)])
def test_optimised_rates_never_need_more_messages(graph, nodes):
    made = graph_of(graph, nodes)
    even, best = uniform_rates(made), optimised_rates(made)
    assert best.sum() <= 1.02 * even.sum()
    # Both suffice, by the same measure.
    for rates in (even, best):
        numbers = spectrum(made, rates)
        assert 2 * numbers.chi_1 * numbers.chi_2 == pytest.approx(1.0, rel=1e-6)
    # No shape nearby is cheaper: it is a minimum.
    if not np.allclose(best, best[0]):
        rng = Stream(0, "test", "rates").numpy()
        for _ in range(20):
            other = best * np.exp(0.05 * rng.standard_normal(best.size))
            assert cost_of(made, other) >= 0.999 * best.sum()


def messages(graph, nodes, **knobs):
    return [
        solved(DADAO(rates=rates), graph, nodes, target=1e-3, **knobs).metrics["messages"]
        for rates in ("optimised", "uniform")
    ]


@pytest.mark.works_when("dadao", 5)
@pytest.mark.parametrize(("graph", "nodes"), GRAPHS)
def test_runs_with_optimised_rates_send_no_more(graph, nodes):
    best, even = messages(graph, nodes)
    assert best <= 1.02 * even


@pytest.mark.works_when("dadao", 5)
def test_two_cliques_with_a_bridge_save_more_than_half(record_property):
    best, even = messages("cliques", 12)
    record_property("saving", even / best)
    assert even >= 2.0 * best


@pytest.mark.works_when("dadao", 5)
def test_a_star_gains_nothing():
    best, even = messages("star", 8)
    assert best == even
    assert np.array_equal(optimised_rates(graph_of("star", 8)), uniform_rates(graph_of("star", 8)))


def test_the_program_meets_its_bounds_and_they_bind():
    graph = graph_of("cliques", 12)
    rates = cheapest(graph, 0.8)
    numbers = spectrum(graph, rates)
    assert rates.min() >= 0
    assert 1.0 / numbers.chi_1 >= 1.0 - 1e-6
    assert 2.0 * numbers.chi_2 <= 0.8 + 1e-6
    assert cheapest(graph, 0.4).sum() > rates.sum() > cheapest(graph, 1.6).sum()
    # On a tree an edge's resistance is one over its rate, so a tight bound gives all rates.
    assert np.allclose(cheapest(graph_of("star", 5), 0.01), 100.0, rtol=1e-5)
    # With no bound on resistances to speak of, a pair has least eigenvalue 2 w >= 1.
    assert cheapest(graph_of("ring", 2), 1e6) == pytest.approx([0.5], rel=1e-5)


# -- line 6: deaths


def books(part=DADAO, **knobs):
    """A run in which every node tells at each look whether z is what came over its edges."""

    class Telling(part):
        """Adds up its books whenever it is looked at."""

        def point(self):
            found = super().point()
            came = sum((self._ledger_now(edge) for edge in self.edges.values()), 0.0)
            self.emit(off=float(np.abs(self.rows() - came).max()))
            return found

    return solved.__wrapped__(Telling(), **knobs)


@pytest.mark.works_when("dadao", 6)
@pytest.mark.parametrize("at_s", [0.5, 0.7013, 0.9127, 1.2291])
def test_whenever_a_peer_dies_z_is_updated_in_full_or_not_at_all(at_s):
    world = World.lan(6).with_faults(Crash(node=2, at_s=at_s))
    made = books(world=world)
    # Survivors are at the optimum of the survivors, and their z adds up to zero.
    assert made.violations == [] and made.metrics["sum_error"] < 1e-9
    assert max(value for _, value in emitted(made, "off")) < 1e-9
    assert {node for node, peer in emitted(made, "taken_out") if peer == 2} == {1, 3}


@pytest.mark.works_when("dadao", 6)
def test_half_an_update_is_seen():
    made = books(HalfMeetings, most=300)
    assert max(value for _, value in emitted(made, "off")) > 1e-6


class Forgetful(DADAO):
    """Keeps what came over an edge that is lost."""

    def _take_out(self, edge):
        edge.ledger = np.zeros_like(edge.ledger)


@pytest.mark.works_when("dadao", 6)
def test_without_the_books_the_survivors_go_astray():
    world = World.lan(6).with_faults(Crash(node=2, at_s=1.0))
    made = solved(Forgetful(), world=world, most=800)
    assert {v.kind for v in made.violations} == {"not_converged", "sum_not_zero"}


@pytest.mark.works_when("dadao", 6)
def test_it_converges_when_an_edge_is_gone():
    world = World.lan(8).with_faults(Drop(p=1.0, link=(2, 3), at_s=1.0))
    made = solved(DADAO(), world=world, target=1e-6)
    assert made.violations == [] and made.metrics["sum_error"] < 1e-9


@pytest.mark.slow
@pytest.mark.works_when("dadao", 6)
@pytest.mark.parametrize(
    "fault", [Crash(node=2, at_s=1.5), Drop(p=1.0, link=(2, 3), at_s=1.5)], ids=["kill", "edge"]
)
def test_real_processes_lose_a_peer_or_an_edge(fault):
    world = World.lan(5).with_faults(fault)
    made = books(world=world, engine="processes", target=1e-6)
    assert made.violations == [] and made.metrics["sum_error"] < 1e-9
    assert max(value for _, value in emitted(made, "off")) < 1e-9
    assert made.metrics["waits_on"] == 1


# -- the parts


def test_the_exponential_is_that_of_a_library():
    linalg = pytest.importorskip("scipy.linalg")
    rng = Stream(0, "test", "expm").numpy()
    for condition in (2.0, 10.0, 1e4):
        matrix = np.array(Constants.of(1.0 / condition, 1.0, 2.0).matrix())
        for units in (0.0, 1e-6, 0.3, 7.0, 100.0):
            assert np.allclose(expm(matrix * units), linalg.expm(matrix * units), atol=1e-11)
    stack = rng.standard_normal((5, 3, 3))
    assert np.allclose(expm(stack), [linalg.expm(one) for one in stack])


@pytest.mark.parametrize("ticks", [0, 1, 1023, 1024, 777_777, (1 << 20) + 3, 12_345_678_901])
def test_a_drift_is_the_exponential_of_its_length(ticks):
    matrix = np.array(Constants.of(0.1, 1.0, 2.0).matrix())
    state = Stream(0, "test", "drift").numpy().standard_normal((6, 3))
    drift = Drift(matrix, 1 << 20)
    assert np.allclose(drift.moved(state, ticks), expm(matrix * (ticks / (1 << 20))) @ state)
    first = drift.moved(state, ticks // 3)
    assert np.allclose(drift.moved(first, ticks - ticks // 3), drift.moved(state, ticks))


def test_rates_of_any_shape_can_be_made_sufficient():
    graph = graph_of("grid", 9)
    rates = sufficient(graph, np.linspace(1.0, 3.0, len(graph.edges)))
    numbers = spectrum(graph, rates)
    assert 2 * numbers.chi_1 * numbers.chi_2 == pytest.approx(1.0)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_few_nodes_are_enough(nodes):
    made = solved(DADAO(), "complete", nodes, target=1e-3)
    assert made.violations == []


def test_bad_input_is_named():
    for knobs in ({"load": 0.0}, {"load": 1.5}, {"load": float("nan")}, {"patience_s": -1.0},
                  {"rates": "best"}, {"gamma": 1.0}):  # fmt: skip
        with pytest.raises(KnobError):
            DADAO(**knobs)
    with pytest.raises(PartError, match="at most 600"):
        optimised_rates(graph_of("complete", 50))
    with pytest.raises(PartError, match="finite"):
        expm(np.array([[math.inf]]))
    with pytest.raises(PartError, match="square"):
        expm(np.zeros((2, 3)))
    with pytest.raises(PartError, match="above 0"):
        cheapest(graph_of("ring", 4), 0.0)
