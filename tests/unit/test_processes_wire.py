"""Frames, the opening challenge, and typed values between processes."""

import dataclasses
import enum
import fractions
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base import codec
from orrery.base.errors import CodecError
from orrery.engines.processes import values, wire
from orrery.parts import Part

SECRET = b"s" * 32
OURS, THEIRS = b"a" * 32, b"b" * 32


def read_all(data, cuts=(), most_B=1 << 20):
    reader = wire.FrameReader(most_B)
    edges = [0, *sorted(cuts), len(data)]
    found = []
    for begin, end in pairwise(edges):
        found.extend(reader.feed(data[begin:end]))
    return found, reader


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=6))
def test_frames_come_out_as_they_went_in_however_they_are_cut(payloads, cuts):
    data = b"".join(wire.frame(payload) for payload in payloads)
    found, reader = read_all(data, [min(cut, len(data)) for cut in cuts])
    assert found == payloads and reader.corrupt == 0


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=60), st.integers(0, 1 << 40))
def test_one_flipped_bit_is_noticed_and_the_next_frame_is_read(payload, place):
    found, reader = read_all(wire.flip_bit(wire.frame(payload), place) + wire.frame(b"next"))
    assert found == [b"next"] and reader.corrupt == 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused_by_name_or_not_at_all(data):
    try:
        for payload in wire.FrameReader(100).feed(data):
            wire.unpack_message(payload)
    except wire.WireError:
        pass


def test_lengths_are_checked_before_anything_is_kept():
    with pytest.raises(wire.WireError, match="over the cap of 10"):
        list(wire.FrameReader(10).feed(wire.FRAME.pack(11, 0)))
    with pytest.raises(CodecError, match=r"the message 'x' has 11 bytes, more than the cap of 10"):
        wire.frame(b"x" * 11, 10, "the message 'x'")
    with pytest.raises(CodecError, match="over 255 bytes"):
        wire.pack_message(wire.Message(0, 0, 0, 0, "m" * 300, b""))
    for bad in (b"", b"\xff" * 30, wire.HEAD.pack(0, 0, 0, 0, 9) + b"abc"):
        with pytest.raises(wire.WireError):
            wire.unpack_message(bad)


def test_both_sides_prove_that_they_know_the_secret():
    data = wire.opening(SECRET, wire.LANE_BULK, 7, THEIRS, OURS)
    lane, group, proof = wire.check_opening(SECRET, data, THEIRS)
    assert (lane, group) == (wire.LANE_BULK, 7)
    assert proof == wire.welcome(SECRET, lane, group, THEIRS, OURS)
    assert proof != wire.welcome(b"t" * 32, lane, group, THEIRS, OURS)


def test_an_opening_is_good_once_and_unchanged_only():
    data = wire.opening(SECRET, wire.LANE_MESSAGES, 7, THEIRS, OURS)
    with pytest.raises(wire.WireError, match="secret"):
        wire.check_opening(SECRET, data, b"c" * 32)  # a replay meets another challenge
    with pytest.raises(wire.WireError, match="secret"):
        wire.check_opening(b"t" * 32, data, THEIRS)
    for place in range(0, 8 * len(data), 13):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << (place % 8)
        with pytest.raises(wire.WireError):
            wire.check_opening(SECRET, bytes(changed), THEIRS)
    with pytest.raises(wire.WireError, match="protocol"):
        wire.read_hello(b"HTTP" + bytes(wire.HELLO.size - 4))


# -- values with their types


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...]


class Pair(NamedTuple):
    a: int
    b: set


class Box(msgspec.Struct):
    inside: dict


class Knobbed(Part):
    size: int = 1
    inner: Part | None = None


KEPT = [
    None, True, -5, 1 << 200, 1.5, float("inf"), "ü", b"\x00", (1, [2, (3,)], {4}), frozenset({1}),
    {1: "a", (2, 3): {"b": None}}, range(2, 9, 3), Colour.RED, Point(1, ("t",)), Pair(1, {2}),
    Box({(1,): {2: 3}}), [], (), {}, Knobbed(size=3, inner=Knobbed()),
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_values_keep_their_types(value, monkeypatch):
    # Test modules are not importable by name under importlib mode; this one stands in for one.
    monkeypatch.setitem(__import__("sys").modules, __name__, _module())
    back = values.unpack(values.pack(value))
    assert back == value and type(back) is type(value)


def _module():
    import types

    made = types.ModuleType(__name__)
    for thing in (Colour, Point, Pair, Box, Knobbed):
        setattr(made, thing.__name__, thing)
    return made


def test_arrays_and_numpy_numbers_travel():
    back = values.unpack(values.pack({"x": np.arange(6.0).reshape(2, 3), "n": np.int64(7)}))
    assert np.array_equal(back["x"], np.arange(6.0).reshape(2, 3)) and back["n"] == 7


def test_what_cannot_travel_is_refused_by_name():
    class Local(enum.Enum):
        ONE = 1

    for bad in (object(), Local.ONE, lambda: 1, fractions.Fraction(1, 2)):
        with pytest.raises(CodecError):
            values.pack(bad)
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(CodecError, match="nested"):
        values.pack(deep)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_garbage_values_are_refused_by_name(data):
    try:
        values.unpack(data)
    except CodecError:
        pass


def test_names_are_only_looked_up_and_never_imported_from_a_socket():
    named = codec.encode([10, "os:system"])
    with pytest.raises(CodecError, match="unknown tag"):
        values.unpack(named)
    with pytest.raises(CodecError, match="not a record"):
        values.unpack(codec.encode([6, "builtins:dict"]))
    with pytest.raises(CodecError, match="there is no"):
        values.unpack(codec.encode([6, "antigravity:x"]))
