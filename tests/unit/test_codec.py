"""The wire format: what travels, in which order, and what is refused by name."""

from __future__ import annotations

import dataclasses
import enum

import msgspec
import numpy as np
import pytest

from orrery.base.codec import decode, encode, size_of
from orrery.base.errors import CodecError


class Colour(enum.Enum):
    RED = "red"


class Vote(msgspec.Struct, frozen=True):
    term: int
    seen: dict[int, str]


class Row(msgspec.Struct, array_like=True):
    key: int
    tags: frozenset[str]


@dataclasses.dataclass
class Point:
    x: float
    marks: dict[tuple[int, int], int]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, type(None)), (7, int), (2.5, float), ("é", str), (b"\x00", bytes),
        ((1, "a"), tuple[int, str]),
        ([1, 2], list[int]), ({"a": 1}, dict[str, int]), ({3: "c", 1: "a"}, dict[int, str]),
        ({(1, 2): 3, (0, 9): 4}, dict[tuple[int, int], int]), (frozenset({1, 2}), frozenset[int]),
        (Colour.RED, Colour), (Vote(3, {2: "x", 1: "y"}), Vote), (Row(1, frozenset("ab")), Row),
        (Point(1.0, {(1, 2): 3}), Point), ([Vote(1, {}), Vote(2, {5: "z"})], list[Vote]),
    ],
)  # fmt: skip
def test_what_travels_arrives_as_it_was(value, kind):
    assert decode(encode(value), kind) == value
    assert size_of(value) > 0


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u8", "c16", "?", ">f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (4, 5)])
def test_arrays_of_any_shape_and_type(dtype, shape):
    array = np.ones(shape, dtype=dtype)
    back = decode(encode((array, 1)), tuple[np.ndarray, int])[0]
    assert back.dtype == array.dtype and back.shape == shape and (back == array).all()


def test_equal_values_give_equal_bytes_whatever_their_order():
    assert encode({1: "a", 2: "b"}) == encode({2: "b", 1: "a"})
    assert encode({"x": {3, 1, 2}}) == encode({"x": {2, 3, 1}})
    assert encode(Vote(1, {5: "a", 4: "b"})) == encode(Vote(1, {4: "b", 5: "a"}))


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, np.array([object()]), {"a": object()}, {1: object()}, 1 << 70]
)
def test_what_cannot_travel_is_named(value):
    with pytest.raises(CodecError):
        encode(value)


def test_bytes_that_do_not_fit_are_named():
    for data in (b"", b"\xc1", encode("text"), encode([1, "a"])):
        with pytest.raises(CodecError, match="fit"):
            decode(data, list[int])
