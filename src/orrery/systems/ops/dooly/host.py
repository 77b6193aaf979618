"""What the engine does between kernels, measured as an operator of its own class.

No tensor's shape tells it, so it has no label. A model so small that its kernels take next to
nothing is stepped by the real engine; what the database does not explain of a step is the host's.
It depends on the engine and the machine, not on the model, so one measurement serves all models.
"""

from __future__ import annotations

import msgspec
import numpy as np

from orrery.base.rand import Stream
from orrery.models.real.steptable import non_negative
from orrery.models.specs import ModelSpec
from orrery.systems.ops.dooly.backend import DoolySteps
from orrery.systems.ops.dooly.curves import CAUSES, causes
from orrery.systems.ops.dooly.database import Database, profile
from orrery.systems.ops.dooly.meter import TorchMeter
from orrery.systems.ops.dooly.operators import uses
from orrery.systems.ops.dooly.sweep import Sweep

# What the host's work depends on; keys and pairs of tokens are the kernels' business.
_HOST = ("one", "tokens", "decodes", "chunks")


class Host(msgspec.Struct, frozen=True):
    """Weights of CAUSES and of one layer, in seconds; how well they explain what was left over."""

    weights: tuple[float, ...]
    error: float
    steps: int


def tiny(layers: int, hidden: int = 16) -> ModelSpec:
    """A model whose kernels take next to nothing."""
    return ModelSpec(
        name="tiny", layers=layers, hidden=hidden, heads=2, kv_heads=1, head_dim=8,
        intermediate=hidden, vocab=64, max_context=256,
    )  # fmt: skip


def measure_host(
    meter: TorchMeter, sweep: Sweep, *, repeats: int = 5, seed: int = 0, hidden: int = 16
) -> Host:
    """Step tiny models with the real engine, and take off what their operators explain."""
    from orrery.models.real.engine import RealReplica
    from orrery.models.real.measure import time_step
    from orrery.models.real.schedule import Continuous
    from orrery.models.real.transformer import Transformer

    rng = Stream(seed, "dooly", "host")
    rows, left, whole = [], [], []
    database = Database(meter.device)
    most = min(sweep.max_sequences, 24)
    limits = {"step_tokens": sweep.step_tokens, "max_sequences": sweep.max_sequences}
    small = msgspec.structs.replace(sweep, max_context=64, step_tokens=min(128, sweep.step_tokens),
                                    max_sequences=most, contexts=2)  # fmt: skip
    shapes = [((), n, 16 * n) for n in (1, 4, most // 2, most)]
    shapes += [(((16, 0),), 0, 0), (((32, 16), (16, 0)), 4, 64), (((48, 0),), most // 2, 8 * most)]
    for layers in (2, 8):
        model = tiny(layers, hidden)
        profile(model, meter, database, small, dtype=meter.dtype_name)
        used = uses(
            model, meter.device, dtype=meter.dtype_name, backends=meter.backends,
            block_tokens=sweep.block_tokens,
        )  # fmt: skip
        steps = DoolySteps(model, database, used)
        real = Transformer.random(model, device=meter.place, dtype=meter.dtype_name)
        replica = RealReplica(
            real, Continuous(**limits), blocks=600, block_tokens=sweep.block_tokens, caching=False,
            clock=meter.clock,
        )  # fmt: skip
        for shape in shapes:
            took = [r.seconds for _ in range(repeats) for r in time_step(replica, shape, rng)]
            median = float(np.median(took[1:] or took))
            meter.spent_s += sum(took)
            rows.append([*causes(shape), float(layers)])
            left.append(max(median - steps.seconds(*shape), 1e-7))
            whole.append(median)
    columns, rest = np.array(rows), np.array(left)
    kept = [i for i, name in enumerate((*CAUSES, "layers")) if name in (*_HOST, "layers")]
    found = non_negative(columns[:, kept] / np.array(whole)[:, None], rest / np.array(whole))
    weights = np.zeros(columns.shape[1])
    weights[kept] = found
    error = float(np.mean(np.abs(columns @ weights - rest) / np.array(whole)))
    return Host(tuple(weights.tolist()), error, len(rows))


__all__ = ["Host", "measure_host", "tiny"]
