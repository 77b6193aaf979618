"""Training runs with faults: slow NICs, and nodes that are lost and restarted from a checkpoint.

A lost node stops the whole job. It loses what was done since the last checkpoint, and time to
notice, to replace the node and to load. With failures at random times the expected length of a run
has a closed form (Daly, "A higher order estimate of the optimum checkpoint interval", 2006).
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec

from orrery.base.errors import SpecError
from orrery.models.specs import WEIGHT_B, ModelSpec
from orrery.models.training.plan import OPTIMISER_B, TrainingPlan
from orrery.world import World
from orrery.world.spec import NonNegative, Positive, Spec, brief

HOUR_S = 3600.0


class Trouble(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often nodes fail, and what a failure and a checkpoint cost.

    mtbf_h         mean time between failures of one node, in hours
    nodes          how many nodes must all live
    checkpoint_s   how long a checkpoint stops the run
    restart_s      from a failure to the first step after it: noticing, a new node, loading
    interval_s     work between checkpoints; 0: the interval that loses least
    """

    label: ClassVar[str] = "trouble"
    error: ClassVar[type[SpecError]] = SpecError
    mtbf_h: Positive
    nodes: int = 1
    checkpoint_s: NonNegative = 60.0
    restart_s: NonNegative = 600.0
    interval_s: NonNegative = 0.0

    def _check(self) -> None:
        if self.nodes < 1:
            raise self._refuse("nodes", f"{self.nodes} is refused", "give 1 or more")
        if not self.checkpoint_s and not self.interval_s:
            raise self._refuse("interval_s", "is 0 with checkpoints that cost nothing",
                               "give an interval, or what a checkpoint takes")  # fmt: skip

    @property
    def rate_per_s(self) -> float:
        """Failures of the whole job for each second."""
        return self.nodes / (self.mtbf_h * HOUR_S)


class ExpectedRun(msgspec.Struct, frozen=True):
    """A run with failures, on average.

    goodput   share of the time in which steps are made that are not lost again
    """

    seconds: float
    goodput: float
    interval_s: float
    failures: float
    dollars: float | None = None


def expected_run(
    step_s: float, steps: int, trouble: Trouble, dollars_per_h: float | None = None
) -> ExpectedRun:
    """How long so many steps take on average, and what they cost.

    >>> calm = expected_run(10.0, 1000, Trouble(mtbf_h=1e9, checkpoint_s=10.0, interval_s=1000.0))
    >>> round(calm.goodput, 4)
    0.9901
    """
    for name, value in (("step_s", step_s), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise SpecError(name, f"{brief(value)} is refused", "give a number > 0")
    useful_s = step_s * steps
    interval_s = trouble.interval_s or best_interval_s(trouble)
    # A run shorter than the interval has one checkpoint, at its end.
    interval_s = min(max(interval_s, step_s), useful_s)
    segments = useful_s / interval_s
    each_s = segment_s(interval_s, trouble)
    seconds = segments * each_s
    if not math.isfinite(seconds) or seconds > 1e15:
        problem = f"a failure every {1 / trouble.rate_per_s:.3g} s leaves no time for a segment"
        fix = f"checkpoint more often than every {interval_s:.3g} s, or use fewer nodes"
        raise SpecError("trouble", problem, fix)
    money = None if dollars_per_h is None else dollars_per_h * seconds / HOUR_S
    failures = trouble.rate_per_s * seconds
    return ExpectedRun(seconds, useful_s / seconds, interval_s, failures, money)


def segment_s(interval_s: float, trouble: Trouble) -> float:
    """The expected time from one checkpoint to the next.

    Failures come at rate f, also while the job restarts, and a failure then begins the restart
    anew: e^(f r) (e^(f (w + c)) - 1) / f for work w, checkpoint c and restart r.
    """
    rate = trouble.rate_per_s
    reach = rate * (interval_s + trouble.checkpoint_s)
    if reach + rate * trouble.restart_s > 700:
        return math.inf
    return math.exp(rate * trouble.restart_s) * math.expm1(reach) / rate


def best_interval_s(trouble: Trouble) -> float:
    """The interval that loses least: that of Young (1974) as a start, then by golden section."""
    young_s = math.sqrt(2 * max(trouble.checkpoint_s, 1e-9) / trouble.rate_per_s)
    low, high = young_s / 20, young_s * 4
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        a, b = high - golden * (high - low), low + golden * (high - low)
        if segment_s(a, trouble) / a <= segment_s(b, trouble) / b:
            high = b
        else:
            low = a
    return (low + high) / 2


def checkpoint_B(model: ModelSpec, plan: TrainingPlan) -> float:
    """Bytes of a checkpoint of the whole model: weights, their fp32 copies, the states."""
    model = plan.of(model)
    narrow = WEIGHT_B[model.dtype]
    return model.params * (narrow + (4.0 if narrow < 4 else 0.0) + OPTIMISER_B[plan.optimizer])


def slow_nic(world: World, node: int, share: float = 0.5) -> World:
    """The world with the NIC of one node at a share of its rate.

    >>> from orrery.world import worlds
    >>> float(slow_nic(worlds.a100_pod(1, rank_per_gpu=True), 3).wiring().capacity_Bps[6]) / 1e9
    12.5
    """
    if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < world.size:
        raise SpecError("node", f"{brief(node)} is refused", f"give 0 to {world.size - 1}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise SpecError("share", f"{brief(share)} is refused", "give more than 0, up to 1")
    groups, machines, at = [], dict(world.machines), 0
    for group in world.groups:
        if not at <= node < at + group.count:
            groups.append(group)
            at += group.count
            continue
        machine = world.machines[group.machine]
        rate_Bps = machine.nic_Bps or world.network.bandwidth_Bps
        name = f"{group.machine[:50]} slow nic {node}"
        machines[name] = machine.replace(nic_Bps=rate_Bps * share)
        before, after = node - at, at + group.count - node - 1
        counts = ((before, group.machine), (1, name), (after, group.machine))
        groups += [group.replace(count=n, machine=kind) for n, kind in counts if n]
        at += group.count
    return world.replace(groups=tuple(groups), machines=machines)


__all__ = [
    "ExpectedRun", "Trouble", "best_interval_s", "checkpoint_B", "expected_run", "segment_s",
    "slow_nic",
]  # fmt: skip
