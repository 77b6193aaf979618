"""`DirectedAuth`: conditions, guarantees, attacks and signatures, as its acceptance lines ask."""

from __future__ import annotations

import itertools

import pytest

from orrery import World, run
from orrery.base.errors import FaultError, KnobError, PartError
from orrery.base.rand import Stream
from orrery.engines.virtual.engine import Engine
from orrery.lab.checking import check
from orrery.parts.byzantine import Liar, build
from orrery.systems.protocols.baselines.unsigned_directed import three_reach, tseng_vaidya
from orrery.systems.protocols.directed_byzantine_auth import DirectedAuth, brute, conditions
from orrery.systems.protocols.directed_byzantine_auth import attack as attacks
from orrery.systems.protocols.directed_byzantine_auth.adversary import STRATEGIES
from orrery.systems.protocols.directed_byzantine_auth.approximate import (
    ApproximateMachine,
    Report,
    Said,
)
from orrery.systems.protocols.directed_byzantine_auth.exact import (
    ExactMachine,
    Plan,
    lockstep,
    text_of,
)
from orrery.systems.protocols.directed_byzantine_auth.steered import steer
from orrery.systems.protocols.problems.digraphs import (
    Digraph,
    all_digraphs,
    bits,
    complete,
    drawn,
    renamed,
    ring,
    thinned,
    triangles,
)
from orrery.systems.protocols.problems.directed_consensus import (
    DirectedConsensus,
    every_fault_set,
)
from orrery.systems.protocols.problems.directed_node import DirectedNode
from orrery.systems.protocols.problems.signing import RealKeys, TokenKeys
from orrery.world import Byzantine, Clog, Crash, Reorder

MINE = "directed-byzantine-auth"
LIES = ("silence", "equivocate", "replay", "withhold", "randomised")
EXACT, APPROXIMATE = DirectedAuth(), DirectedAuth(timing="asynchronous")
QUICK = DirectedAuth(tight=True)


def on_machines(graph, f, liars, lie, seed, machine=ExactMachine, tight=False):
    """Whether fault-free machines agree, validly, in a loop without an engine."""
    n, rng = graph.n, Stream(seed, 0, "inputs")
    inputs = [rng.below(2) for _ in range(n)]
    if rng.below(2):  # all fault-free inputs equal, the liars' not
        inputs = [1 - inputs[0] if v in liars else inputs[0] for v in range(n)]
    bent = {v: build((lie,), Liar(v, n, Stream(seed, v, "lies"), lambda: 0.0), STRATEGIES)
            for v in liars}  # fmt: skip
    plan = Plan.of(graph, f, tight)
    ends = lockstep([machine(v, plan, inputs[v], TokenKeys(v)) for v in range(n)], bent)
    good = [v for v in range(n) if v not in liars]
    decided = {ends[v] for v in good}
    proposed = {inputs[v] for v in good}
    return len(decided) == 1 and (len(proposed) > 1 or decided == proposed)


def on_engine(part, problem, n, liars, lies, seed):
    """The same on the virtual engine, with the problem's checker; gives the violations."""
    world = World.lan(n)
    if liars:
        world = world.with_faults(Byzantine(node=liars, strategies=lies))
    outcome = Engine(problem.alone(part, world, seed), world=world, seed=seed, part=part).run()
    return problem.check(outcome)


def accepted(n, f, seed):
    """A random graph from which the condition lets no further link be taken, or nearly none."""
    rng = Stream(seed, n, "graph")
    good = lambda graph: conditions.synchronous(graph, f)  # noqa: E731
    return thinned(complete(n), rng.choice((0.0, 0.4, 0.6, 0.8)), rng, good)


# -- line 1: exact consensus


SMALL = [g for n in (3, 4) for g in all_digraphs(n) if conditions.synchronous(g, 1)]


