"""Checkpoints of a real PyTorch state at every iteration: ours, torch.save, an asynchronous copy.

Prints JSON, measured on this machine: seconds for which training waited per checkpoint, seconds end
to end over the same steps, beside none at all; `copy_s` is one copy of the state in memory,
`save_s` one durable torch.save, `torch_save_Bps` the speed of torch.save to memory-backed files.
`throttled` has storage that is too slow, beside bytes / bandwidth - iteration. Every rival's file
is made safe by fsync and rename, as ours is. With `--cuda` and a width (`--cuda 8192`), the state
is on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from orrery.systems.resilience.datastates_llm import CheckpointStore, LazyCheckpointer

WIDTH, LAYERS = 2048, 4
DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"
ROWS = 64 if DEVICE == "cpu" else 8192


class Throttled(CheckpointStore):
    """Storage of a given speed."""

    rate_Bps = 1e12
    due = 0.0

    def write(self, file: int, view: memoryview) -> None:
        super().write(file, view)
        # On the average: time that checksums and fsync take is not added to that of the bytes.
        self.due = (self.due or time.perf_counter()) + len(view) / self.rate_Bps
        time.sleep(max(self.due - time.perf_counter(), 0.0))


def build(layers: int = LAYERS):
    """A module and its optimiser, whose moments exist already."""
    torch.manual_seed(0)
    parts = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(layers)]
    module = torch.nn.Sequential(*(each for pair in parts for each in pair)).to(DEVICE)
    optimiser = torch.optim.AdamW(module.parameters(), 1e-4)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    return module, optimiser


def state_of(module, optimiser):
    return {"module": module.state_dict(), "optimiser": optimiser.state_dict()}


def on_host(state):
    """A copy of a nested state in ordinary host memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: on_host(value) for name, value in state.items()}
    return [on_host(value) for value in state] if isinstance(state, list) else state


def settle() -> None:
    """Wait until the device has done what was asked."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def bytes_of(module) -> int:
    return 3 * sum(p.numel() * p.element_size() for p in module.parameters())


def safe_save(state, path: Path) -> None:
    """torch.save that survives a power cut."""
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


class Rival:
    """A way to checkpoint with the calls of `LazyCheckpointer`."""

    def __init__(self, module, optimiser, folder: Path) -> None:
        self.module, self.optimiser, self.folder = module, optimiser, folder
        self.waited_s = 0.0

    def save(self, iteration: int) -> None:
        began = time.perf_counter()
        self.keep(iteration)
        self.waited_s += time.perf_counter() - began

    def keep(self, iteration: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is left to do."""


class TorchSave(Rival):
    """Training waits until the file is safe."""

    def keep(self, iteration: int) -> None:
        safe_save(state_of(self.module, self.optimiser), self.folder / f"{iteration % 2}.pt")


class AsyncCopy(Rival):
    """Training waits for a copy in memory; a thread saves it, one at a time."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.thread = ThreadPoolExecutor(1)
        self.saving = None

    def keep(self, iteration: int) -> None:
        if self.saving is not None:
            self.saving.result()
        copied = on_host(state_of(self.module, self.optimiser))
        self.saving = self.thread.submit(safe_save, copied, self.folder / f"{iteration % 2}.pt")

    def close(self) -> None:
        self.thread.shutdown()


def ours(module, optimiser, folder: Path, lazy: bool = True, rate_Bps: float = 1e12):
    store = Throttled(folder)
    store.rate_Bps = rate_Bps
    # Smaller than the state: what is not yet written must wait on the device.
    return LazyCheckpointer(
        module, optimiser, store, buffer_B=64 << 20, lazy=lazy, clock=time.perf_counter
    )


def train(way, steps: int, micro: int) -> dict[str, float]:
    """Train in steps of some micro-batches, a checkpoint after each, until all is safe."""
    module, optimiser = build()
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = way(module, optimiser, Path(folder))
        began = time.perf_counter()
        busy_s, waited, ends = 0.0, [0.0], [began]
        for iteration in range(1, steps + 1):
            step_began = time.perf_counter()
            for _ in range(micro):
                module(rows).square().mean().backward()
            settle()
            busy_s += time.perf_counter() - step_began
            optimiser.step()
            optimiser.zero_grad()
            settle()
            checkpointer.save(iteration)
            waited.append(checkpointer.waited_s)
            ends.append(time.perf_counter())
        trained_s = time.perf_counter() - began
        checkpointer.close()
        return {
            "time_s": time.perf_counter() - began, "trained_s": trained_s,
            "waited_s": checkpointer.waited_s / steps, "forward_backward_s": busy_s / steps,
            "iteration_s": (trained_s - checkpointer.waited_s) / steps,
            # The first update has no copy to wait for, the second one an empty buffer.
            "steady_s": (waited[-1] - waited[min(2, steps)]) / max(steps - 2, 1),
            "cycle_s": (ends[-1] - ends[min(2, steps)]) / max(steps - 2, 1),
        }  # fmt: skip


WAYS = {
    "none": Rival,
    "ours": ours,
    "not lazy": lambda *given: ours(*given, lazy=False),
    "torch.save": TorchSave,
    "asynchronous copy": AsyncCopy,
}


def probe() -> dict[str, float]:
    """One copy and one save of the state, and torch.save to memory."""
    module, optimiser = build()
    state = state_of(module, optimiser)
    on_host(state)
    began = time.perf_counter()
    on_host(state)
    copy_s = time.perf_counter() - began
    size_B = bytes_of(module)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        safe_save(state, Path(folder) / "x.pt")
        save_s = time.perf_counter() - began
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        began = time.perf_counter()
        torch.save(state, Path(folder) / "x.pt")
        memory_s = time.perf_counter() - began
    return {"state_B": size_B, "copy_s": copy_s, "save_s": save_s,
            "torch_save_Bps": size_B / memory_s}  # fmt: skip


def micro_batches(seconds: float) -> int:
    """The micro-batches with which forward and backward take about so long."""
    found = min(train(Rival, 1, 1)["forward_backward_s"] for _ in range(3))
    return max(round(seconds / found), 1)


def measure(steps: int = 6, rounds: int = 2) -> dict[str, object]:
    """All ways, each the best of some rounds, and storage that is too slow."""
    found = probe()
    # Forward and backward are longer than five copies and than writing the state once.
    micro = micro_batches(max(6 * found["copy_s"], 3.0 * found["save_s"]))
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            runs[name].append(train(way, steps, micro))
    best = {name: min(each, key=lambda one: one["time_s"]) for name, each in runs.items()}
    iteration_s = best["ours"]["iteration_s"]
    slow = {}
    for factor in (2.0, 3.0):
        rate_Bps = found["state_B"] / (factor * iteration_s)
        made = train(lambda *given, r=rate_Bps: ours(*given, rate_Bps=r), steps, micro)
        formula_s = found["state_B"] / rate_Bps - (made["cycle_s"] - made["steady_s"])
        slow[f"{factor:g}"] = {"waited_s": made["steady_s"], "formula_s": formula_s}
    return {**found, "micro_batches": micro, "steps": steps, "ways": best, "throttled": slow}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[-1].isdigit():
        WIDTH = int(sys.argv[-1])
    json.dump(measure(), sys.stdout, indent=1)
    print()
