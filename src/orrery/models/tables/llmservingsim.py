"""Step times from per-layer tables in the format of LLMServingSim's profiler.

A folder `<hardware>/<model>/<dtype>/` has `meta.yaml` and for each degree of tensor parallelism a
folder `tp<N>` with `dense.csv` (layer, tokens), `per_sequence.csv` (layer, sequences),
`attention.csv` (prefill chunk, its history, decodes, their history), for mixtures of experts
`moe.csv` (tokens, experts touched), and `skew_fit.csv` (what unequal histories cost). Times are
microseconds of one layer's kernels. Between grid points times are linear; beyond the grid they go
on as at its edge, and the step is counted as extrapolated.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orrery.base.errors import PlatformLacks, UsageError

US = 1e-6
# What a decoder layer runs, in vLLM's names; a table without one of them has a model without it.
BLOCK = ("layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "layernorm", "gate_up_proj",
         "act_fn", "down_proj")  # fmt: skip
ONCE = ("embedding", "final_layernorm")
HEAD = ("lm_head", "sampler")


class Curve:
    """Times over one size, linear between the measured ones."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self.sizes = np.array(sorted(points), float)
        self.times = np.array([points[size] for size in sorted(points)], float)

    def __call__(self, sizes: Any) -> Any:
        """Seconds at some sizes; beyond the last one as the last two say."""
        inside = np.interp(sizes, self.sizes, self.times)
        if len(self.sizes) < 2:
            return inside
        slope = (self.times[-1] - self.times[-2]) / (self.sizes[-1] - self.sizes[-2])
        return inside + np.maximum(np.asarray(sizes, float) - self.sizes[-1], 0.0) * slope


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise UsageError(f"tables: {path}: {error.strerror}; give a folder of profiles") from error


def _curves(path: Path, size: str) -> dict[str, Curve]:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    try:
        for row in _read(path):
            points[row["layer"]][int(row[size])] = float(row["time_us"]) * US
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"tables: {path} has no columns layer, {size}, time_us; take a profile as written"
        ) from error
    return {layer: Curve(found) for layer, found in points.items()}


class Attention:
    """The four-dimensional table of one layer's attention, linear in each direction."""

    def __init__(self, path: Path) -> None:
        names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        try:
            rows = [(*(int(row[name]) for name in names), float(row["time_us"]) * US)
                    for row in _read(path)]  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"tables: {path} lacks columns {', '.join(names)}, time_us") from error
        table = {row[:4]: row[4] for row in rows}
        self.chunks = sorted({row[0] for row in rows})
        self.pasts = sorted({row[1] for row in rows})
        self.counts = sorted({row[2] for row in rows})
        self.kvs = sorted({row[3] for row in rows})
        grid = np.full([len(axis) for axis in self.axes], np.nan)
        places = [{value: i for i, value in enumerate(axis)} for axis in self.axes]
        for key, time_s in table.items():
            grid[tuple(place[value] for place, value in zip(places, key, strict=True))] = time_s
        self._complete(grid)
        self.grid = grid
        self._rows: dict[int, tuple[list[float], list[float], list[float]]] = {}

    @property
    def axes(self) -> tuple[list[int], ...]:
        return self.chunks, self.pasts, self.counts, self.kvs

    @staticmethod
    def _complete(grid: np.ndarray) -> None:
        """Where one of the two kinds is absent, its history has no say: repeat along that axis."""
        if grid.shape[1] > 1:
            none = grid[0, :1]  # no prompt: whatever the prompt's history is
            grid[0] = np.where(np.isnan(grid[0]), none, grid[0])
        alone = grid[:, :, :1, :1]  # no decodes: whatever theirs is
        grid[:, :, :1, :] = np.where(np.isnan(grid[:, :, :1, :]), alone, grid[:, :, :1, :])
        if grid.shape[3] > 1:
            # With decodes there is a history; the grid begins at its least one.
            first = grid[:, :, :, 1:2]
            grid[:, :, :, :1] = np.where(np.isnan(grid[:, :, :, :1]), first, grid[:, :, :, :1])
        grid[:] = np.where(np.isnan(grid), 0.0, grid)

    @staticmethod
    def _place(axis: list[int], value: float) -> tuple[int, float]:
        """(the lower neighbour, how far to the upper one); beyond the end it goes on."""
        if len(axis) == 1:
            return 0, 0.0
        at = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
        return at, max((value - axis[at]) / (axis[at + 1] - axis[at]), 0.0)

    def __call__(self, chunk: float, past: float, count: float, kv: float) -> float:
        """Seconds of one layer."""
        (a, fa), (b, fb), (c, fc), (d, fd) = (
            self._place(axis, value)
            for axis, value in zip(self.axes, (chunk, past, count, kv), strict=True)
        )
        cube = self.grid[a : a + 2, b : b + 2, c : c + 2, d : d + 2]
        cube = cube[0] + (cube[-1] - cube[0]) * fa
        cube = cube[0] + (cube[-1] - cube[0]) * fb
        cube = cube[0] + (cube[-1] - cube[0]) * fc
        return float(cube[0] + (cube[-1] - cube[0]) * fd)

    def decode_row(self, count: int) -> tuple[list[float], list[float], list[float]]:
        """(histories, seconds, their integral up to each history) for so many decodes alone."""
        if count not in self._rows:
            seconds = [self(0, 0, count, kv) for kv in self.kvs]
            gaps = np.diff(self.kvs)
            steps = (np.array(seconds[1:]) + np.array(seconds[:-1])) / 2 * gaps
            sums = np.concatenate([[0.0], np.cumsum(steps)])
            self._rows[count] = ([float(kv) for kv in self.kvs], seconds, sums.tolist())
        return self._rows[count]


