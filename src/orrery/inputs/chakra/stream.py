"""Traces as files: length-delimited messages, one after the other, never all in memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from orrery.inputs.chakra import wire
from orrery.inputs.chakra.nodes import (
    EtNode,
    Metadata,
    decode_metadata,
    decode_node,
    encode_metadata,
    encode_node,
)
from orrery.inputs.chakra.schema import MOST_MESSAGE_B, TraceError

BLOCK_B = 1 << 20


def blocks(file: IO[bytes], name: str, block_B: int = BLOCK_B) -> Iterator[tuple[bytes, list[int]]]:
    """(bytes, bounds) of whole messages: message k of a block is bytes[bounds[2k]:bounds[2k+1]].

    A file that ends inside a message is refused; the error names the node it ends in.
    """
    held, count, last = b"", 0, ""
    while True:
        more = file.read(block_B)
        data = held + more
        bounds, at, end = [], 0, len(data)
        while at < end:
            length, begin = _length(data, at, end)
            if begin < 0 or begin + length > end:
                break
            bounds += (begin, begin + length)
            at = begin + length
            if length > MOST_MESSAGE_B:
                raise TraceError(
                    f"{name}: message {count + len(bounds) // 2} claims {length} bytes"
                )
        if bounds:
            count += len(bounds) // 2
            last = _called(data[bounds[-2] : bounds[-1]], count - 1)
            yield data, bounds
        held = data[at:]
        if not more:
            if held:
                raise _cut_off(held, name, count, last)
            return
        length, begin = _length(held, 0, len(held)) if held else (0, 0)
        if length > MOST_MESSAGE_B:
            raise TraceError(f"{name}: message {count} claims {length} bytes; the file is damaged")
        # A message larger than a block is read in one go, not copied block by block.
        block_B = max(BLOCK_B, length - len(held) if begin > 0 else 0)


def _length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(length, where the message begins), or (0, -1) where the length itself is cut off."""
    value = shift = 0
    for i in range(at, min(end, at + 10)):
        value |= (data[i] & 127) << shift
        if data[i] < 128:
            return value, i + 1
        shift += 7
    if end - at >= 10:
        raise TraceError("a message has a length of more than ten bytes; is this a Chakra trace?")
    return 0, -1


def _called(message: bytes, number: int) -> str:
    if number == 0:
        return "the metadata"
    try:
        return f"node {decode_node(message).id}"
    except TraceError:
        return f"message {number}"


def _cut_off(held: bytes, name: str, count: int, last: str) -> TraceError:
    """The error for a file that ends too early: which node, as far as its bytes tell."""
    length, begin = _length(held, 0, len(held))
    where, node = f"message {count}", None
    with contextlib.suppress(TraceError):
        for number, kind, value, _, _ in wire.fields(held, max(begin, 0), len(held)):
            if number == 1 and kind == wire.VARINT:
                where, node = f"node {value}", value
                break
    have = len(held) - max(begin, 0)
    after = f" (after {last})" if last else ""
    return TraceError(
        f"{name}: truncated in {where}{after}: {have} of {length} bytes; copy the file again", node
    )


def read_messages(path: str | Path) -> Iterator[bytes]:
    """The messages of a trace file, one after the other."""
    with _opened(path) as file:
        for data, bounds in blocks(file, str(path)):
            for k in range(0, len(bounds), 2):
                yield data[bounds[k] : bounds[k + 1]]


def open_trace(path: str | Path) -> tuple[Metadata, Iterator[EtNode]]:
    """(metadata, nodes) of a trace; the nodes are read while they are asked for.

    An error names the file and the node.
    """
    messages = read_messages(path)
    first = next(messages, None)
    if first is None:
        raise TraceError(f"{path}: is empty; a trace begins with its GlobalMetadata")
    try:
        metadata = decode_metadata(first)
    except TraceError as failure:
        raise TraceError(f"{path}: the metadata is damaged: {failure}") from None

    def nodes() -> Iterator[EtNode]:
        last: int | None = None
        for number, message in enumerate(messages):
            try:
                node = decode_node(message)
            except TraceError as failure:
                after = "" if last is None else f", after node {last}"
                raise TraceError(f"{path}: node number {number}{after}: {failure}", last) from None
            last = node.id
            yield node

    return metadata, nodes()


def write_trace(path: str | Path, metadata: Metadata, nodes: Iterable[EtNode]) -> int:
    """Write a trace, whole or not at all; gives the number of nodes."""
    return write_messages(path, encode_metadata(metadata), map(encode_node, nodes))


def write_messages(path: str | Path, head: bytes, messages: Iterable[bytes]) -> int:
    """Write encoded messages with their lengths beside the place and rename the file."""
    target, count = Path(path), 0
    if not target.parent.is_dir():
        raise TraceError(f"{target}: there is no folder {target.parent}; make it first")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb", buffering=BLOCK_B) as file:
            file.write(wire.varint(len(head)) + head)
            for message in messages:
                file.write(wire.varint(len(message)) + message)
                count += 1
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return count


def _opened(path: str | Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as failure:
        raise TraceError(f"{path}: cannot be read: {failure.strerror}; check the path") from None