@pytest.mark.works_when(MINE, 1)
def test_exact_consensus_on_all_small_digraphs_for_all_fault_sets_and_lies():
    assert len(SMALL) == 20
    for graph, liars in itertools.product(SMALL, range(-1, 4)):
        if liars >= graph.n:
            continue
        who = (liars,) if liars >= 0 else ()
        for seed, lie in enumerate(LIES if who else LIES[:1]):
            inputs = ("random", "equal")[(liars + seed) % 2]
            problem = DirectedConsensus(graph="links", links=graph.links, inputs=inputs)
            found = on_engine(EXACT, problem, graph.n, who, (lie,), seed)
            assert found == [], (graph.links, who, lie, found[0])


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
def test_exact_consensus_on_twenty_random_digraphs():
    shapes = [(5, 1), (6, 1), (7, 1), (5, 2), (6, 1), (5, 1), (7, 1), (6, 2), (5, 1), (6, 1)]
    tried = 0
    for seed in range(20):
        n, f = (7, 2) if seed == 17 else shapes[seed % 10]
        graph = accepted(n, f, seed)
        for i, liars in enumerate(every_fault_set(n, f)):
            for lie in LIES if liars else LIES[:1]:
                assert on_machines(graph, f, liars, lie, 100 * seed + i, tight=n == 7)
                tried += 1
    assert tried > 800


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("part", range(6))
def test_exact_consensus_on_three_hundred_random_digraphs(part):
    for seed in range(1000 + 50 * part, 1050 + 50 * part):
        rng = Stream(seed, 0, "shape")
        n = 5 + rng.below(3)
        f = 1 + rng.below(2)
        graph = accepted(n, f, seed)
        sets = every_fault_set(n, f)
        if n == 7:
            sets = rng.sample(sets, 4)
        for i, liars in enumerate(sets):
            for lie in LIES if liars else LIES[:1]:
                assert on_machines(graph, f, liars, lie, 100 * seed + i), (graph.links, liars, lie)


@pytest.mark.works_when(MINE, 1)
def test_every_small_violating_graph_is_broken_by_its_attack():
    broken = 0
    for n in (2, 3, 4):
        for graph in all_digraphs(n):
            attack = attacks.on_exact(graph, 1)
            assert (attack is None) == brute.synchronous(graph, 1)
            if attack is None:
                assert attacks.broken_exact(graph, 1) == []
                continue
            endings = [attacks.play_exact(graph, 1, scene, tight=True) for scene in attack.scenes]
            assert attacks.same_views(attack, endings)
            wrong = [attacks.wrong(scene, ending, 0.0)
                     for scene, ending in zip(attack.scenes, endings, strict=True)]  # fmt: skip
            assert any(wrong), graph.links
            assert all(scene.faulty.bit_count() <= 1 for scene in attack.scenes)
            broken += 1
    assert broken == 3 + 15 + 199


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize(
    ("graph", "f"),
    [(triangles(joined=False), 1), (ring(5), 1), (complete(4), 2), (complete(2), 1),
     (Digraph.of(5, [(a, b) for a in (0, 1) for b in range(5) if a != b]), 1)],
    ids=["bridge", "ring", "halves", "pair", "small source"],
)  # fmt: skip
def test_the_attack_breaks_the_nodes_on_the_engine_too(graph, f):
    attack = attacks.on_exact(graph, f)
    kinds = []
    for scene in attack.scenes:
        problem = DirectedConsensus(
            graph="links", links=graph.links, tolerated=f, strict=False, inputs="values",
            values=tuple(map(float, scene.inputs)),
        )  # fmt: skip
        world = World.lan(graph.n).with_faults(*scene.faults(graph.n))
        made = run(EXACT, problem=problem, world=world)
        kinds += [each.kind for each in made.violations]
    assert kinds and set(kinds) <= {"disagreement", "invalid_decision"}


# -- line 2: the conditions


@pytest.mark.works_when(MINE, 2)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_checkers_are_the_definitions_on_all_small_digraphs(n):
    for graph in all_digraphs(n):
        for f in range(n):
            answer = conditions.synchronous(graph, f)
            assert answer == brute.synchronous(graph, f) == brute.one_source(graph, f)
            assert answer == (conditions.synchronous_flaw(graph, f) is None)
            assert conditions.asynchronous(graph, f) == brute.asynchronous(graph, f)


