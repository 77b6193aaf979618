"""`LazyCheckpointer`: DataStates for an ordinary PyTorch training loop, on one or many ranks.

checkpointer = LazyCheckpointer(model, optimiser, CheckpointStore("checkpoints"))
start = checkpointer.restore() or 0
for iteration in range(start, 1000):
    loss(model, batch(iteration)).backward()
    optimiser.step()                        # waits, by itself, for an unfinished copy
    optimiser.zero_grad()
    checkpointer.save(iteration + 1)        # returns at once
checkpointer.close()
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import msgspec

from orrery.base.errors import PlatformLacks, UsageError
from orrery.systems.resilience.datastates_llm.ring import Ring
from orrery.systems.resilience.datastates_llm.store import CheckpointStore, ShardWriter
from orrery.systems.resilience.problems.shards import CheckpointError, Layout, WrongShape


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise PlatformLacks(
            "LazyCheckpointer keeps PyTorch modules; install orrery[torch], or use "
            "CheckpointStore.save with NumPy arrays"
        ) from None
    return torch


class LazyCheckpointer:
    """Keeps a module and its optimiser: copied while forward and backward run, flushed behind.

    `save(iteration)` only notes what is wanted. One thread copies tensors piece by piece into a
    ring of host memory (pinned where the tensors are on a GPU) that is allocated once; another
    writes the pieces, makes the shard safe and commits. `optimiser.step()` waits by itself, through
    a hook, while a copy is unfinished; so may you, by `before_update()`.

    Parameters and optimiser state must not change outside `step()`. Buffers of the module may: they
    change in forward passes, so `save` copies them at once.

    A save that fails does not stop training: its error is in `failed`, and `wait()` raises it. The
    checkpoint before it stays. Nothing is dropped: storage that is too slow makes updates wait.

    `module` and `optimiser` are anything with `state_dict` and `load_state_dict`; the optimiser may
    be None. `buffer_B` is the host buffer, `piece_B` the most that is copied at once; `lazy=False`
    makes `save` wait for the copy; `clock` (such as `time.perf_counter`) lets it count the seconds
    in `waited_s` for which training waited.
    """

    def __init__(
        self,
        module: Any,
        optimiser: Any,
        store: CheckpointStore,
        *,
        buffer_B: int = 512 << 20,
        piece_B: int = 16 << 20,
        lazy: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        for name, value in (("buffer_B", buffer_B), ("piece_B", piece_B)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"LazyCheckpointer({name}={value!r}): give bytes >= 1")
        self._torch = _torch()
        self._module, self._optimiser, self.store = module, optimiser, store
        self._lazy, self._clock = lazy, clock
        self._piece_B = min(piece_B, buffer_B)
        pinned = any(t.is_cuda for t in module.state_dict().values() if _is_tensor(t))
        memory = self._torch.empty(buffer_B, dtype=self._torch.uint8, pin_memory=pinned)
        self._host = memory
        self.ring = Ring(buffer_B, memory.numpy())
        self._stream = self._torch.cuda.Stream() if pinned else None
        self._freed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._copier = ThreadPoolExecutor(1, "checkpoint-copy")
        self._flusher = ThreadPoolExecutor(1, "checkpoint-flush")
        self._copy: Future[None] | None = None
        self._flushes: list[tuple[int, Future[Any]]] = []
        self.waited_s = 0.0
        self.failed: list[tuple[int, CheckpointError]] = []
        self.damaged: list[tuple[int, CheckpointError]] = []
        self._hook = None
        if optimiser is not None and hasattr(optimiser, "register_step_pre_hook"):
            self._hook = optimiser.register_step_pre_hook(lambda *_: self.before_update())

    # -- training calls these

    def save(self, iteration: int, small: Mapping[str, Any] | None = None) -> None:
        """Keep the state as it is now; nothing may change it before the next `before_update`.

        `small` is anything else worth keeping, made of plain numbers, texts, lists and tables.
        """
        began = self._now()
        self._wait_for_copy()
        tensors, rest = _apart(self._state())
        packed = _pack({"rest": rest, "small": dict(small or {})})
        layout = Layout.packed(
            (name, str(t.dtype), tuple(t.shape), t.numel() * t.element_size())
            for name, t in tensors.items()
        )
        ready = None
        if self._stream is not None:
            ready = self._torch.cuda.Event()
            ready.record()
        self._copy = self._copier.submit(self._copy_all, iteration, tensors, layout, packed, ready)
        if not self._lazy:
            self._wait_for_copy()
        self.waited_s += self._now() - began

    def before_update(self) -> None:
        """Wait until the copy that was asked for last is whole; then the state may change."""
        began = self._now()
        self._wait_for_copy()
        self.waited_s += self._now() - began

    def wait(self) -> None:
        """Wait until all that was asked for is safe; raises the first failure since last time."""
        self._wait_for_copy()
        self._harvest(self._flushes)
        if self.failed:
            first = self.failed[0][1]
            self.failed = []
            raise first

    def close(self) -> None:
        """Wait for all, end the threads, leave the optimiser as it was."""
        try:
            self.wait()
        finally:
            if self._hook is not None:
                self._hook.remove()
                self._hook = None
            self._copier.shutdown()
            self._flusher.shutdown()

    def restore(self, iteration: int | None = None) -> int | None:
        """Load a checkpoint (left out: the newest whole one); gives its iteration, or None.

        Newer ones that do not count are in `damaged`, with what is wrong with them.
        """
        if iteration is None:
            self.damaged = []
            iteration = self.store.newest(self.damaged)
            self.store.drop_newer(-1 if iteration is None else iteration)
            if iteration is None:
                return None
        record, data = self.store.read(iteration)
        tensors = {t.name: self._tensor(t, data) for t in record.layout.tensors}
        rest = msgspec.msgpack.decode(record.small)["rest"]
        state = _joined(rest, tensors)
        self._must_fit(state["module"])
        self._module.load_state_dict(state["module"])
        if self._optimiser is not None:
            if state["optimiser"] is None:
                raise WrongShape(f"iteration {iteration}: holds no optimiser; give None for it")
            self._optimiser.load_state_dict(state["optimiser"])
        return iteration

    def small(self, iteration: int) -> dict[str, Any]:
        """What was given to `save` as `small`."""
        record, _ = self.store.read(iteration)
        found: dict[str, Any] = msgspec.msgpack.decode(record.small)["small"]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    # -- behind training

    def _copy_all(self, iteration: int, tensors: dict[str, Any], layout: Layout, packed: bytes,
                  ready: Any) -> None:  # fmt: skip
        first: list[ShardWriter] = []
        for tensor, start, stop in layout.pieces(self._piece_B):
            slot = self._take(stop - start)
            source = tensors[tensor.name].detach().contiguous().reshape(-1).view(
                self._torch.uint8)[start:stop]  # fmt: skip
            self._copy_piece(self._host[slot : slot + stop - start], source, ready)
            self._submit(iteration, self._flush_piece, first, iteration, layout, slot, stop - start)
        self._submit(iteration, self._conclude, first, iteration, layout, packed)

    def _submit(self, iteration: int, work: Callable[..., Any], *given: Any) -> None:
        self._flushes.append((iteration, self._flusher.submit(work, *given)))

    def _copy_piece(self, slot: Any, source: Any, ready: Any) -> None:
        if self._stream is None:
            slot.copy_(source)
            return
        with self._torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            slot.copy_(source, non_blocking=True)
        self._stream.synchronize()

    def _take(self, size_B: int) -> int:
        """A slot of the ring; waits for the flusher while there is none."""
        while True:
            while not self._freed.empty():
                self._freed.get()
                self.ring.give_back()
            slot = self.ring.take(size_B)
            if slot is not None:
                return slot
            self._freed.get()
            self.ring.give_back()

    def _flush_piece(
        self, first: list[Any], iteration: int, layout: Layout, slot: int, size_B: int
    ) -> None:
        try:
            if not first:
                first.append(None)  # a save that failed once is not begun again by its next piece
                first[0] = self.store.begin(iteration, layout)
            if first[0] is not None:
                first[0].append(self.ring.slot(slot, size_B))
        except CheckpointError:
            first[0] = None
            raise
        finally:
            self._freed.put(None)

    def _conclude(self, first: list[Any], iteration: int, layout: Layout, packed: bytes) -> None:
        if first and first[0] is None:
            return  # its failure is known already
        writer = first[0] if first else self.store.begin(iteration, layout)
        writer.finish(packed)
        self.store.commit(iteration)

    # -- small things

    def _state(self) -> dict[str, Any]:
        optimiser = None if self._optimiser is None else self._optimiser.state_dict()
        module = dict(self._module.state_dict())
        # Buffers, such as the running means of a batch norm, change in the forward pass already;
        # they are small, so they are copied at once.
        for name, _ in getattr(self._module, "named_buffers", list)():
            if name in module:
                module[name] = module[name].clone()
        return {"module": module, "optimiser": optimiser}

    def _wait_for_copy(self) -> None:
        if self._copy is not None:
            self._copy.result()
            self._copy = None
            self._harvest([pair for pair in self._flushes if pair[1].done()])

    def _harvest(self, ended: list[tuple[int, Future[Any]]]) -> None:
        """Note what failed; called only while no copy is under way, so nobody else is at it."""
        for iteration, flush in ended:
            try:
                flush.result()
            except CheckpointError as error:
                self.failed.append((iteration, error))
        self._flushes = [pair for pair in self._flushes if pair not in ended]

    def _now(self) -> float:
        return self._clock() if self._clock is not None else 0.0

    def _tensor(self, layout: Any, data: memoryview) -> Any:
        torch = self._torch
        dtype = getattr(torch, layout.dtype.removeprefix("torch."), None)
        if dtype is None:
            raise WrongShape(f"tensor {layout.name!r}: this torch has no {layout.dtype}")
        if not layout.size_B:
            return torch.empty(layout.shape, dtype=dtype)
        part = data[layout.offset : layout.offset + layout.size_B]
        # A copy, because a dtype may want another alignment than its offset has.
        return torch.frombuffer(bytearray(part), dtype=dtype).reshape(layout.shape)

    def _must_fit(self, saved: Mapping[str, Any]) -> None:
        def layout(tensors: Mapping[str, Any]) -> Layout:
            return Layout.packed(
                (name, str(t.dtype), tuple(t.shape), 0)
                for name, t in tensors.items() if _is_tensor(t)
            )  # fmt: skip

        layout(saved).must_fit(layout(self._module.state_dict()))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "element_size") and hasattr(value, "numel")


def _apart(state: Any) -> tuple[dict[str, Any], Any]:
    """The tensors of a nested state by path, and the rest with their paths in their places.

    >>> _apart({"lr": 0.1, "sizes": [1, 2]})
    ({}, {'d': [['lr', {'v': 0.1}], ['sizes', {'l': [{'v': 1}, {'v': 2}]}]]})
    """
    tensors: dict[str, Any] = {}

    def walk(value: Any, path: str) -> Any:
        if _is_tensor(value):
            tensors[path] = value
            return {"t": path}
        if isinstance(value, Mapping):
            return {"d": [[key, walk(each, f"{path}/{key}")] for key, each in value.items()]}
        if isinstance(value, list | tuple):
            kind = "l" if isinstance(value, list) else "u"
            return {kind: [walk(each, f"{path}/{i}") for i, each in enumerate(value)]}
        return {"v": value}

    return tensors, walk(state, "")


def _joined(rest: Any, tensors: Mapping[str, Any]) -> Any:
    """The nested state again."""
    ((kind, value),) = rest.items()
    if kind == "t":
        return tensors[value]
    if kind == "d":
        return {key: _joined(each, tensors) for key, each in value}
    if kind == "v":
        return value
    items = [_joined(each, tensors) for each in value]
    return items if kind == "l" else tuple(items)


def _pack(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError) as failure:
        raise UsageError(
            f"small state cannot be written: {failure}; give plain numbers, texts, lists, tables"
        ) from None
