"""Silent Inconsistency: what watching costs a step, and how its sketch compares with others.

Prints JSON; all of it is measured on this machine, single-threaded. `step` is the median over runs
of the seconds that a step takes on real processes, without the monitor, with sketches and with
whole vectors. `tap` is what one rank spends on a gradient of so many weights, beside the gradient
itself. `sketch` is the time of one count-sketch, ours beside the plain NumPy one (`bincount`),
scikit-learn's sparse projection and a dense one, with the largest error of a cosine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from orrery import World, run
from orrery.models.learn import Language
from orrery.systems.resilience.silent_inconsistency import SilentInconsistency, count_sketch
from orrery.systems.train import DataParallel, Synchronous

SHAPES = {
    "26k": {}, "1.0M": {"width": 144, "layer_count": 4, "heads": 4},
}  # fmt: skip


def step_s(monitors: list[SilentInconsistency], shape: dict[str, int], ranks: int) -> float:
    """Seconds of a step on real processes."""
    problem = DataParallel(steps=12, batch=16, more=shape)
    made = run(
        Synchronous(), problem=problem, world=World.lan(ranks), engine="processes",
        monitors=monitors,
    )  # fmt: skip
    return made.metrics["step_s"]


def steps(shape: dict[str, int], ranks: int, runs: int) -> dict[str, float]:
    """The median step, alternating so that load on the machine falls on all alike."""
    kinds = {"plain": [], "sketch": [SilentInconsistency()],
             "exact": [SilentInconsistency(mode="exact")]}  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(runs):
        for name, monitors in kinds.items():
            found[name].append(step_s(monitors, shape, ranks))
    middle = {name: statistics.median(values) for name, values in found.items()}
    for name in ("sketch", "exact"):
        middle[f"{name}_over_plain"] = middle[name] / middle["plain"]
    return middle


def clock(fn, times: int) -> float:
    """The median seconds of a call, by the process's own time."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        fn()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def tap(shape: dict[str, int]) -> dict[str, float]:
    """What the tap of one rank takes beside its gradient, on one core."""
    task = Language(batch=16, **shape)
    share, weights = task.share(0, 1, None), task.start_weights()
    gradient = share.grad(weights)
    monitor, memory = SilentInconsistency(), {}

    def look() -> None:
        monitor.at_rank(memory, 0.0, "after", "loss", "", 1.0)
        monitor.at_rank(memory, 0.0, "before", "all_reduce", "", gradient)

    look()
    cost = {"gradient_s": clock(lambda: share.grad(weights), 7), "tap_s": clock(look, 31)}
    return cost | {"tap_over_gradient": cost["tap_s"] / cost["gradient_s"]}


def sketches(size: int, numbers: int) -> dict[str, dict[str, float]]:
    """Ours beside other ways to the same number of numbers."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(size)
    one, other = ((common + rng.standard_normal(size)).astype(np.float32) for _ in range(2))
    places = rng.integers(0, numbers, size)
    signs = rng.choice(np.array([-1, 1], np.float32), size)
    ways = {
        "ours": lambda x: count_sketch(x, numbers),
        "bincount": lambda x: np.bincount(places, weights=signs * x, minlength=numbers),
    }
    if size * numbers <= 2**27:
        dense = rng.standard_normal((numbers, size), np.float32) / np.float32(np.sqrt(numbers))
        ways["dense"] = lambda x: dense @ x
    try:
        from sklearn.random_projection import SparseRandomProjection
    except ImportError:
        pass
    else:
        made = SparseRandomProjection(numbers, random_state=0).fit(one[None])
        ways["scikit-learn sparse"] = lambda x: made.transform(x[None])[0]
    truth = cosine(one, other)
    return {
        name: {"s": clock(lambda way=way: way(one), 11),
               "error": abs(cosine(way(one), way(other)) - truth)}
        for name, way in ways.items()
    }  # fmt: skip


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The cosine of two vectors."""
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--ranks", type=int, default=2)
    asked.add_argument("--runs", type=int, default=5)
    given = asked.parse_args()
    found = {
        "tap": {name: tap(shape) for name, shape in SHAPES.items()},
        "sketch": {"26k to 4096": sketches(26_272, 4096), "1M to 4096": sketches(1_000_000, 4096)},
        "step": {name: steps(shape, given.ranks, given.runs) for name, shape in SHAPES.items()},
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