@pytest.mark.works_when(MINE, 2)
def test_the_checkers_are_the_definitions_on_random_digraphs():
    rng, answers = Stream(5, 0, "graphs"), []
    for i in range(150):
        n, f = 4 + i % 4, 1 + i % 2
        graph = drawn(n, 0.3 + 0.7 * rng.random(), rng)
        answers.append((conditions.synchronous(graph, f), conditions.asynchronous(graph, f)))
        assert answers[-1] == (brute.synchronous(graph, f), brute.asynchronous(graph, f))
    assert {True, False} == {a for a, _ in answers} == {b for _, b in answers}


@pytest.mark.works_when(MINE, 2)
def test_known_points():
    for f in (1, 2, 3):
        assert conditions.synchronous(complete(2 * f + 1), f)
        assert not conditions.synchronous(complete(2 * f), f)
        assert conditions.asynchronous(complete(3 * f + 1), f)
        assert not conditions.asynchronous(complete(3 * f), f)
        assert three_reach(complete(3 * f + 1), f) and not three_reach(complete(3 * f), f)
    for n in range(3, 9):
        assert not conditions.synchronous(ring(n), 1)
        assert conditions.synchronous(ring(n), 0)
    assert conditions.synchronous(triangles(), 1)
    assert not conditions.synchronous(triangles(joined=False), 1)
    assert not tseng_vaidya(triangles(), 1) and not tseng_vaidya(triangles(joined=False), 1)


def test_conditions_do_not_depend_on_names_and_more_links_never_hurt():
    rng = Stream(9, 0, "monotone")
    for _ in range(40):
        graph = drawn(6, 0.4 + 0.5 * rng.random(), rng)
        names = list(range(6))
        rng.shuffle(names)
        more = Digraph.of(6, {*graph.links, (0, 5), (3, 1)})
        for holds in (conditions.synchronous, conditions.asynchronous):
            assert holds(graph, 1) == holds(renamed(graph, tuple(names)), 1)
            assert holds(more, 1) or not holds(graph, 1)
            assert holds(graph, 0) or not holds(graph, 1)


@pytest.mark.works_when(MINE, 2)
def test_signatures_need_fewer_links():
    rng = Stream(3, 0, "links")
    ours = thinned(complete(7), 0.0, rng, lambda g: conditions.synchronous(g, 1))
    theirs = thinned(complete(7), 0.0, rng, lambda g: three_reach(g, 1))
    # Every node must hear two others with signatures, and three without.
    assert len(ours.links) == 2 * 7 and len(theirs.links) == 3 * 7


# -- line 3: approximate consensus


def storm(n, f, seeds, part=APPROXIMATE):
    """Random delivery orders with up to f liars; the violations found."""
    found = []
    for seed in seeds:
        rng = Stream(seed, n, "storm")
        liars = tuple(sorted(rng.sample(range(n), rng.below(f + 1))))
        world = World.chosen(n)
        if liars:
            lie = rng.choice((*LIES, "forge", "mutate"))
            world = world.with_faults(Byzantine(node=liars, strategies=(lie,)))
        problem = DirectedConsensus(graph="random", tolerated=f, rounds=4, epsilon=2.0**-4)
        outcome = Engine(problem.alone(part, world, seed), world=world, seed=seed, part=part).run()
        found += problem.check(outcome)
    return found


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize(("n", "f", "runs"), [(4, 1, 40), (5, 1, 20), (6, 1, 15), (7, 2, 6)])
def test_the_range_halves_in_random_orders_of_delivery(n, f, runs):
    assert storm(n, f, range(runs)) == []


def steered(n, f, seeds, machine=ApproximateMachine):
    """The largest shrinking factor of a round under the order of delivery that does most harm."""
    most = 0.0
    for seed in seeds:
        rng = Stream(seed, n, "graph")
        good = lambda graph: conditions.asynchronous(graph, f)  # noqa: E731
        graph = thinned(complete(n), rng.choice((0.0, 0.5, 1.0)), rng, good)
        liars = rng.sample(range(n), f)
        rows = steer(graph, f, liars, seed, machine=machine)
        assert {len(row) for row in rows} == {n - f}, "somebody is blocked"
        widths = [max(row) - min(row) for row in rows]
        for row, wider, narrower in zip(rows[1:], widths, widths[1:], strict=False):
            assert min(rows[0]) - 1e-9 <= min(row) <= max(row) <= max(rows[0]) + 1e-9
            most = max(most, narrower / wider if wider else 0.0)
    return most


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize(("n", "f", "runs"), [(4, 1, 60), (5, 1, 40), (6, 1, 30), (7, 2, 20)])
def test_the_range_halves_and_no_more_in_the_order_that_does_most_harm(n, f, runs):
    assert 0.4 < steered(n, f, range(runs)) <= 0.5 + 1e-9


