"""What makes a workload sound: each column checked, by name, with the fix; and joined workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.inputs import ragged
from orrery.inputs.workload import MAX_REQUESTS, RAGGED, Workload, WorkloadError
from orrery.world.spec import brief

MAX_KINDS = 2**15 - 1


def refuse(path: str, problem: str, fix: str) -> WorkloadError:
    """The error for one column."""
    return WorkloadError(f"workload.{path}", problem, fix)


def column(name: str, values: Any, dtype: Any) -> npt.NDArray[Any]:
    """The values as a read-only array of this dtype, or the named error that says why not."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise refuse(name, "is not a list of numbers", "give one number a request") from None
    if array.ndim != 1:
        problem = f"has {array.ndim} dimensions"
        raise refuse(name, problem, "give a flat list, one number a request")
    if not len(array):
        array = array.astype(dtype)
    if array.dtype.kind not in "iuf":
        problem = f"holds {array.dtype.name} values, such as {brief(array[0])}"
        raise refuse(name, problem, "give plain numbers")
    wanted = np.dtype(dtype)
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array)
        if bad.any():
            i = int(bad.argmax())
            raise refuse(f"{name}[{i}]", f"{array[i]} is refused", "give finite numbers")
    if wanted.kind == "i" and array.dtype != wanted:
        array = _whole(name, array, wanted)
    if array.dtype != wanted or array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, wanted)
        array.flags.writeable = False
    return array


