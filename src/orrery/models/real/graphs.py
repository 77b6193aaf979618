"""`Graphs`: steps that are recorded once for each padded size, and then only replayed.

Launching a step kernel by kernel takes the host longer than a small model takes the GPU. A CUDA
graph is launched whole. Steps are padded to the next of some sizes; decodes alone have small sizes,
steps with prompt chunks have larger ones. The likeliest tokens are chosen within the recording, so
that one copy brings a step's numbers to the device, and one brings the tokens back.

What cannot be recorded goes the old way, kernel by kernel: experts (their sizes depend on data),
latent attention, machines without CUDA or Triton, and steps beyond the largest size.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

from orrery.base.errors import UsageError
from orrery.models.real import kernels
from orrery.models.real.backend import torch
from orrery.models.real.frames import Attend, Desk, Frame, Size
from orrery.models.real.paged import PagedCache, Piece

# A function that computes a step -> a function that computes it again from the same memory.
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]


def decode_sizes(most: int) -> list[int]:
    """Padded sizes of steps in which everyone decodes.

    >>> decode_sizes(20)
    [1, 2, 4, 8, 12, 16, 20]
    """
    found = [n for n in (1, 2, 4, 8, 12, 16) if n < most]
    found += [n for n in range(24, 64, 8) if n < most]
    return [*found, *range(64, most, 16), most]


def mixed_sizes(most: int, above: int = 0) -> list[int]:
    """Padded sizes of steps with prompt chunks: above those of decodes, so that none is both.

    >>> mixed_sizes(400, above=64)
    [128, 192, 256, 320, 384, 400]
    """
    found = [*range(64, 1024, 64), *range(1024, 2048, 128), *range(2048, most, 256)]
    return [*(n for n in found if above < n < most), max(most, above + 1)]


def can_record(model: Any) -> bool:
    """Whether a model's steps can be recorded on its device."""
    spec = model.spec
    if not str(model.device).startswith("cuda") or not kernels.ready():
        return False
    plain = not (spec.kv_lora_rank or spec.experts)
    return plain and model.dtype in (torch.float16, torch.bfloat16)


class CudaCapture:
    """Records with CUDA graphs, which share one pool of memory: no two are replayed at once."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: Any = None

    def __call__(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        cuda = torch.cuda
        if self._pool is None:
            self._pool, self._stream = cuda.graph_pool_handle(), cuda.Stream()
        # Kernels are built and loaded, and libraries take their memory, outside of a recording.
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            compute()
        cuda.current_stream().wait_stream(self._stream)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = compute()

        def replay() -> Any:
            graph.replay()
            return result

        return replay


class Graphs:
    """A model's steps over one cache, recorded.

    capture   how a step is recorded; CUDA graphs by default
    attend    what computes attention of a `Frame`; the Triton kernel by default
    """

    def __init__(
        self, model: Any, cache: PagedCache, *, step_tokens: int, max_sequences: int,
        capture: Capture | None = None, attend: Attend | None = None,
    ) -> None:  # fmt: skip
        if step_tokens < 1 or max_sequences < 1:
            raise UsageError(
                f"Graphs: step_tokens={step_tokens}, max_sequences={max_sequences}; give 1 or more"
            )
        self.model, self.cache = model, cache
        self.decode_sizes = decode_sizes(max_sequences)
        self.mixed_sizes = mixed_sizes(step_tokens, above=max_sequences)
        self.max_sequences = max_sequences
        self._capture, self._attend = capture or CudaCapture(), attend or kernels.attend
        spec = model.spec
        self._desk = Desk(
            cache, tokens=self.mixed_sizes[-1], sequences=max_sequences,
            group=spec.heads // spec.kv_heads,
        )  # fmt: skip
        self._recorded: dict[tuple[int, bool], tuple[Size, Callable[[], Any]]] = {}
        self.replays = self.refused = 0

    @property
    def pads(self) -> dict[str, list[int]]:
        """To which tokens a step is padded: one that only decodes, and one with prompt chunks."""
        return {"decode": list(self.decode_sizes), "mixed": list(self.mixed_sizes)}

    def size_of(self, pieces: Sequence[Piece]) -> tuple[int, bool] | None:
        """(padded tokens, whether all decode) of a step; None where no size is large enough."""
        many = len(pieces)
        tokens = sum(len(piece.tokens) for piece in pieces)
        decodes = tokens == many and all(piece.sample for piece in pieces)
        sizes = self.decode_sizes if decodes else self.mixed_sizes
        at = bisect.bisect_left(sizes, tokens)
        if many > self.max_sequences or at == len(sizes):
            return None
        return sizes[at], decodes

    def step(self, pieces: Sequence[Piece]) -> tuple[Any, list[int]] | None:
        """(logits, likeliest token) of the sampled pieces; None: not a step for a recording.

        The logits are overwritten by the next step.
        """
        key = self.size_of(pieces) if pieces else None
        if key is None:
            self.refused += 1
            return None
        self._refuse(pieces)
        size, replay = self._recorded.get(key) or self._record(*key)
        sampled = sum(piece.sample for piece in pieces)
        with torch.inference_mode():
            self._desk.fill(pieces, size)
            logits, likeliest = replay()
            self.replays += 1
            # Reading the tokens waits for the step, also when nobody wants one.
            return logits[:sampled], likeliest.tolist()[:sampled]

    def prepare(self) -> None:
        """Record every size, the largest first, so that the others find memory to share."""
        for key in [
            *((n, False) for n in reversed(self.mixed_sizes)),
            *((n, True) for n in reversed(self.decode_sizes)),
        ]:
            if key not in self._recorded:
                self._record(*key)

    def _refuse(self, pieces: Sequence[Piece]) -> None:
        """A piece that would write beyond its blocks must not come to a kernel."""
        block, longest = self.cache.block_tokens, self.model.max_context
        for number, piece in enumerate(pieces):
            length = piece.start + len(piece.tokens)
            if length > longest or len(piece.table) * block < length:
                raise UsageError(
                    f"pieces[{number}]: {length} tokens, {len(piece.table)} blocks of {block}, "
                    f"a context of {longest}"
                )

    def _record(self, tokens: int, decodes: bool) -> tuple[Size, Callable[[], Any]]:
        size = Size(tokens, tokens if decodes else self.max_sequences, decodes)
        model, cache, desk = self.model, self.cache, self._desk
        # A first run on whatever is there must not touch a block that somebody owns.
        quiet = [Piece([0], 0, [cache.blocks])]
        with torch.inference_mode():
            desk.fill(quiet, size)
            desk.forget()

            def compute() -> Any:
                frame = Frame(desk, size, self._attend)
                windowed = frame
                if model.spec.window:
                    windowed = Frame(desk, size, self._attend, window=model.spec.window)
                logits = model.step((), cache, plans=(frame, windowed))
                return logits, logits.argmax(-1)

            made = self._recorded[tokens, decodes] = size, self._capture(compute)
        return made


__all__ = ["Capture", "CudaCapture", "Graphs", "can_record", "decode_sizes", "mixed_sizes"]
