"""The classics of `decentralised_optimum`: each first gives a known figure of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, PartError
from orrery.systems.train.baselines.adom_plus import ADOMPlus, Steps
from orrery.systems.train.baselines.continuized import Continuized
from orrery.systems.train.baselines.decentralised_gd import DecentralisedGD, resting_place
from orrery.systems.train.baselines.gradient_tracking import GradientTracking, contraction
from orrery.systems.train.baselines.msda import MSDA, Gossip
from orrery.systems.train.problems.decentralised_optimum import (
    DecentralisedOptimum,
    crossing,
    curve,
)
from orrery.systems.train.problems.gossip_graphs import graph_of, laplacian, spectrum
from orrery.systems.train.problems.minimiser import Minimiser, Rounds
from orrery.systems.train.problems.pairwise import Pair, owners
from orrery.systems.train.problems.ridge import Ridge
from orrery.world import Crash

GRAPHS = [("ring", 6), ("star", 5), ("complete", 5)]


def solved(part, graph="ring", nodes=6, world=None, **knobs):
    problem = DecentralisedOptimum(graph=graph, **knobs)
    return run(part, problem=problem, world=world or World.lan(nodes), seed=1)


def facts(graph, nodes, **knobs):
    """The shares, the mixing matrix and the Laplacian that a run of this kind has."""
    shares = DecentralisedOptimum(**knobs).function().shares(nodes)
    whole = laplacian(graph_of(graph, nodes))
    return shares, np.eye(nodes) - whole / np.linalg.eigvalsh(whole)[-1], whole


def rate_of(made, below=1e-2):
    """The factor by which the distance falls in a round, once it is below some value."""
    looks = [look for look in curve(made) if look[1] < below]
    first, last = looks[0], looks[-1]
    return math.exp(math.log(last[1] / first[1]) / (last[2] - first[2]))


# -- decentralised gradient descent


@pytest.mark.parametrize(("graph", "nodes"), GRAPHS)
@pytest.mark.parametrize("step", [0.5, 0.1])
def test_plain_descent_rests_where_the_closed_form_says(graph, nodes, step):
    made = solved(DecentralisedGD(step=step), graph, nodes)
    shares, mixing, _ = facts(graph, nodes)
    away = resting_place(shares, mixing, step) - shares.optimum()
    assert made.violations == []
    assert made.metrics["distance"] == pytest.approx(np.linalg.norm(away, axis=1).max(), rel=1e-3)


def test_the_bias_falls_with_the_step():
    shares, mixing, _ = facts("ring", 6)
    off = [
        np.linalg.norm(resting_place(shares, mixing, step) - shares.optimum(), axis=1).max()
        for step in (0.1, 0.01, 0.001)
    ]
    assert off[1] < 0.2 * off[0] and off[2] < 0.2 * off[1]


# -- gradient tracking


@pytest.mark.parametrize(("graph", "nodes"), GRAPHS)
def test_tracking_contracts_as_the_spectral_radius_says(graph, nodes):
    made = solved(GradientTracking(), graph, nodes, target=1e-12, look_every=2.0, weigh_every=3)
    shares, mixing, _ = facts(graph, nodes)
    step = 1.0 / spectrum(graph_of(graph, nodes)).condition
    assert made.violations == [] and made.metrics["sum_error"] < 1e-12
    # The slowest direction decides in the end; others that are nearly as slow fade beside it.
    assert math.log(rate_of(made, 1e-7)) == pytest.approx(
        math.log(contraction(shares, mixing, step)), rel=0.1
    )


def test_on_the_complete_graph_tracking_is_gradient_descent():
    shares, mixing, _ = facts("complete", 5)
    curvatures = np.linalg.eigvalsh(shares.hessians.mean(axis=0))
    assert contraction(shares, mixing, 1.0) == pytest.approx(np.abs(1 - curvatures).max())


# -- MSDA


@pytest.mark.parametrize(("graph", "nodes"), [("ring", 6), ("star", 5)])
def test_msda_contracts_as_nesterovs_iteration_on_the_dual(graph, nodes):
    made = solved(MSDA(), graph, nodes, target=1e-10, look_every=2.0, weigh_every=5)
    shares, _, whole = facts(graph, nodes)
    gossip = Gossip.of(spectrum(graph_of(graph, nodes)), 0.25, 1.0)
    # The Chebyshev polynomial by its definition: 1 - T_K(c2 (1 - c3 eigenvalue)) / T_K(c2).
    values, vectors = np.linalg.eigh(whole)
    cheb = np.polynomial.chebyshev.Chebyshev.basis(gossip.repeats)
    mixed = (vectors * (1 - cheb(gossip.c_2 * (1 - gossip.c_3 * values)) / cheb(gossip.c_2))) @ (
        vectors.T
    )
    inverse = np.linalg.inv(shares.hessians)
    size = shares.vectors.size
    numbers = shares.vectors.shape[1]
    step = np.zeros((size, size))
    for a in range(nodes):
        for b in range(nodes):
            place = (slice(a * numbers, a * numbers + numbers),
                     slice(b * numbers, b * numbers + numbers))  # fmt: skip
            step[place] = mixed[a, b] * inverse[b]
    stay = np.eye(size) - gossip.step * step
    m = gossip.momentum
    both = np.block([[(1 + m) * stay, -m * stay], [np.eye(size), np.zeros((size, size))]])
    moduli = np.sort(np.abs(np.linalg.eigvals(both)))
    # Duals of equal sum stay as they are; their factor is one and says nothing.
    radius = moduli[moduli < 1 - 1e-9].max()
    assert made.violations == [] and made.metrics["sum_error"] < 1e-12
    assert math.log(rate_of(made)) == pytest.approx(math.log(radius), rel=0.15)
    # And the theorem's own bound on the rate of the dual.
    assert radius <= 1 - 0.5 * math.sqrt(0.25)


# -- ADOM+, beside the formulas of the authors of DADAO's code


def reference(graph, nodes, rounds, multi):
    """The points after some rounds, by explicit formulas on whole matrices."""
    shares, _, whole = facts(graph, nodes)
    convex, smooth = 0.25, 1.0
    chi = spectrum(graph_of(graph, nodes)).condition
    gossip = whole / np.linalg.eigvalsh(whole)[-1]
    repeats = math.ceil(chi * math.log(2)) if multi else 1
    if repeats > 1:
        chi = 2.0
    kept = np.linalg.matrix_power(np.eye(nodes) - gossip, repeats)
    s = Steps.of(convex, smooth, chi)
    c_1 = (1 + s.eta * s.alpha) / ((1 + s.theta * s.beta) * (1 + s.eta * s.alpha) + s.theta * s.eta)
    c_2 = s.theta * s.beta + s.eta * (s.theta / (1 + s.eta * s.alpha))
    c_3 = s.theta * (s.beta * s.nu + s.eta * (s.nu + s.alpha) / (1 + s.eta * s.alpha))
    c_4 = s.theta / (1 + s.eta * s.alpha)
    x = y = z = m = x_f = y_f = z_f = np.zeros_like(shares.vectors)
    for _ in range(rounds):
        x_g = s.tau_1 * x + (1 - s.tau_1) * x_f
        slope = np.einsum("nij,nj->ni", shares.hessians, x_g) - shares.vectors
        y_g = s.sigma_1 * y + (1 - s.sigma_1) * y_f
        z_g = s.sigma_1 * z + (1 - s.sigma_1) * z_f
        pushed = (s.gamma / s.nu) * (y_g + z_g) + m
        y_new = c_1 * (y + slope * c_2 - x_g * c_3 - x * c_4 - (s.theta / s.nu) * (y_g + z_g))
        x_new = (x + s.eta * s.alpha * x_g - s.eta * (slope - s.nu * x_g - y_new)) / (
            1 + s.eta * s.alpha
        )
        z_new = z + s.gamma * s.delta * (z_g - z) - (np.eye(nodes) - kept) @ pushed
        m = kept @ pushed
        x_f = x_g + s.tau_2 * (x_new - x)
        y_f = y_g + s.sigma_2 * (y_new - y)
        z_f = z_g - s.zeta * (np.eye(nodes) - kept) @ (y_g + z_g)
        x, y, z = x_new, y_new, z_new
    return np.linalg.norm(x - shares.optimum(), axis=1).max()


class Counted(ADOMPlus):
    """Tells its point after each round."""

    async def round(self):
        await super().round()
        self.emit(round=self.rounds + 1, x=self.x.copy())


@pytest.mark.parametrize("multi", [True, False])
@pytest.mark.parametrize(("graph", "nodes"), [("ring", 6), ("star", 5)])
def test_adom_plus_goes_where_the_authors_formulas_go(graph, nodes, multi):
    made = solved(Counted(multi_consensus=multi), graph, nodes, weigh_every=5, target=0.05)
    optimum = facts(graph, nodes)[0].optimum()
    for rounds in (1, 7, 40):
        far = max(
            np.linalg.norm(r.values["x"] - optimum)
            for r in made.records
            if r.values.get("round") == rounds
        )
        assert far == pytest.approx(reference(graph, nodes, rounds, multi), rel=1e-9)
    assert made.violations == []


def test_multi_consensus_trades_messages_for_gradients():
    plain, multi = (solved(ADOMPlus(multi_consensus=on), "ring", 8) for on in (False, True))
    assert multi.metrics["gradients"] < 0.5 * plain.metrics["gradients"]
    repeats = math.ceil(spectrum(graph_of("ring", 8)).condition * math.log(2))
    sent = multi.metrics["messages"] / multi.metrics["gradients"]
    assert sent == pytest.approx(2 * repeats, rel=0.05)


# -- the continuized method


def test_the_continuized_method_is_as_fast_as_its_theorem():
    made = solved(Continuized(), "ring", 6, look_every=100.0, target=1e-8)
    graph = graph_of("ring", 6)
    numbers = spectrum(graph, [1.0 / 6] * 6)
    # exp(-eta t) for the squared error, with one meeting in the graph for a unit of time.
    eta = math.sqrt(0.25 / (numbers.chi_1 * 2 * numbers.chi_2))
    looks = [look for look in curve(made) if look[1] < 1e-1]
    first, last = looks[0], looks[-1]
    unit_s = 0.02 / 0.1 * 2 / 6
    rate = math.log(first[1] / last[1]) / ((last[0] - first[0]) / unit_s)
    assert made.violations == [] and made.metrics["sum_error"] < 1e-12
    assert 0.9 * eta / 2 <= rate <= 4 * eta
    # Each meeting costs two gradients and two messages; a refused one costs one and two.
    assert 0.8 <= made.metrics["gradients"] / made.metrics["messages"] <= 1.0


# -- the problem itself


def test_shares_have_the_curvature_that_is_said():
    for condition in (2.0, 50.0, 1e4):
        shares = Ridge(condition=condition, rows=5).shares(4)
        values = np.linalg.eigvalsh(shares.hessians)
        assert np.allclose(values[:, 0] * condition, 1.0) and np.allclose(values[:, -1], 1.0)
        slopes = np.einsum("nij,j->ni", shares.hessians, shares.optimum()) - shares.vectors
        assert np.allclose(slopes.sum(axis=0), 0.0, atol=1e-12)
        assert np.linalg.norm(slopes, axis=1).min() > 1e-3  # the shares disagree


@pytest.mark.parametrize("name", ["ring", "grid", "star", "barbell", "complete", "cliques"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 12])
def test_graphs_are_those_of_a_library(name, nodes):
    nx = pytest.importorskip("networkx")
    graph = graph_of(name, nodes)
    made = nx.Graph(list(graph.edges))
    made.add_nodes_from(range(nodes))
    assert len(made) == nodes and nx.is_connected(made)
    numbers = spectrum(graph)
    if nodes > 1:
        assert 1 / numbers.chi_1 == pytest.approx(nx.algebraic_connectivity(made), rel=1e-5)
        resistances = [nx.resistance_distance(made, a, b) for a, b in graph.edges]
        assert 2 * numbers.chi_2 == pytest.approx(max(resistances))
    if name == "barbell" and nodes == 12:
        assert nx.is_isomorphic(made, nx.barbell_graph(4, 4))


def test_every_edge_has_one_owner_and_a_hub_owns_none():
    star, ring = graph_of("star", 8), graph_of("ring", 8)
    assert 0 not in owners(star, [1.0] * 7)
    assert sorted(owners(ring, [1.0] * 8)) == list(range(8))


def test_a_pair_drifts_back_to_where_it_was():
    rows, pair = np.array([[1.0, 2.0], [5.0, -3.0]]), Pair(0.3, 0.1)
    assert np.allclose(pair.drifted(pair.drifted(rows, 2.5), -2.5), rows)
    slope = (pair.drifted(rows, 1e-7) - rows) / 1e-7
    assert np.allclose(slope, [0.3 * (rows[1] - rows[0]), 0.1 * (rows[0] - rows[1])], atol=1e-5)


def test_a_crossing_is_between_two_looks():
    looks = [(1.0, 1.0, 10.0, 0.0), (2.0, 1e-2, 20.0, 2.0), (3.0, 1e-4, 30.0, 4.0)]
    assert crossing(looks, 1e-3) == pytest.approx((2.5, 6e-3, 25.0, 3.0), rel=0.2)
    assert crossing(looks, 1e-9) == looks[-1]
    assert crossing(looks, 2.0) == looks[0]


class Stubborn(Minimiser):
    """Stays at zero."""

    def point(self):
        return self.zero


class Runaway(Stubborn):
    """Goes off to infinity."""

    def point(self):
        return self.zero + 10.0 ** min(self.now * 10, 300)


class Unbalanced(MSDA):
    """Says that its dual adds up to something."""

    def invariant(self):
        return self.dual + 1e-6


def test_whoever_does_not_get_there_is_seen():
    for part in (Stubborn(), Runaway()):
        made = solved(part, most=50)
        assert [violation.kind for violation in made.violations] == ["not_converged"]
    made = solved(Unbalanced(), weigh_every=1)
    assert [violation.kind for violation in made.violations] == ["sum_not_zero"]


def test_rounds_stand_still_when_a_node_dies():
    world = World.lan(6).with_faults(Crash(node=2, at_s=0.1))
    made = solved(MSDA(), world=world, most=50)
    assert "not_converged" in {violation.kind for violation in made.violations}


def test_bad_input_is_named():
    for knobs in ({"graph": "torus"}, {"condition": 1.0}, {"condition": float("nan")},
                  {"target": 0.0}, {"numbers": 0}, {"most": 0}, {"kappa": 3.0}):  # fmt: skip
        with pytest.raises(KnobError):
            DecentralisedOptimum(**knobs)
    with pytest.raises(KnobError, match="2 or more"):
        solved(MSDA(), numbers=1)
    with pytest.raises(KnobError, match="below"):
        solved(MSDA(), numbers=2000)
    with pytest.raises(KnobError, match="not connected"):
        spectrum(graph_of("ring", 4).without((0, 1), (2, 3)))
    with pytest.raises(PartError, match="point"):
        Minimiser().point()
    with pytest.raises(PartError, match="begin"):
        Rounds().begin()