def _whole(name: str, array: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    limits = np.iinfo(wanted)
    bad = (array < limits.min) | (array > limits.max)
    if array.dtype.kind == "f":
        bad |= array != np.floor(array)
    if bad.any():
        i = int(bad.argmax())
        fix = f"give whole numbers from {limits.min} to {limits.max}"
        raise refuse(f"{name}[{i}]", f"{array[i]} is refused", fix)
    return array


def _at_least(name: str, array: npt.NDArray[Any], low: float) -> None:
    if len(array) and array.min() < low:
        i = int((array < low).argmax())
        raise refuse(f"{name}[{i}]", f"{array[i]} is refused", f"give numbers >= {low}")


def settle(work: Workload) -> None:
    """Check every column of a workload that is being made, and fill those left out."""

    def put(name: str, value: Any) -> Any:
        msgspec.structs.force_setattr(work, name, value)
        return value

    arrival = put("arrival_s", column("arrival_s", work.arrival_s, np.float64))
    count = len(arrival)
    if not count:
        raise refuse("arrival_s", "is empty", "give at least one request")
    if count > MAX_REQUESTS:
        raise refuse("arrival_s", f"{count} requests", f"give at most {MAX_REQUESTS}")
    _at_least("arrival_s", arrival, 0.0)
    falls = np.diff(arrival) < 0
    if falls.any():
        i = int(falls.argmax()) + 1
        problem = f"{arrival[i]} comes after {arrival[i - 1]}"
        raise refuse(f"arrival_s[{i}]", problem, "give times in ascending order (np.argsort)")
    for name, dtype, fill, low in (
        ("input_tokens", np.int32, None, 1),
        ("output_tokens", np.int32, None, 1),
        ("session", np.int32, -1, -1),
        ("kind", np.int16, 0, 0),
        ("parent", np.int32, -1, -1),
        ("delay_s", np.float64, 0, 0),
    ):
        given = getattr(work, name)
        if fill is not None and isinstance(given, np.ndarray) and not len(given):
            given = np.full(count, fill, dtype)
        array = put(name, column(name, given, dtype))
        if len(array) != count:
            problem = f"{len(array)} values for {count} requests"
            raise refuse(name, problem, "give one number a request")
        _at_least(name, array, low)
    _names(work)
    for ids, starts in RAGGED:
        _ragged(work, ids, starts, np.int64)
    _ragged(work, "parent_ids", "parent_starts", np.int32)
    _blocks(work)
    _parents(work)


def _names(work: Workload) -> None:
    kinds: Any = work.kinds
    if isinstance(kinds, list):
        kinds = tuple(kinds)
        msgspec.structs.force_setattr(work, "kinds", kinds)
    if not isinstance(kinds, tuple) or not all(isinstance(each, str) for each in kinds):
        raise refuse("kinds", f"{brief(kinds)} is refused", 'give names, such as ("chat",)')
    if not 1 <= len(kinds) <= MAX_KINDS or len(set(kinds)) != len(kinds):
        problem = f"{len(kinds)} names, {len(set(kinds))} different"
        raise refuse("kinds", problem, f"give 1 to {MAX_KINDS} different names")
    if (top := int(work.kind.max())) >= len(kinds):
        i = int((work.kind >= len(kinds)).argmax())
        raise refuse(f"kind[{i}]", f"kind {top} of {len(kinds)}", "give an index into kinds")
    if not isinstance(work.source, str):
        raise refuse("source", f"{brief(work.source)} is refused", "give a text")


def _ragged(work: Workload, ids_name: str, starts_name: str, dtype: Any) -> None:
    count = len(work)
    ids = column(ids_name, getattr(work, ids_name), dtype)
    given: Any = getattr(work, starts_name)
    if isinstance(given, np.ndarray) and not len(given):
        given = np.zeros(count + 1, np.int64)
    starts = column(starts_name, given, np.int64)
    if len(starts) != count + 1:
        problem = f"{len(starts)} values for {count} requests"
        raise refuse(starts_name, problem, f"give {count + 1}: one a request and the end")
    falls = np.diff(starts) < 0
    if starts[0] != 0 or falls.any() or starts[-1] != len(ids):
        problem = f"runs from {starts[0]} to {starts[-1]} over {len(ids)} ids"
        if falls.any():
            problem = f"falls at request {int(falls.argmax())}"
        fix = f"give ascending places from 0 to len({ids_name})"
        raise refuse(starts_name, problem, fix)
    msgspec.structs.force_setattr(work, ids_name, ids)
    msgspec.structs.force_setattr(work, starts_name, starts)


def _blocks(work: Workload) -> None:
    size = work.block_tokens
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1 << 20:
        raise refuse("block_tokens", f"{brief(size)} is refused", "give 1 to 1048576")
    if not len(work.block_ids) and not len(work.answer_ids):
        return
    most = -(-work.input_tokens.astype(np.int64) // size)
    held = np.diff(work.block_starts)
    if (held > most).any():
        i = int((held > most).argmax())
        problem = f"request {i} has {held[i]} blocks of {size} for {work.input_tokens[i]} tokens"
        raise refuse("block_ids", problem, f"give at most {most[i]}, or another block_tokens")
    place = ragged.unchained(work.block_ids, work.block_starts)
    if place >= 0:
        i = int(np.searchsorted(work.block_starts, place, "right")) - 1
        problem = f"id {work.block_ids[place]} of request {i} stood after another prefix before"
        fix = "ids must be chained; orrery.inputs.chain_blocks(ids, starts) makes them so"
        raise refuse(f"block_ids[{place}]", problem, fix)


def _parents(work: Workload) -> None:
    places = np.arange(len(work))
    for name, owner, ids in (
        ("parent", places, work.parent),
        ("parent_ids", np.repeat(places, np.diff(work.parent_starts)), work.parent_ids),
    ):
        bad = ids >= owner
        if name == "parent_ids":
            bad |= ids < 0
        if bad.any():
            i = int(bad.argmax())
            problem = f"request {owner[i]} waits for request {ids[i]}"
            raise refuse(f"{name}[{i}]", problem, "a parent must stand before its child")
    several = np.diff(work.parent_starts) > 0
    if (several & (work.parent < 0)).any():
        i = int((several & (work.parent < 0)).argmax())
        fix = "give the parent that ends last there too"
        raise refuse(f"parent[{i}]", "is -1 but parent_ids has entries", fix)
    owner = np.repeat(places, np.diff(work.parent_starts))
    found = np.bincount(owner[work.parent_ids == work.parent[owner]], minlength=len(work))
    if (several & (found == 0)).any():
        i = int((several & (found == 0)).argmax())
        problem = f"{work.parent[i]} is not among its parent_ids"
        raise refuse(f"parent[{i}]", problem, "give the one of them that ends last")


def merged(works: Sequence[Workload], share_blocks: bool) -> Workload:
    """All requests of several workloads in one; see `Workload.merged`."""
    with_blocks = [each for each in works if len(each.block_ids) or len(each.answer_ids)]
    sizes = sorted({each.block_tokens for each in with_blocks})
    if len(sizes) > 1:
        problem = f"blocks of {' and '.join(map(str, sizes))} tokens"
        raise WorkloadError("merged", problem, "call reblocked on them first")
    total = sum(map(len, works))
    order = np.argsort(np.concatenate([each.arrival_s for each in works]), kind="stable")
    place = np.empty(total, np.int64)
    place[order] = np.arange(total)
    kinds = tuple(dict.fromkeys(name for each in works for name in each.kinds))
    parts: dict[str, list[Any]] = {}
    rows = blocks = sessions = 0
    for each in works:
        renamed = np.array([kinds.index(name) for name in each.kinds], np.int16)
        moved = np.append(place[rows : rows + len(each)], -1)  # the last answers for "no parent"
        columns = {
            **each.columns(),
            "kind": renamed[each.kind],
            "session": np.where(each.session >= 0, each.session + sessions, -1),
            "parent": moved[each.parent],
            "parent_ids": moved[each.parent_ids],
            "block_ids": each.block_ids + blocks,
            "answer_ids": each.answer_ids + blocks,
        }
        for name, values in columns.items():
            parts.setdefault(name, []).append(values)
        rows += len(each)
        sessions += int(each.session.max()) + 1
        if not share_blocks:
            highest = [int(ids.max()) + 1 for ids in (each.block_ids, each.answer_ids) if len(ids)]
            blocks += max(highest, default=0)
    made: dict[str, Any] = {}
    for name in ("arrival_s", "input_tokens", "output_tokens", "session", "kind", "parent"):
        made[name] = np.concatenate(parts[name])[order]
    made["delay_s"] = np.concatenate(parts["delay_s"])[order]
    for ids, starts in (*RAGGED, ("parent_ids", "parent_starts")):
        counts = np.concatenate([np.diff(each) for each in parts[starts]])
        joined = np.concatenate([[0], np.cumsum(counts)])
        made[ids], made[starts] = ragged.gather(np.concatenate(parts[ids]), joined, order)
    made["block_tokens"] = sizes[0] if sizes else works[0].block_tokens
    source = " + ".join(dict.fromkeys(each.source for each in works if each.source))
    return Workload(**made, kinds=kinds, source=source)


def reblocked(work: Workload, block_tokens: int) -> Workload:
    """The same prompts in blocks of another size; see `Workload.reblocked`."""
    size, old = block_tokens, work.block_tokens
    if (
        isinstance(size, bool)
        or not isinstance(size, int)
        or size < 1
        or (size % old and old % size)
    ):
        fix = f"give a multiple or a divisor of {old}"
        raise WorkloadError("reblocked.block_tokens", f"{brief(size)} is refused", fix)
    if size == old:
        return work
    made: dict[str, Any] = {"block_tokens": size}
    held = np.diff(work.block_starts)
    if size > old:
        if len(work.answer_ids):
            made |= {"answer_ids": np.zeros(0, np.int64), "answer_starts": np.zeros(0, np.int64)}
        keep = held // (size // old)
        starts = np.concatenate([[0], np.cumsum(keep)])
        nth = np.arange(starts[-1]) - np.repeat(starts[:-1], keep)
        made["block_ids"] = work.block_ids[
            np.repeat(work.block_starts[:-1], keep) + (nth + 1) * (size // old) - 1
        ]
        made["block_starts"] = starts
        return work.replace(**made)
    parts = old // size
    for (ids, starts_name), limit in zip(
        RAGGED, (work.input_tokens.astype(np.int64), None), strict=True
    ):
        counts = np.diff(getattr(work, starts_name)) * parts
        if limit is not None:  # the last block may be a partial one
            counts = np.minimum(counts, -(-limit // size))
        starts = np.concatenate([[0], np.cumsum(counts)])
        nth = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        whole = getattr(work, ids)[
            np.repeat(getattr(work, starts_name)[:-1], counts) + nth // parts
        ]
        made[ids], made[starts_name] = whole * parts + nth % parts, starts
    return work.replace(**made)