@pytest.mark.slow
@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize(("n", "f", "runs"), [(4, 1, 1000), (6, 1, 400), (7, 2, 100)])
def test_the_range_halves_in_many_more_orders(n, f, runs):
    assert storm(n, f, range(1000, 1000 + runs)) == []
    assert steered(n, f, range(1000, 1000 + runs)) == pytest.approx(0.5)


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize(("n", "f"), [(4, 1), (7, 2)])
def test_f_silent_nodes_block_nobody(n, f):
    for seed, liars in enumerate(itertools.islice(itertools.combinations(range(n), f), 6)):
        world = World.lan(n, jitter=10.0, fifo=False).with_faults(
            Byzantine(node=liars, strategies=("silence",)),
            Clog(node=(liars[0] + 1) % n, delay_s=0.3),
            Reorder(p=0.5, spread_s=0.2),
        )
        problem = DirectedConsensus(graph="random", tolerated=f)
        made = run(APPROXIMATE, problem=problem, world=world, seed=seed)
        assert made.violations == [] and made.metrics["spread"] <= 2.0**-10


@pytest.mark.works_when(MINE, 3)
def test_every_small_violating_graph_is_broken_without_synchrony():
    broken = 0
    for graph in (*all_digraphs(3), *all_digraphs(4)):
        found = attacks.on_approximate(graph, 1)
        assert (found is None) == brute.asynchronous(graph, 1)
        if found is None:
            continue
        stages, attack = found
        endings = [attacks.play_approximate(graph, 1, stage, rounds=3) for stage in stages]
        assert attacks.same_views(attack, endings)
        assert any(attacks.wrong(stage.scene, ending, 2.0**-3)
                   for stage, ending in zip(stages, endings, strict=True)), graph.links  # fmt: skip
        broken += 1
    assert broken == 16 + 208


def test_attacks_on_larger_graphs():
    rng = Stream(11, 0, "violating")
    for i in range(12):
        n, f = 5 + i % 3, 1 + i % 2
        sync = DirectedConsensus(tolerated=f).violating(QUICK, n, rng)
        assert attacks.broken_exact(sync, f, tight=True), sync.links
        loose = DirectedConsensus(tolerated=f).violating(APPROXIMATE, n, rng)
        assert attacks.broken_approximate(loose, f, rounds=3), loose.links


# -- line 4: signatures


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("keys", [TokenKeys, RealKeys])
def test_a_signature_is_of_one_node_and_one_text(keys):
    if keys is RealKeys:
        pytest.importorskip("cryptography")
    text = text_of("bit", 1, 3, 1)
    token = keys(3).sign(text)
    judge = keys(0)
    assert len(token) == 64 and judge.good(3, text, token)
    for place in (0, 31, 32, 63):
        altered = bytearray(token)
        altered[place] ^= 1
        assert not judge.good(3, text, bytes(altered))
    others = [text_of("bit", 1, 3, 0), text_of("bit", 2, 3, 1), text_of("verdict", 1, 3, 1)]
    assert not any(judge.good(3, other, token) for other in others)
    assert not any(judge.good(signer, text, token) for signer in (2, -1, 1 << 40))
    assert not judge.good(3, text, b"") and not judge.good(3, text, token + b"x")
    assert not keys(0, "another dealer").good(3, text, token)


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("part", [EXACT, APPROXIMATE], ids=["exact", "approximate"])
@pytest.mark.parametrize("signature", ["token", "ed25519"])
def test_forgeries_are_thrown_away_and_counted(part, signature):
    if signature == "ed25519":
        pytest.importorskip("cryptography")
    world = World.lan(4).with_faults(Byzantine(node=1, strategies=("forge",)))
    problem = DirectedConsensus(rounds=3, epsilon=0.2)
    made = run(part.with_knobs(signature=signature), problem=problem, world=world)
    assert made.violations == [] and made.metrics["forged"] > 0
    honest = run(part.with_knobs(signature=signature), problem=problem, world=World.lan(4))
    assert honest.metrics["forged"] == 0


