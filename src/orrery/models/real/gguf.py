"""A reader of GGUF files: metadata, and tensors as NumPy arrays, with the common quantisations.

The format is described in ggml's `docs/gguf.md` (version 3): a header, key-value pairs, a table of
tensors, then the data, aligned. The file is mapped, so a tensor is read when it is asked for.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from orrery.base.errors import CodecError, UsageError, did_you_mean

MAGIC = b"GGUF"
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
# Number of the type -> (name, elements of a block, bytes of a block).
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2),
}  # fmt: skip
# A file that claims more than this is damaged; it keeps a bad length from eating all memory.
_MOST = 1 << 28

Floats = npt.NDArray[np.float32]


class TensorInfo(NamedTuple):
    """Where a tensor is; `shape` has the slowest dimension first, as in NumPy."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """One GGUF file: `metadata` (a dict), `tensors` (by name), `read(name)`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read as a GGUF file: {error}") from None
        self._at = 0
        try:
            self._read_head()
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise CodecError(f"{path}: a damaged GGUF file (at byte {self._at}: {error})") from None

    def _read_head(self) -> None:
        if self._bytes(4) != MAGIC:
            raise CodecError(f"{self.path}: not a GGUF file (it does not begin with GGUF)")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise CodecError(f"{self.path}: GGUF version {version}; versions 2 and 3 are read")
        tensors, pairs = self._scalar("<Q"), self._scalar("<Q")
        if max(tensors, pairs) > _MOST:
            raise CodecError(f"{self.path}: {tensors} tensors, {pairs} entries: a damaged file")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._text()
            self.metadata[key] = self._value(self._scalar("<I"))
        self.tensors: dict[str, TensorInfo] = {}
        for _ in range(tensors):
            name, dims = self._text(), self._scalar("<I")
            if dims > 8:
                raise CodecError(f"{self.path}: tensor {name!r} has {dims} dimensions")
            shape = tuple(self._scalar("<Q") for _ in range(dims))
            kind, offset = self._scalar("<I"), self._scalar("<Q")
            self.tensors[name] = TensorInfo(name, shape[::-1], kind, offset)
        align = int(self.metadata.get("general.alignment", 32))
        if align < 1:
            raise CodecError(f"{self.path}: general.alignment is {align}")
        self._start = -(-self._at // align) * align

    # -- the pieces of the header

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise CodecError(f"{self.path}: ends at byte {len(self._data)}, inside a value")
        self._at += count
        return self._data[self._at - count : self._at]

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _text(self) -> str:
        return self._bytes(self._scalar("<Q")).decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._scalar("<I"), self._scalar("<Q")
            if count > _MOST:
                raise CodecError(f"{self.path}: an array of {count} values: a damaged file")
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise CodecError(f"{self.path}: a metadata value of unknown kind {kind}")
        return self._scalar(_SCALARS[kind])

    # -- tensors

    def need(self, key: str) -> Any:
        """A metadata entry, or an error that names it."""
        if key not in self.metadata:
            raise CodecError(f"{self.path}: the entry {key!r} is missing")
        return self.metadata[key]

    def read(self, name: str) -> Floats:
        """A tensor as float32, dequantised."""
        info = self.tensors.get(name)
        if info is None:
            fix = did_you_mean(name, self.tensors)
            raise UsageError(f"{self.path}: no tensor {name!r}; {fix}")
        if info.kind not in _TYPES:
            known = ", ".join(each[0] for each in _TYPES.values())
            raise CodecError(f"{self.path}: {name} has quantisation {info.kind}; read are {known}")
        kind, per_block, block_bytes = _TYPES[info.kind]
        count = int(np.prod(info.shape, dtype=np.int64))
        if count % per_block:
            raise CodecError(f"{self.path}: {name} has {count} elements, no whole {kind} blocks")
        begin, size = self._start + info.offset, count // per_block * block_bytes
        if begin + size > len(self._data):
            raise CodecError(f"{self.path}: the data of {name} lie beyond the end of the file")
        raw = np.frombuffer(self._data, np.uint8, size, begin)
        return dequantise(raw, kind).reshape(info.shape)


def dequantise(raw: npt.NDArray[np.uint8], kind: str) -> Floats:
    """Bytes of a ggml type as float32. Blocks of 32 share a scale, the `_1` kinds also a minimum.

    >>> dequantise(np.array([0, 0x3C] + [3] * 32, np.uint8), "Q8_0")[:3].tolist()
    [3.0, 3.0, 3.0]
    """
    if kind == "F32":
        return raw.view(np.float32).copy()
    if kind == "F16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    width = next(block for name, _, block in _TYPES.values() if name == kind)
    blocks = raw.reshape(-1, width)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    at, low = 2, None
    if kind.endswith("_1"):
        low, at = blocks[:, 2:4].copy().view(np.float16).astype(np.float32), 4
    if kind.startswith("Q5"):
        bits = blocks[:, at : at + 4].copy().view(np.uint32)
        high = ((bits >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << 4
        at += 4
    else:
        high = np.zeros((1, 32), np.uint8)
    packed = blocks[:, at:]
    values = (np.concatenate([packed & 15, packed >> 4], axis=1) | high).astype(np.float32)
    if low is None:
        return ((values - (16 if kind == "Q5_0" else 8)) * scale).reshape(-1)
    return (values * scale + low).reshape(-1)
