"""Fuzzed worlds, fault schedules, stems, knobs, values and frames: a named error or a value.

No traceback of ours, no hang. Every case comes from a seed that the failure names. The default run
is a sample; `make test-slow` runs 100,000 cases.
"""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from orrery import World
from orrery.base import codec
from orrery.base.errors import CodecError, OrreryError, SpecError
from orrery.base.rand import Stream
from orrery.engines.processes import wire
from orrery.lab.stems import read_stem
from orrery.parts import Count, Fraction, Part, Positive
from orrery.world import FAULTS, Crash, Partition, RandomCrashes, worlds
from orrery.world.schedule import faults_from

ODD = [
    0, -1, 1, 10**30, -(10**18), 0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf"), True,
    False, "", "x", "messages", "0", "nan", "\x00", "é" * 50, [], [1], [[]], {}, {"a": 1},
    {"kind": "Crash"}, ["node"], [None][:0], "random", 2**63, [0, 1, 2], [[0, 1], [2]],
]  # fmt: skip
WORLDS = [
    World.lan(5),
    World.lan(6, drop=0.1).with_faults(
        Crash(node=1, at_s=0.1, until_s=0.3), Partition(groups=((0, 1), (2, 3)), at_s=1.0),
        RandomCrashes(count=2, between_s=(0.0, 1.0), down_s=0.1),
    ),
    World.wan(4), World.torus((2, 3)), World.fat_tree(4), World.graph([(0, 1), (1, 2)]),
    World.rounds(3), worlds.get("h100_pod:2"), worlds.get("edge_cloud"),
]  # fmt: skip


def odd(rng):
    """A strange value of its own, so that one case cannot spoil the next."""
    return copy.deepcopy(rng.choice(ODD))


