"""Machines, accelerators and disks, and the catalogue of real ones (`hardware.toml`).

The catalogue holds data-sheet figures, each set with its source beside it. Peaks are dense (no
sparsity) and by dtype; a dtype of which no published figure is known to us is left out.
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from orrery.base.errors import SpecError, WorldError, did_you_mean
from orrery.world.spec import Bytes, Name, NonNegative, Positive, Spec, Text, brief, build

# An idle accelerator's power is seldom on its data sheet. Where it is not, a tenth of the active
# power stands for it; this is an assumption of ours, near what nvidia-smi shows on idle cards.
IDLE_FRACTION = 0.1

# How many bytes one element has, for those who turn memory into elements.
DTYPE_B = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0,
    "fp8": 1.0, "int8": 1.0, "fp6": 0.75, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip


class Accelerator(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator; `link_Bps` is one direction of its fast link (NVLink, ICI, else PCIe)."""

    label: ClassVar[str] = "accelerator"
    name: Name
    peak_flops: dict[str, Positive]
    memory_B: Annotated[int, Meta(gt=0, le=1 << 60)]
    memory_Bps: Positive
    link_Bps: Positive | None = None
    idle_W: NonNegative | None = None
    active_W: NonNegative | None = None
    price_per_h: NonNegative | None = None
    source: Text = ""

    def _check(self) -> None:
        if not self.peak_flops:
            raise self._refuse("peak_flops", "is empty", "give at least one dtype")
        for dtype in self.peak_flops:
            if dtype not in DTYPE_B:
                path = f"peak_flops.{dtype}"
                raise self._refuse(path, "unknown dtype", did_you_mean(dtype, DTYPE_B))
        # Tables are kept in one order, so that the order of writing does not change the hash.
        ordered = dict(sorted(self.peak_flops.items()))
        msgspec.structs.force_setattr(self, "peak_flops", ordered)

    def flops(self, dtype: str) -> float:
        """Peak flop/s of a dtype; a named error when the data sheet has none."""
        if dtype not in self.peak_flops:
            fix = did_you_mean(dtype, self.peak_flops)
            raise WorldError(f"{self.name}.peak_flops.{dtype}", "no published peak", fix)
        return self.peak_flops[dtype]

    def watts(self, busy: float) -> float | None:
        """Power at a busy fraction, or None when the active power is not published."""
        if self.active_W is None:
            return None
        idle_W = self.active_W * IDLE_FRACTION if self.idle_W is None else self.idle_W
        return idle_W + (self.active_W - idle_W) * busy

    def __hash__(self) -> int:
        return hash((self.memory_B, self.memory_Bps, *self.peak_flops.values()))


class Disk(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One disk; the defaults are those of a data-centre NVMe drive (`disk("nvme")`)."""

    label: ClassVar[str] = "disk"
    read_Bps: Positive = 6.9e9
    write_Bps: Positive = 4.1e9
    latency_s: NonNegative = 80e-6
    fsync_s: NonNegative = 20e-6
    page_B: Annotated[int, Meta(gt=0, le=1 << 30)] = 4096
    capacity_B: Bytes = 3_840_000_000_000
    source: Text = "Samsung PM9A3 3.84 TB data sheet (U.2); latencies typical of the class"


class Machine(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine; the defaults are those of `machine("server")`.

    `accelerators` takes Accelerators or names of the catalogue, also as "8xH100-SXM".

    `nic_Bps` left out is the network's bandwidth. Idle and active W and the price are those of the
    whole machine without its accelerators' power, which is added by `watts`.
    """

    label: ClassVar[str] = "machine"
    cores: Annotated[int, Meta(ge=1, le=100_000)] = 32
    cpu_flops: Positive = 2.87e12
    memory_B: Bytes = 256 << 30
    memory_Bps: Positive = 204.8e9
    accelerators: tuple[Accelerator, ...] = ()
    disk: Disk = Disk()
    nic_Bps: Positive | None = None
    idle_W: NonNegative = 100.0
    active_W: NonNegative = 350.0
    price_per_h: NonNegative | None = None
    source: Text = ""

    def _prepare(self) -> None:
        given: Any = self.accelerators
        if isinstance(given, (str, Accelerator)):
            given = (given,)
        if isinstance(given, (list, tuple)):
            found: list[Any] = []
            for i, item in enumerate(given):
                found += _many(item, i) if isinstance(item, str) else [item]
            msgspec.structs.force_setattr(self, "accelerators", tuple(found))
        if isinstance(self.disk, str):
            msgspec.structs.force_setattr(self, "disk", disk(self.disk))

    def _check(self) -> None:
        if len(self.accelerators) > 1024:
            count = len(self.accelerators)
            raise self._refuse("accelerators", f"{count} of them", "give at most 1024")

    def watts(self, cpu_busy: float, accelerator_busy: float = 0.0) -> float:
        """Power with CPU and accelerators busy for these fractions; unpublished power counts 0."""
        total = self.idle_W + (self.active_W - self.idle_W) * cpu_busy
        for item in self.accelerators:
            total += item.watts(accelerator_busy) or 0.0
        return total


def _many(text: str, i: int) -> list[Accelerator]:
    match = re.fullmatch(r"(\d{1,4})x(.+)", text)
    count, name = (int(match[1]), match[2]) if match else (1, text)
    try:
        return [accelerator(name)] * count
    except SpecError as failure:
        raise WorldError(f"machine.accelerators.{i}", failure.problem, failure.fix) from None


# -- the catalogue


@functools.cache
def _catalogue() -> dict[str, dict[str, Any]]:
    text = resources.files("orrery.world").joinpath("hardware.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def lookup(kind: str, name: str) -> dict[str, Any]:
    table: dict[str, dict[str, Any]] = _catalogue()[kind]
    if name in table:
        return table[name]
    folded = {key.lower().replace("_", "-"): key for key in table}
    key = folded.get(str(name).lower().replace("_", "-").replace(" ", "-"))
    if key is None:
        near = [each for each in table if each.lower().startswith(str(name).lower() or "?")]
        fix = f"did you mean {' or '.join(near)}?" if near else did_you_mean(str(name), table)
        raise WorldError(f"{kind}.{brief(name)}", "unknown name", fix)
    return table[key]


def accelerator(name: str) -> Accelerator:
    """An accelerator of the catalogue.

    >>> accelerator("H100-SXM").flops("bf16") / 1e12
    989.4
    """
    data = lookup("accelerators", name)
    label = next(key for key, value in _catalogue()["accelerators"].items() if value is data)
    return build(Accelerator, {"name": label, **data}, f"accelerators.{label}")


def disk(name: str) -> Disk:
    """A disk of the catalogue: nvme, sata_ssd, hdd, ebs_gp3 ..."""
    return build(Disk, lookup("disks", name), f"disks.{name}")


def machine(name: str) -> Machine:
    """A machine of the catalogue: server, laptop, dgx_h100 ..."""
    return build(Machine, lookup("machines", name), f"machines.{name}")


def catalogue_names(kind: str) -> tuple[str, ...]:
    """The names in the catalogue: of "accelerators", "disks", "machines" or "stores"."""
    table = _catalogue()
    if kind not in table:
        raise WorldError(f"catalogue.{kind}", "unknown kind", did_you_mean(kind, table))
    return tuple(table[kind])
