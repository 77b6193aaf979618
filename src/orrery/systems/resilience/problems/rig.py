"""What a rank of a training run has and does, beside the machine that the world gives it."""

from __future__ import annotations

from orrery.parts import Count, NonNegative, Part, Positive, cost

# One PCIe 4.0 x16 link carries 32 GB/s by its specification; copies into pinned memory reach about
# 25 GB/s of it, a figure that NVIDIA's bandwidthTest shows on A100 machines.
PINNED_BPS = 25e9
# Into pageable memory the driver copies twice, through a staging buffer of its own. NVIDIA's "How
# to Optimize Data Transfers in CUDA C/C++" (2012) shows 2.3 GB/s against 5.7 GB/s: two fifths.
PAGEABLE_BPS = 10e9
# torch.save of 200 MB to memory-backed files wrote 0.7 to 0.9 GB/s on our machine (one thread);
# `python -m bench datastates` measures yours. Rounded up, in favour of those who serialise.
SERIALISE_BPS = 1e9


class Rig(Part):
    """The state of a rank, how often it is kept, and the devices on its way to storage.

    Knobs: `every` so many iterations a checkpoint is asked for; `keep`, how many
    complete ones stay; `coupled`, whether ranks exchange gradients of one model, of which each
    keeps a part (else each has a model of its own, and they only keep step); `state_B`, the bytes
    that a rank's state stands for (0: its own); `small_B`, the bytes of state that is not tensors;
    `flops` of forward and backward in bf16 (0: those of the task); `step_s`, seconds that forward
    and backward take beside; `jitter`, the sigma by which both vary; `copy_Bps` from device to
    pinned host memory, `pageable_Bps` to ordinary memory, `serialise_Bps` of one core.

    >>> Rig(every=2).keep
    2
    """

    every: Count = 1
    keep: Count = 2
    coupled: bool = True
    state_B: NonNegative = 0.0
    small_B: NonNegative = 0.0
    flops: NonNegative = 0.0
    step_s: NonNegative = 0.0
    jitter: NonNegative = 0.0
    copy_Bps: Positive = PINNED_BPS
    pageable_Bps: Positive = PAGEABLE_BPS
    serialise_Bps: Positive = SERIALISE_BPS


@cost(flops=lambda flops: flops, dtype="bf16")
def crunch(flops: float) -> None:
    """Forward and backward of the model that the small one stands for: only their time counts."""


@cost(bytes=lambda size_B: 2 * size_B)
def touch(size_B: float) -> None:
    """An update reads and writes the whole state once: only its time counts."""
