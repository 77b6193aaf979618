"""`TokenRing`: values, order-free merging, bytes, times and balance, as its lines ask."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.collectives.attention_runs import (
    LATENCY_S,
    SLOW_BPS,
    llama,
    mesh,
    play,
    real,
    sent,
    shared_port,
)

from orrery import World, run
from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.lab.checking import check
from orrery.lab.compare import compare
from orrery.models import attention
from orrery.models.attention import Block, Partial
from orrery.systems.collectives.baselines.bidirectional_ring import BidirectionalRing
from orrery.systems.collectives.baselines.ring_attention import RingAttention
from orrery.systems.collectives.problems.long_attention import LongAttention
from orrery.systems.collectives.tokenring import TokenRing
from orrery.world import Crash

MINE = "tokenring"


# -- line 1: the values of one process


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_real_processes_give_the_values_of_one(n, causal):
    made = real(TokenRing(), n, tokens=61, heads=3, head_dim=8, causal=causal, rounds=2)
    assert made.violations == []
    assert made.metrics["error"] <= 1e-5
    assert made.metrics["grad_error"] <= 1e-5
    assert made.bytes > made.metrics["egress_B"] > 0


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("causal", [True, False])
def test_real_processes_in_bf16(causal):
    made = real(TokenRing(), 3, tokens=64, dtype="bf16", causal=causal)
    assert made.violations == []
    # It is not fp32 in disguise: outputs were rounded on the way, and half the bytes were sent.
    assert 1e-5 < made.metrics["error"] <= 2e-2
    assert made.metrics["grad_error"] <= 2e-2


@pytest.mark.slow
@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_eight_real_processes(causal, dtype):
    made = real(TokenRing(), 8, documents=(301, 17, 90), kv_heads=2, causal=causal, dtype=dtype)
    assert made.violations == []


@pytest.mark.works_when(MINE, 1)
@pytest.mark.parametrize("both_ways", [True, False])
def test_virtual_ranks_give_the_values_of_one_for_random_batches(both_ways):
    for seed in range(12):
        rng = Stream(seed, "shapes", "tokenring")
        documents = tuple(rng.below(50) for _ in range(1 + rng.below(4)))
        groups = 1 + rng.below(3)
        knobs = {
            "documents": documents, "kv_heads": groups, "heads": groups * (1 + rng.below(3)),
            "head_dim": 4 + 4 * rng.below(4), "causal": bool(rng.below(2)), "data_seed": seed,
            "tokens": 0,
        }  # fmt: skip
        play(TokenRing(both_ways=both_ways), World.lan(1 + rng.below(7)), **knobs)


def test_both_engines_give_the_same_values():
    knobs = {"tokens": 40, "rounds": 1}
    virtual, processes = play(TokenRing(), World.lan(3), **knobs), real(TokenRing(), 3, **knobs)
    assert virtual.metrics["error"] == processes.metrics["error"]
    assert virtual.metrics["grad_error"] == processes.metrics["grad_error"]
    assert virtual.metrics["egress_B"] == processes.metrics["egress_B"]


# -- line 2: the order of merging is free


def partials(seed=0, count=7, n=20, heads=3, dim=8):
    """Partial results of the same rows with disjoint keys, and the whole result."""
    rng = Stream(seed, "order", "merge").numpy()
    q = rng.standard_normal((n, heads, dim)).astype(np.float32)
    k, v = (rng.standard_normal((count * 5, heads, dim)).astype(np.float32) for _ in range(2))
    seen = rng.random((n, count * 5)) < 0.5
    seen[0] = False  # this row sees no key at all
    seen[1, 5:] = False  # and this one none but of the first part
    cuts = [slice(5 * i, 5 * i + 5) for i in range(count)]
    parts = [attention.attend(q, k[cut], v[cut], seen[:, cut]) for cut in cuts]
    return parts, attention.attend(q, k, v, seen)


@pytest.mark.works_when(MINE, 2)
def test_a_hundred_orders_of_merging_give_one_output():
    parts, whole = partials()
    for seed in range(100):
        order = list(range(len(parts)))
        Stream(seed, "order", "arrival").shuffle(order)
        made = parts[order[0]]
        for place in order[1:]:
            made = attention.merge(made, parts[place])
        assert np.abs(made.out - whole.out).max() <= 1e-6
        assert np.abs(made.lse[1:] - whole.lse[1:]).max() <= 1e-5


class AnyOrder(TokenRing):
    """Merges the results of the others in an order that the seed picks."""

    def arrivals(self):
        order = list(range(1, self.size))
        self.rng.shuffle(order)
        return order


@pytest.mark.works_when(MINE, 2)
def test_a_hundred_orders_of_arrival_give_one_output():
    problem = LongAttention(documents=(17, 9), heads=1, head_dim=4, backward=False)
    errors = {
        run(AnyOrder(), problem=problem, world=World.lan(5), seed=seed).metrics["error"]
        for seed in range(100)
    }
    assert len(errors) > 1  # the orders did differ, down to the last bits
    assert max(errors) <= 1e-6


@pytest.mark.works_when(MINE, 2)
def test_a_row_without_a_visible_key_is_zeros():
    parts, whole = partials()
    assert (whole.out[0] == 0).all()
    assert (whole.lse[0] == -np.inf).all()
    for a in parts:
        for b in parts:
            made = attention.merge(a, b)
            assert (made.out[0] == 0).all()
            assert np.isfinite(made.out).all()
    nothing = Partial(np.zeros_like(whole.out), np.full_like(whole.lse, -np.inf))
    assert (attention.merge(parts[0], nothing).out == parts[0].out).all()


# -- line 3: bytes by link and direction


def expected(n, counts, heads, dim, item_B):
    """Bytes by (source, destination): Q forwards (the last one backwards), out and lse home."""
    block_B = [count * heads * dim * item_B for count in counts]
    home_B = [count * heads * (dim * item_B + 4) for count in counts]
    found = {}
    for rank in range(n):
        for step in range(1, n - 1):  # in step s, rank r passes on the Q of rank r - s + 1
            pair = (rank, (rank + 1) % n)
            found[pair] = found.get(pair, 0) + block_B[(rank - step + 1) % n]
        pair = (rank, (rank - 1) % n)
        found[pair] = found.get(pair, 0) + block_B[rank]
        for owner in range(n):
            if owner != rank:
                found[rank, owner] = found.get((rank, owner), 0) + home_B[owner]
    return found


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize("n", [3, 4, 5, 8])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bytes_of_every_link_and_direction_match_the_formulas(n, dtype):
    made = play(TokenRing(), mesh(n), tokens=67, heads=2, head_dim=8, causal=False, dtype=dtype)
    counts = [len(range(r, 67, n)) for r in range(n)]
    item_B = 4 if dtype == "fp32" else 2
    assert sent(made) == expected(n, counts, 2, 8, item_B)
    assert made.extra["transfer_bytes"] == sum(
        sum(sent(made, phase).values()) for phase in ("forward", "backward")
    )


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize("n", [4, 8, 16])
def test_the_busiest_direction_of_a_mesh_carries_half_of_a_ring(n):
    ours, ring = llama(TokenRing(), mesh(n)), llama(RingAttention(), mesh(n))
    assert ring["link_B"] == 2 * (n - 1) * 4096 * 4096 * 2
    assert ours["link_B"] <= 0.6 * ring["link_B"]
    off = llama(TokenRing(both_ways=False), mesh(n))
    assert off["link_B"] > 0.95 * ring["link_B"]


@pytest.mark.works_when(MINE, 3)
@pytest.mark.parametrize("n", [4, 8])
def test_behind_one_port_it_sends_no_less_than_a_ring(n):
    ours, ring = llama(TokenRing(), shared_port(n)), llama(RingAttention(), shared_port(n))
    block_B, lse_B = 4096 * 4096 * 2, 4096 * 32 * 4
    assert ring["egress_B"] == (n - 1) * 2 * block_B
    assert ours["egress_B"] == (n - 1) * (2 * block_B + lse_B)
    assert ours["egress_B"] >= ring["egress_B"]


@pytest.mark.works_when(MINE, 3)
def test_a_comparison_says_so():
    problem = LongAttention(tokens=4 * 512, causal=False, backward=False, sized=True)
    found = compare(problem, ["tokenring", "ring-attention"], world=shared_port(4), seeds=1)
    egress = [found.interval(name, "egress_B").mean for name in ("tokenring", "ring-attention")]
    assert egress[0] >= egress[1] > 0
    assert "egress_B" in found.metrics


# -- line 4: times


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("n", [4, 8])
def test_on_a_mesh_where_bytes_bind_it_beats_one_way_rings(n, capsys):
    parts = {"ours": TokenRing(), "ring": RingAttention(), "both ways": BidirectionalRing(),
             "off": TokenRing(both_ways=False)}  # fmt: skip
    time_s = {name: llama(part, mesh(n))["forward_s"] for name, part in parts.items()}
    with capsys.disabled():
        shown = ", ".join(f"{name} {took / time_s['ring']:.3f}" for name, took in time_s.items())
        print(f"\n{n} ranks, forward time over Ring Attention: {shown}")
    # The ring is bound by its links, so this is the regime that the line asks for.
    block_s = 4096 * 4096 * 2 / SLOW_BPS + LATENCY_S
    assert time_s["ring"] == pytest.approx((n - 1) * 2 * block_s, rel=0.02)
    assert time_s["ours"] <= 0.65 * time_s["ring"]
    assert time_s["off"] > 0.95 * time_s["ring"]


@pytest.mark.works_when(MINE, 4)
@pytest.mark.parametrize("n", [4, 8])
def test_where_ring_attention_wins(n):
    few = {"kv_heads": 4}
    grouped = [llama(part, mesh(n), **few)["forward_s"] for part in (TokenRing(), RingAttention())]
    assert grouped[0] > 1.5 * grouped[1]
    port = [llama(part, shared_port(n))["forward_s"] for part in (TokenRing(), RingAttention())]
    assert port[0] > port[1]


def test_with_fast_links_all_take_the_time_of_the_compute():
    time_s = [llama(part, mesh(4, 1e12), tokens=65536)["forward_s"]
              for part in (TokenRing(), RingAttention())]  # fmt: skip
    flops = 4 * 65536**2 * 4096 / 4
    for took in time_s:
        assert took == pytest.approx(flops / (989.4e12 * 0.6), rel=0.06)


# -- line 5: balance


def work(part, n, tokens):
    made = play(part, World.lan(n), tokens=tokens, heads=2, head_dim=64, sized=True, dtype="bf16")
    flops = [
        sum(record.values[phase]["flops"] for phase in ("forward", "backward"))
        for record in made.records
        if "rank" in record.values
    ]
    assert len(flops) == n
    return np.array(flops) / np.mean(flops), made.metrics["imbalance"]


@pytest.mark.works_when(MINE, 5)
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16])
def test_causal_zigzag_shares_the_work_evenly(n):
    for tokens in (100 * n, 997 + 64 * n, 24_000):
        share, told = work(TokenRing(), n, tokens)
        assert np.abs(share - 1).max() <= 0.05
        assert told == pytest.approx(share.max())
    share, told = work(TokenRing(balance=False), n, 24_000)
    assert told > 1.4


# -- claims, faults, bad input


def test_the_claims_are_judged():
    found = check(MINE)
    assert [verdict.verdict for verdict in found] == ["holds", "not here"]
    mesh_gain, port_ratio = found
    assert mesh_gain.measured > 1.5 > 1.1 > mesh_gain.off
    assert port_ratio.measured == pytest.approx(1.0, abs=0.1)


def test_a_lost_rank_is_noticed_by_all():
    problem = LongAttention(tokens=4096 * 4, patience_s=1.0, causal=False, heads=32, head_dim=128,
                            sized=True, rounds=3)  # fmt: skip
    calm = run(TokenRing(), problem=problem, world=mesh(4))
    world = mesh(4).with_faults(Crash(node=2, at_s=calm.seconds / 2))
    made = run(TokenRing(), problem=problem, world=world, until_s=60.0)
    assert made.ended == "driven"
    lost = {v.node for v in made.violations if v.kind == "rank_lost"}
    assert lost == {0, 1, 3}


@pytest.mark.slow
def test_a_killed_process_is_noticed_by_all_and_no_value_is_wrong():
    problem = LongAttention(tokens=600, rounds=2000, patience_s=2.0)
    world = World.lan(4).with_faults(Crash(node=2, at_s=1.0))
    made = run(TokenRing(), problem=problem, world=world, engine="processes",
               nodes_per_process=1, until_s=60.0)  # fmt: skip
    assert made.ended == "driven"
    kinds = {v.kind for v in made.violations}
    assert "rank_lost" in kinds
    assert "wrong_value" not in kinds
    assert {v.node for v in made.violations if v.kind == "rank_lost"} == {0, 1, 3}


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"both_ways": 3}, "TokenRing.both_ways"),
        ({"balance": float("nan")}, "TokenRing.balance"),
        ({"bothways": True}, "both_ways"),
        ({"job": 7}, "TokenRing.job"),
    ],
)
def test_bad_knobs_are_named(knobs, says):
    with pytest.raises(KnobError, match=says):
        TokenRing(**knobs)


def test_it_keeps_its_shards_to_documents():
    world = World.lan(2)
    job = LongAttention(documents=(8, 3)).batch()
    assert TokenRing().layout(job, 2, world)[0] == (
        Block(0, 0, 2), Block(0, 6, 8), Block(1, 2, 3),
    )  # fmt: skip