# -- line 5: one code in virtual time and on processes


@pytest.mark.works_when(MINE, 5)
@pytest.mark.parametrize("part", [EXACT, QUICK, APPROXIMATE], ids=["exact", "tight", "approximate"])
def test_four_nodes_one_liar_in_virtual_time(part):
    for seed, lie in enumerate((*LIES, "forge")):
        world = World.lan(4).with_faults(Byzantine(node=seed % 4, strategies=(lie,)))
        made = run(part, problem=DirectedConsensus(), world=world, seed=seed)
        assert made.violations == []
        assert {r.values["scheme"] for r in made.records if "scheme" in r.values} == {"TokenKeys"}
    if part is EXACT:
        assert made.metrics["rounds"] == 4 * (1 + 3) * 4  # C(n, f) (f + 3) n
    if part is QUICK:
        assert made.metrics["rounds"] == 4 * (1 + 3)  # everybody is one hop away


@pytest.mark.slow
@pytest.mark.works_when(MINE, 5)
@pytest.mark.parametrize("part", [EXACT, APPROXIMATE], ids=["exact", "approximate"])
def test_seven_nodes_two_liars_in_virtual_time(part):
    for seed, lie in enumerate((*LIES, "forge")):
        world = World.lan(7).with_faults(Byzantine(node=(1, 4), strategies=(lie,)))
        problem = DirectedConsensus(graph="random", tolerated=2)
        made = run(part, problem=problem, world=world, seed=seed)
        assert made.violations == []


@pytest.mark.slow
@pytest.mark.works_when(MINE, 5)
@pytest.mark.parametrize("timing", ["synchronous", "asynchronous"])
def test_seven_processes_one_killed_and_one_lying(timing):
    pytest.importorskip("cryptography")
    part = DirectedAuth(timing=timing, tight=True, round_s=0.15)
    # Without a clock ten rounds take a moment; so the kill comes as soon as they have begun.
    at_s = 6.0 if timing == "synchronous" else 1.01
    world = World.lan(7).with_faults(
        Crash(node=5, at_s=at_s), Byzantine(node=2, strategies=("equivocate", "forge"))
    )
    problem = DirectedConsensus(tolerated=2, graph="random", keep=0.7, lead_s=1.0)
    made = run(part, problem=problem, world=world, engine="processes", nodes_per_process=1, seed=3)
    assert made.violations == []
    decided = {r.node: r.values["decided"] for r in made.records if "decided" in r.values}
    assert {0, 1, 3, 4, 6} <= set(decided)
    assert {r.values["scheme"] for r in made.records if "scheme" in r.values} == {"RealKeys"}
    assert made.metrics["forged"] > 0  # Ed25519 said no
    assert not made.extra.get("faults_never_fired")


# -- claims, bad input, small things


@pytest.mark.slow
def test_every_claim_is_judged():
    assert [each.verdict for each in check(MINE)] == ["holds", "holds"]


@pytest.mark.parametrize(
    "knobs",
    [{"timing": "soon"}, {"round_s": 0.0}, {"round_s": float("nan")}, {"signature": "rsa"},
     {"tolerated": -1}, {"rounds": 0}, {"tight": "yes"}, {"liars": 1}],
)  # fmt: skip
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"DirectedAuth\.{next(iter(knobs))}"):
        DirectedAuth(**knobs)