def places(data, path=()):
    """Every (container, key) inside nested data."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def damage(rng, data):
    """One to three random changes: replace, remove, rename, add, swap."""
    for _ in range(1 + rng.below(3)):
        spots = list(places(data))
        if not spots:
            return data
        where, key = rng.choice(spots)
        act = rng.below(5)
        if act <= 1:
            where[key] = odd(rng)
        elif act == 2:
            del where[key]
        elif act == 3 and isinstance(where, dict):
            where[str(key) + rng.choice(["_", "s", "x"])] = where.pop(key)
        elif isinstance(where, dict):
            where[rng.choice(["latency_s", "kind", "count", "zzz", "node"])] = odd(rng)
    return data


def scramble(rng, text):
    """Text with some bytes changed, cut or doubled."""
    raw = bytearray(text.encode())
    for _ in range(1 + rng.below(6)):
        if not raw:
            break
        at = rng.below(len(raw))
        act = rng.below(3)
        if act == 0:
            raw[at] = rng.below(256)
        elif act == 1:
            del raw[at : at + 1 + rng.below(8)]
        else:
            raw[at:at] = raw[at : at + rng.below(20)]
    return raw.decode(errors="replace")


def fuzz_worlds(rng):
    data = tomllib.loads(rng.choice(WORLDS).to_toml())
    try:
        if rng.below(4) == 0:
            made = World.from_toml(scramble(rng, tomli_w.dumps(data)))
        else:
            made = World.from_toml(tomli_w.dumps(damage(rng, data)))
        assert World.from_toml(made.to_toml()).hash == made.hash
        if made.size <= 64:
            made.wiring()
            made.schedule(1)
    except SpecError as error:
        assert error.path and str(error)


def fuzz_faults(rng):
    kind = rng.choice(sorted(FAULTS))
    fault = {"kind": kind, "at_s": rng.choice([0.0, 1.0, odd(rng)]), "node": odd(rng)}
    for name in ("until_s", "factor", "p", "groups", "link", "domain", "strategies", "device"):
        if rng.below(3) == 0:
            fault[name] = odd(rng)
    try:
        faults = faults_from([fault])
        World.lan(4).with_faults(*faults).schedule(3)
    except SpecError as error:
        assert error.path


class Knobbed(Part):
    """A part with one knob of each kind."""

    count: Count = 3
    share: Fraction = 0.5
    period_s: Positive = 1.0
    name: str = "a"
    many: tuple[int, ...] = (1, 2)
    table: dict[str, float] = {}


def fuzz_knobs(rng):
    names = ["count", "share", "period_s", "name", "many", "table", "unknown"]
    try:
        part = Knobbed(**{rng.choice(names): odd(rng) for _ in range(2)})
        assert part.count >= 1 and 0 <= part.share <= 1 and part.period_s > 0
    except SpecError as error:
        assert error.path.startswith("Knobbed.")


TYPES = [
    tuple[int, str], list[float], dict[str, int], frozenset[int], np.ndarray,
    tuple[np.ndarray, int],
    int | None, bytes, tuple[bytes, tuple[int, ...]], bool,
]  # fmt: skip
VALUES = [
    (1, "a"), [1.0, 2.0], {"a": 1}, frozenset({1, 2}), np.arange(6.0).reshape(2, 3), 7, None,
    (np.zeros(0, dtype=np.int8), 3), b"bytes", (b"x", (1, 2)), True,
]  # fmt: skip


def fuzz_codec(rng):
    if rng.below(3) == 0:
        data = rng.randbytes(rng.below(64))
    else:
        raw = bytearray(codec.encode(rng.choice(VALUES)))
        for _ in range(1 + rng.below(3)):
            if raw:
                raw[rng.below(len(raw))] = rng.below(256)
        data = bytes(raw[: rng.below(len(raw) + 1)]) if rng.below(4) == 0 else bytes(raw)
    try:
        codec.decode(data, rng.choice(TYPES))
    except CodecError as error:
        assert str(error)


def fuzz_frames(rng):
    message = wire.Message(rng.below(4), rng.below(9), rng.below(9), rng.below(99), "m", b"body")
    raw = bytearray(wire.frame(wire.pack_message(message)) * (1 + rng.below(3)))
    for _ in range(rng.below(5)):
        raw[rng.below(len(raw))] = rng.below(256)
    if rng.below(3) == 0:
        raw = bytearray(rng.randbytes(rng.below(200)))
    reader = wire.FrameReader(most_B=1 << 16)
    try:
        at = 0
        while at < len(raw):
            step = 1 + rng.below(40)
            for payload in reader.feed(bytes(raw[at : at + step])):
                wire.unpack_message(payload)
            at += step
    except (wire.WireError, CodecError) as error:
        assert str(error)


STEM_FILES = sorted(
    (Path(__file__).parents[2] / "src" / "orrery" / "systems" / "protocols").glob("*.toml")
)


def fuzz_stems(rng, folder):
    source = rng.choice(STEM_FILES)
    target = folder / source.name
    if rng.below(3) == 0:
        target.write_text(scramble(rng, source.read_text()))
    else:
        target.write_text(tomli_w.dumps(damage(rng, tomllib.loads(source.read_text()))))
    try:
        read_stem(target)
    except OrreryError as error:
        assert str(error)


CASES = {
    "worlds": fuzz_worlds, "faults": fuzz_faults, "knobs": fuzz_knobs, "codec": fuzz_codec,
    "frames": fuzz_frames, "stems": fuzz_stems,
}  # fmt: skip


def many(name, count, folder, first=0):
    for case in range(first, first + count):
        rng = Stream(case, name, "fuzz")
        try:
            CASES[name](rng, folder) if name == "stems" else CASES[name](rng)
        except Exception as error:
            raise AssertionError(
                f"case {case} of {name} was not met by a named error: {type(error).__name__}: "
                f"{error}"
            ) from error


@pytest.mark.parametrize("name", CASES)
def test_a_sample(name, tmp_path):
    many(name, 300 if name in ("worlds", "stems") else 1500, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand(name, tmp_path):
    share = {"worlds": 20_000, "stems": 10_000}.get(name, 17_500)
    many(name, share, tmp_path, first=1_000_000)
