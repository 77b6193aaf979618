"""Reader of the Splitwise profiles: whole prompt and token phases, with time and power (MIT).

One CSV: model, hardware, sizes, `prompt_time` and `token_time` in milliseconds, `peak_power` and
`average_power` as fractions of the device's limit (0 where power was not measured), and the degree
of tensor parallelism. `PhaseSteps` makes step times of it: coarser than tables of operations, but
measured on whole engines, and with energy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from orrery.base.errors import SpecError, did_you_mean
from orrery.models.device import Device
from orrery.models.optable import Lookup, OpTable, Tables
from orrery.models.specs import ModelSpec
from orrery.models.steps import RooflineSteps, Spread, as_device
from orrery.models.tables.files import read_csv

MODELS = {"Llama-2-70B": "llama2-70b", "BLOOM-176B": "bloom-176b"}
HARDWARE = {"A100-80-SXM": "a100-80gb", "H100-SXM": "h100-80gb"}
_COLUMNS = (
    "model", "hardware", "prompt_size", "batch_size", "token_size", "peak_power", "average_power",
    "prompt_time", "token_time", "tensor_parallel",
)  # fmt: skip
_MS = 1e-3


def read_splitwise(path: Path, model: ModelSpec, device: Device, tp: int) -> Tables:
    """Two tables of a model on a device: `prompt_phase` by tokens, `token_phase` by sequences.

    Power is in W of one device: that of prompts is the peak of a run, which they reach, that of
    tokens the mean of a run, which is nearly all tokens. Runs in which twice the prompt took less
    time are failed ones, and left out.
    """
    columns = read_csv(path, _COLUMNS)
    theirs, hardware = MODELS.get(model.name), HARDWARE.get(device.name)
    keep = (columns["model"] == theirs) & (columns["hardware"] == hardware)
    keep &= columns["tensor_parallel"] == tp
    if not keep.any():
        have = {
            f"{m} on {h} x{int(n)}"
            for m, h, n in zip(
                columns["model"], columns["hardware"], columns["tensor_parallel"], strict=True
            )
        }
        wanted = f"{theirs or model.name} on {hardware or device.name} x{tp}"
        raise SpecError(f"{path}", f"no rows of {wanted}", did_you_mean(wanted, have))
    rows = {name: column[keep] for name, column in columns.items()}
    limit_W = device.accelerator.active_W or 0.0
    prompts = rows["prompt_size"] * rows["batch_size"]
    sound = _rising(prompts, rows["prompt_time"])
    # The tokens of long answers run into the engine's limit of length; those of 128 do not.
    short = sound & (rows["token_size"] == 128) & (rows["prompt_size"] == 512)
    fixed = {"model": model.name, "tp": tp}
    made = [
        _phase("prompt_phase", {"tokens": prompts[sound]}, rows, sound, device, fixed, limit_W),
        _phase("token_phase", {"sequences": rows["batch_size"][short]}, rows, short, device, fixed,
               limit_W),
    ]  # fmt: skip
    return Tables(device.name, made, source=f"Splitwise profiles {path}")


def _phase(
    op: str, axes: dict[str, np.ndarray], rows: dict[str, np.ndarray], keep: np.ndarray,
    device: Device, fixed: dict[str, int | float | str], limit_W: float,
) -> OpTable:  # fmt: skip
    time, power = (
        ("prompt_time", "peak_power") if op == "prompt_phase" else ("token_time", "average_power")
    )
    watts = np.where(rows[power][keep] > 0, rows[power][keep] * limit_W, np.nan)
    return OpTable.from_points(
        op, axes, rows[time][keep] * _MS, device=device.name, dtype="fp16", fixed=fixed,
        backend="splitwise", source="Splitwise profiles", watts=watts,
    )  # fmt: skip


def _rising(sizes: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Which rows took at least as long as the median row of half their size."""
    halves = {size: np.median(times[sizes == size / 2]) for size in np.unique(sizes)
              if np.any(sizes == size / 2)}  # fmt: skip
    least = np.array([halves.get(size, 0.0) for size in sizes])
    return times >= least


class PhaseSteps(RooflineSteps):
    """Step times of whole phases: a step with prompts takes the prompt phase of all its tokens, one
    without takes the token phase of its sequences.

    The length of the contexts is not in the profiles; what it adds beyond that of the measured runs
    (about 576 tokens) is taken from the roofline.
    """

    measured = True
    context = 576  # prompts of 512 and half of 128 tokens

    def __init__(
        self, model: ModelSpec | str, device: Device | str, tp: int, path: str | Path,
        overhead_s: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(model, as_device(device), tp, overhead_s=overhead_s)
        self.tables = read_splitwise(Path(path), self.model, self.device, tp)
        found = {table.op: table for table in self.tables}
        roofline = RooflineSteps(self.model, self.device, tp)
        self._prompt_phase = Lookup(
            found["prompt_phase"], lambda dims: _map(
                lambda size: roofline.seconds([(int(size), 0)], 0, 0), dims["tokens"])
        )  # fmt: skip
        self._token_phase = Lookup(
            found["token_phase"], lambda dims: _map(
                lambda size: roofline.seconds([], int(size), int(size) * self.context),
                dims["sequences"])
        )  # fmt: skip

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int,
        spread: Spread = None,
    ) -> float:  # fmt: skip
        """Seconds of one step; see `Steps`."""
        if not prefill:
            return self.decode_run(decodes, decode_kv, 1)
        base_s = super().seconds(prefill, decodes, decode_kv)
        tokens = sum(new for new, _ in prefill) + decodes
        took_s, out = self._prompt_phase.one(float(tokens))
        self._count("prompt_phase", out, 1)
        # Histories add what the roofline says; the profile has prompts without any.
        plain_s = super().seconds([(tokens, 0)], 0, 0)
        return took_s + max(base_s - plain_s, 0.0) + self.overhead_s

    def decode_run(
        self, decodes: int, decode_kv: int, steps: int, spread: Spread = None
    ) -> float:  # fmt: skip
        """Seconds of pure decode steps in a row; see `Steps`."""
        base_s = super().decode_run(decodes, decode_kv, steps)
        if not base_s:
            return 0.0
        one_s, out = self._token_phase.one(float(decodes))
        self._count("token_phase", out, steps)
        same_s = super().decode_run(decodes, decodes * self.context, 1) - self.overhead_s
        return max((one_s - same_s) * steps + base_s, base_s)

    def _count(self, op: str, out: bool, steps: int) -> None:
        if out:
            self.extrapolated += steps
            self.outside[op] = self.outside.get(op, 0) + steps

    def _energy(self, took_s: float, effort: float, prompts: bool) -> float:
        """Measured power where there is one, else the model of power."""
        op = "prompt_phase" if prompts else "token_phase"
        watts = next(table for table in self.tables if table.op == op).watts
        known = watts[~np.isnan(watts)] if watts is not None else np.array([])
        if not len(known):
            return super()._energy(took_s, effort, prompts)
        return float(np.median(known)) * took_s


def _map(price: Callable[[float], float], sizes: np.ndarray) -> np.ndarray:
    return np.array([price(max(size, 1.0)) for size in np.ravel(sizes)]).reshape(np.shape(sizes))


__all__ = ["HARDWARE", "MODELS", "PhaseSteps", "read_splitwise"]