@pytest.mark.parametrize(
    ("knobs", "n", "says"),
    [({"graph": "ring"}, 5, r"promises nothing on 'ring' of 5 nodes with 1 faults"),
     ({"graph": "random", "tolerated": 2}, 4, r"promises nothing on 'random'"),
     ({"tolerated": 4}, 4, r"tolerated: 4 of 4 nodes; give 0 to 3"),
     ({"graph": "triangles"}, 5, r"graph: 'triangles' of 5 nodes; use World.lan\(6\)"),
     ({"graph": "links"}, 4, r"links: 0 links given"),
     ({"graph": "links", "links": ((0, 0),)}, 4, r"\(0, 0\) is no link of 4 nodes"),
     ({"graph": "links", "links": ((0, 9),)}, 4, r"\(0, 9\) is no link of 4 nodes"),
     ({"inputs": "values", "values": (1.0,)}, 4, r"values: 1 values given"),
     ({"inputs": "values", "values": (1.0, 0.0, 1.0, float("inf"))}, 4, r"no number")],
)  # fmt: skip
def test_misfits_are_refused_with_the_fix(knobs, n, says):
    with pytest.raises(KnobError, match=says):
        run(EXACT, problem=DirectedConsensus(**knobs), world=World.lan(n))


def test_other_bad_input_is_refused():
    with pytest.raises(KnobError, match=r"Digraph.n: 65 nodes; give 1 to 64"):
        complete(65)
    with pytest.raises(KnobError, match=r"Digraph.n: 0 nodes"):
        Digraph.of(0, [])
    with pytest.raises(KnobError, match=r"all_digraphs.n: 5"):
        all_digraphs(5)
    with pytest.raises(KnobError, match=r"tolerated: 3 liars among 3 nodes"):
        conditions.synchronous(complete(3), 3)
    with pytest.raises(KnobError, match=r"no graph of 3 nodes violates"):
        problem = DirectedConsensus(tolerated=1)
        problem.violating(QUICK.with_knobs(), 3, _AlwaysComplete())
    with pytest.raises(FaultError, match="unknown strategy 'equivocation'"):
        world = World.lan(4).with_faults(Byzantine(node=0, strategies=("equivocation",)))
        run(EXACT, problem=DirectedConsensus(), world=world)

    class Hollow(DirectedNode):
        """Says nothing of where it works."""

    with pytest.raises(PartError, match=r"Hollow has no suits\(graph, f\)"):
        run(Hollow(), problem=DirectedConsensus(), world=World.lan(4))


class _AlwaysComplete:
    """Draws the share 1 and then each of six links, over and over."""

    def __init__(self):
        self.draws = itertools.cycle((1.0, *[0.0] * 6))

    def random(self):
        return next(self.draws)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_nodes_without_faults(n):
    for part in (EXACT, APPROXIMATE):
        made = run(part, problem=DirectedConsensus(tolerated=0), world=World.lan(n))
        assert made.violations == [] and made.metrics["spread"] == 0.0


def test_what_comes_over_no_link_or_is_oversized_is_thrown_away():
    class Loud(DirectedAuth):
        """Node 3 tells everybody everything, and too much of it."""

        async def main(self):
            if self.id == 3:
                await self.begun()
                for peer in self.peers:
                    self.tell(peer, DirectedAuth.hear, 10**9, ())
                    self.tell(peer, DirectedAuth.hear, 70, ())
            await super().main()

    links = tuple(link for link in complete(4).links if link != (3, 0))
    problem = DirectedConsensus(graph="links", links=links)
    made = run(Loud(), problem=problem, world=World.lan(4))
    quiet = run(DirectedAuth(), problem=problem, world=World.lan(4))
    assert made.violations == [] and made.metrics["refused"] == quiet.metrics["refused"] + 6


def test_rubbish_in_floods_is_refused():
    machine = ApproximateMachine(0, complete(4), 1, 0.5, 3, TokenKeys(0))
    machine.begin()
    bad = [Said(9, 1.0, b""), Said(1, float("nan"), b""), Said(1, 1.0, b"x" * 64)]
    for said in bad:
        assert machine.take_said(0, said) == []
    assert machine.take_said(99, Said(1, 1.0, b"")) == []
    assert machine.take_report(0, Report(1, tuple(bad), b"")) == []
    assert machine.take_report(-1, Report(1, (), b"")) == []
    assert machine.take_report(0, Report(1, tuple(bad) * 9, b"")) == []
    assert machine.counted["malformed"] >= 4 and machine.counted["forged"] >= 2
    assert list(bits(machine.books[0].have)) == [0]
