"""`CodedBroadcast`: the field, the code, the proofs, and the bytes that the paper promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orrery import World, run
from orrery.base.errors import KnobError, SpecError
from orrery.systems.protocols.baselines.coded_broadcast import CodedBroadcast, codes, proofs
from orrery.systems.protocols.problems.reliable_broadcast import ReliableBroadcast
from orrery.world import Byzantine


def slow_product(a: int, b: int) -> int:
    """The product of two polynomials over GF(2), reduced bit by bit."""
    out = 0
    while b:
        if b & 1:
            out ^= a
        a <<= 1
        if a & 0x100:
            a ^= codes.POLYNOMIAL
        b >>= 1
    return out


def test_the_field_is_that_of_raid_6():
    product, inverse = codes.tables()
    assert all(product[a, b] == slow_product(a, b) for a in range(256) for b in range(0, 256, 7))
    assert all(product[a, inverse[a]] == 1 for a in range(1, 256))
    # The powers of two as the standard's tables have them: 2^8 = 29, 2^9 = 58, 2^254 = 142.
    power = [1]
    for _ in range(254):
        power.append(int(product[power[-1], 2]))
    assert (power[8], power[9], power[254]) == (29, 58, 142)
    assert len(set(power)) == 255


@pytest.mark.parametrize(("n", "k"), [(4, 2), (7, 3), (7, 7), (1, 1), (10, 4)])
@pytest.mark.parametrize("size", [0, 1, 255, 1000])
def test_any_k_fragments_give_the_message_back(n, k, size):
    message = np.arange(size, dtype=np.uint8).tobytes()
    fragments = codes.encode(message, n, k)
    assert len(fragments) == n and len({len(each) for each in fragments}) == 1
    assert len(fragments[0]) == -(-(size + 8) // k)
    for places in itertools.islice(itertools.combinations(range(n), k), 40):
        assert codes.decode({place: fragments[place] for place in places}, n, k) == message
    assert k == 1 or codes.decode({0: fragments[0]}, n, k) is None


def test_codes_that_cannot_be_are_refused():
    for n, k in ((3, 4), (300, 5), (4, 0)):
        with pytest.raises(SpecError, match="give 1 <= k <= n <= 256"):
            codes.generator(n, k)
    with pytest.raises(SpecError, match="singular"):
        codes.inverted(np.zeros((2, 2), dtype=np.uint8))
    assert codes.decode({0: b"ab", 1: b"abc"}, 4, 2) is None
    assert codes.decode({0: b"\xff" * 8, 1: b"\xff" * 8}, 4, 2) is None


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_a_proof_fits_its_place_and_no_other(n):
    fragments = [bytes([i]) * 5 for i in range(n)]
    levels = proofs.tree(fragments)
    root = levels[-1][0]
    for i, j in itertools.product(range(n), repeat=2):
        beside = proofs.proof(levels, i)
        assert proofs.proves(root, j, n, fragments[i], beside) == (i == j)
    assert not proofs.proves(root, n, n, fragments[0], proofs.proof(levels, 0))
    assert not proofs.proves(root, 0, n, b"other", proofs.proof(levels, 0))


@pytest.mark.parametrize("n", [4, 7, 13, 31])
def test_the_bytes_of_the_paper(n):
    problem = ReliableBroadcast(shots=3, size_B=60_000)
    made = run(CodedBroadcast(), problem=problem, world=World.lan(n))
    assert made.ok and made.metrics["delivered_share"] == 1.0
    f = (n - 1) // 3
    fragment_B = -(-(60_000 + 8) // (n - 2 * f))
    beside_B = 4 + 36 * (n - 1).bit_length()
    message_B = 64 + 4 + 8 + 36 + 4 + fragment_B + beside_B
    ready_B = 64 + 4 + 8 + 36
    bytes_ = (n - 1) * (n + 1) * message_B + n * (n - 1) * ready_B
    assert made.metrics["bytes_per_shot"] == bytes_
    # n (n + 1) |m| / (n - 2 f) with n - 2 f > n / 3: at most three payloads a node, and overhead.
    assert made.metrics["payload_bytes_per_shot"] < 3 * (n + 1) * (60_000 + 3 * message_B)


def test_three_steps():
    unit = World.lan(7, latency_s=1.0, jitter=0.0, bandwidth_Bps=1e15)
    problem = ReliableBroadcast(shots=3, pace_s=1.0, settle_s=50.0)
    made = run(CodedBroadcast(), problem=problem, world=unit)
    assert made.ok and made.metrics["latency_steps_max"] == 3.0


def test_a_badly_coded_payload_is_delivered_nowhere(monkeypatch):
    honest = codes.encode

    def bad(message, n, k):
        fragments = honest(message, n, k)
        return [*fragments[: n - 1], bytes([fragments[-1][0] ^ 1]) + fragments[-1][1:]]

    # The broadcaster codes badly; the others encode the truth when they compare the root.
    calls = {"first": True}

    def once(message, n, k):
        first, calls["first"] = calls["first"], False
        return bad(message, n, k) if first else honest(message, n, k)

    monkeypatch.setattr(codes, "encode", once)
    liar = Byzantine(node=0, strategies=("delay",), delay_s=0.0)
    world = World.lan(7).with_faults(liar)
    made = run(CodedBroadcast(), problem=ReliableBroadcast(shots=1), world=world)
    assert made.violations == [] and made.metrics["delivered_share"] == 0.0


def test_more_nodes_than_the_field_has_are_refused():
    with pytest.raises(KnobError, match="give at most 256 nodes"):
        run(CodedBroadcast(), problem=ReliableBroadcast(), world=World.lan(257))


def test_lies_split_nobody():
    for seed in range(15):
        for habit in ("equivocate", "mutate", "replay"):
            world = World.lan(7, jitter=3.0).with_faults(
                Byzantine(node=(0, 1), strategies=(habit,))
            )
            assert run(CodedBroadcast(), problem=ReliableBroadcast(shots=2), world=world,
                       seed=seed).ok  # fmt: skip