class Skew:
    """What it costs that histories of one batch differ: a share of the way to the longest one's.

    `rate` is where the mean history lies between the shortest and the longest.
    """

    def __init__(self, path: Path, axes: Mapping[str, Any], default: float) -> None:
        self.axes, self.default = axes, default
        self.alphas = {
            (row["pc"], row["n_label"], row["skew_rate_label"], row["kv_big_label"],
             row["kp_label"]): float(row["alpha"])
            for row in _read(path)
        }  # fmt: skip
        self.chunks = sorted({int(key[0]) for key in self.alphas})

    def alpha(self, chunk: float, count: int, rate: float, longest: float, past: float) -> float:
        """The share for a batch; the average one where nothing like it was measured."""
        nearest = min(self.chunks, key=lambda known: abs(known - chunk))
        sizes = (("n", count), ("skew_rate", rate), ("kv_big", longest), ("kp", past))
        labels = [self._label(name, value) for name, value in sizes]
        return self.alphas.get((str(nearest), *labels), self.default)

    def _label(self, name: str, value: float) -> str:
        # Bins are (lower, upper], as the labels say.
        uppers, labels = self.axes[f"{name}_bins"][1:], self.axes[f"{name}_labels"]
        at = next((i for i, upper in enumerate(uppers) if value <= upper), len(labels) - 1)
        return str(labels[at])


def _skew(folder: Path, place: Path, tp: int) -> Skew | None:
    """The table for unequal histories, if the profile has one that its meta file vouches for."""
    path = place / "skew_fit.csv"
    fit = meta_of(folder).get("skew_fit") or {}
    if not fit.get("enabled") or not path.exists():
        return None
    told = (fit.get("per_tp") or {}).get(tp) or {}
    return Skew(path, fit["bucket_axes"], float(told.get("alpha_default", 0.0)))


def meta_of(folder: Path) -> dict[str, Any]:
    """The profile's own description."""
    path = folder / "meta.yaml"
    if not path.exists():
        raise UsageError(f"tables: {folder} has no meta.yaml; give the folder of one dtype")
    try:
        import yaml
    except ImportError as error:
        raise PlatformLacks("meta.yaml needs PyYAML: pip install 'orrery[serve]'") from error
    return dict(yaml.safe_load(path.read_text()))


class LayerTables:
    """`Steps` from measured tables of every layer; see the module for the format.

    layers         decoder layers of the model
    hidden         its width, for what tensor parallelism sends
    experts        (experts, of which each token uses): for a mixture of experts
    expert_parallel    each device has some experts whole, instead of a slice of every one
    link_Bps, link_s   between the devices of one replica
    padded_to      batch sizes for which the engine has captured graphs; smaller ones are padded
    """

    def __init__(
        self, folder: Path, *, layers: int, hidden: int, tp: int = 1,
        experts: tuple[int, int] | None = None, expert_parallel: bool = False,
        link_Bps: float = 0.0, link_s: float = 0.0, padded_to: Sequence[int] = (), dtype_B: int = 2,
        most_tokens: int = 16384,
    ) -> None:  # fmt: skip
        place = folder / f"tp{tp}"
        if not place.is_dir():
            raise UsageError(f"tables: {folder} has no tp{tp}; profile that degree first")
        self.layers, self.tp, self.extrapolated = layers, tp, 0
        self.attention = Attention(place / "attention.csv")
        self.skew = _skew(folder, place, tp)
        self.spread = self.skew is not None
        dense = _curves(place / "dense.csv", "tokens")
        heads = _curves(place / "per_sequence.csv", "sequences")
        sizes = np.arange(most_tokens + 1)
        once = sum(dense[name](sizes) for name in ONCE if name in dense)
        block = sum(dense[name](sizes) for name in BLOCK if name in dense)
        if experts is not None:
            block = block + self._experts(folder, sizes, experts, expert_parallel)
        if tp > 1:
            sent_B = sizes * hidden * dtype_B
            ring_s = 2 * (tp - 1) / tp * sent_B / link_Bps + 2 * (tp - 1) * link_s
            block = block + 2 * ring_s  # after attention and after the feed-forward layer
        total = once + layers * block
        total = total[self._padding(sizes, padded_to)]
        self._dense: list[float] = total.tolist()
        self._head: list[float] = sum(heads[name](sizes) for name in HEAD if name in heads).tolist()
        self._edge = (self.attention.chunks[-1], self.attention.pasts[-1],
                      self.attention.counts[-1], self.attention.kvs[-1])  # fmt: skip

    def _experts(
        self, folder: Path, sizes: np.ndarray, experts: tuple[int, int], apart: bool
    ) -> np.ndarray:
        """Seconds of the experts of one layer, on one device, for each number of tokens.

        Tokens choose experts as if at random, so a number of them touches an expected number of
        experts. The tables are of one device: with several, each has its part of the experts and
        of the tokens, or a slice of every expert.
        """
        count, used = experts
        own = folder / f"tp{self.tp}" / "moe.csv"
        path, devices = (own, 1) if own.exists() else (folder / "tp1" / "moe.csv", self.tp)
        by_experts: dict[int, dict[int, float]] = defaultdict(dict)
        for row in _read(path):
            time_s = float(row["time_us"]) * US
            by_experts[int(row["activated_experts"])][int(row["tokens"])] = time_s
        touched = count * (1.0 - (1.0 - used / count) ** sizes)
        local = np.ceil(sizes / devices) if apart else sizes
        touched = touched / devices if apart else touched
        levels = np.array(sorted(by_experts))
        lines = np.array([Curve(by_experts[level])(local) for level in levels])
        upper = np.clip(np.searchsorted(levels, touched), 1, len(levels) - 1)
        low, high = levels[upper - 1], levels[upper]
        share = np.clip((touched - low) / (high - low), 0.0, 1.0)
        at = np.arange(len(sizes))
        found = lines[upper - 1, at] * (1 - share) + lines[upper, at] * share
        return found if apart else found / devices

    @staticmethod
    def _padding(sizes: np.ndarray, padded_to: Sequence[int]) -> np.ndarray:
        if not padded_to:
            return sizes
        known = np.array(sorted(padded_to))
        at = np.minimum(np.searchsorted(known, sizes), len(known) - 1)
        return np.where(sizes <= known[-1], np.minimum(known[at], sizes[-1]), sizes)

    def seconds(
        self, prefill: Sequence[tuple[int, int]], decodes: int, decode_kv: int,
        spread: tuple[int, int] | None = None,
    ) -> float:  # fmt: skip
        """One step: prompt chunks of (tokens, history), decodes, their histories' sum.

        `spread` is the shortest and the longest of those histories.
        """
        if not prefill:
            return self.decode_run(decodes, decode_kv, 1, spread)
        tokens = sum(new for new, _ in prefill)
        chunk, past = self._one_chunk(prefill, tokens)
        kv = decode_kv / decodes if decodes else 0.0
        attention_s = self.attention(chunk, past, decodes, kv)
        share = self._share(chunk, past, decodes, kv, spread)
        if share and spread:
            attention_s += share * (self.attention(chunk, past, decodes, spread[1]) - attention_s)
        edge = self._edge
        if chunk > edge[0] or past > edge[1] or decodes > edge[2] or kv > edge[3]:
            self.extrapolated += 1
        return (self.layers * attention_s + self._dense[tokens + decodes]
                + self._head[len(prefill) + decodes])  # fmt: skip

    def _share(
        self, chunk: float, past: float, decodes: int, kv: float, spread: tuple[int, int] | None
    ) -> float:
        """How far a batch is on the way from the mean history's time to the longest one's."""
        if self.skew is None or spread is None or decodes < 2 or spread[1] <= spread[0]:
            return 0.0
        rate = (kv - spread[0]) / (spread[1] - spread[0])
        return self.skew.alpha(chunk, decodes, rate, spread[1], past)

    @staticmethod
    def _one_chunk(prefill: Sequence[tuple[int, int]], tokens: int) -> tuple[float, float]:
        """One chunk with as many pairs of tokens to compare as all chunks together have."""
        if len(prefill) == 1:
            return prefill[0]
        pairs = sum(new * (past + new / 2) for new, past in prefill)
        past = pairs / tokens - tokens / 2
        # Several short prompts compare fewer pairs than one long one: then it is a shorter one.
        return (tokens, past) if past >= 0 else ((2 * pairs) ** 0.5, 0.0)

    def decode_run(
        self, decodes: int, decode_kv: int, steps: int, spread: tuple[int, int] | None = None
    ) -> float:
        """Steps in a row in which each of `decodes` requests makes one token."""
        row = self.attention.decode_row(decodes)
        first = decode_kv / decodes
        if decodes > self._edge[2] or first + steps - 1 > self._edge[3]:
            self.extrapolated += steps
        attention_s = self._over(row, first, steps)
        share = self._share(0, 0, decodes, first, spread)
        if share and spread:
            attention_s += share * (self._over(row, spread[1], steps) - attention_s)
        return self.layers * attention_s + steps * (self._dense[decodes] + self._head[decodes])

    def _over(
        self, row: tuple[list[float], list[float], list[float]], first: float, steps: int
    ) -> float:
        """Seconds of attention in one layer over some steps, from a first history on."""
        first_s, first_sum = self._along(*row, first)
        if steps == 1:
            return first_s
        last_s, last_sum = self._along(*row, first + steps - 1)
        # A sum over steps is the integral between them and half of both ends: exact on each line.
        return last_sum - first_sum + (first_s + last_s) / 2

    @staticmethod
    def _along(
        histories: list[float], seconds: list[float], sums: list[float], kv: float
    ) -> tuple[float, float]:
        """(seconds at a history, their integral up to it)."""
        at = min(max(bisect_right(histories, kv) - 1, 0), len(histories) - 2)
        gap = kv - histories[at]
        slope = (seconds[at + 1] - seconds[at]) / (histories[at + 1] - histories[at])
        return seconds[at] + slope * gap, sums[at] + (seconds[at] + slope * gap / 2) * gap


__all__ = ["Attention", "Curve", "LayerTables", "Skew"]
