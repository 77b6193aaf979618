"""Reads ServeGen: per-client rates and length histograms of production services, as a generator.

Xiang et al., "ServeGen", NSDI 2026. The data hold no requests but, for each client, a day in steps
of ten minutes (`chunk-N-trace.csv`: second, rate, cv, pattern, its two parameters) and histograms
of lengths for each six hours (`chunk-N-dataset.json`). A workload is drawn from them: each client
is a renewal process with Gamma or Weibull gaps of its measured cv, slowed and hurried by its rate
over the day, and each request draws its lengths from its client's histograms. Input and output are
drawn independently, since only their marginals are published. The tokens of images, audio and video
count as input, one draw an item.
"""

from __future__ import annotations

import functools
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from orrery.base.errors import did_you_mean
from orrery.base.rand import Stream
from orrery.inputs import draws
from orrery.inputs.arrivals import Profile
from orrery.inputs.readers.text import MAX_FILE_B
from orrery.inputs.workload import F64, I64, Workload, WorkloadError
from orrery.world.spec import brief

NAME = re.compile(r"chunk-(\d{1,9})-(trace\.csv|dataset\.json)$")
DAY_S = 86_400
_TRACE = "each line is: second, rate, cv, pattern, parameter, parameter"
_FIX = "give ServeGen's data: a folder or tar archive of chunk-N-trace.csv and chunk-N-dataset.json"


class Histogram(NamedTuple):
    """Values and their cumulative probabilities."""

    values: F64
    upto: F64

    def draw(self, stream: Stream, count: int) -> F64:
        """Values drawn by inversion."""
        place = np.searchsorted(self.upto, draws.uniforms(stream, count), "right")
        return self.values[np.minimum(place, len(self.values) - 1)]


class Client(NamedTuple):
    """One client: its rate and cv by step, and its histograms by time of day."""

    name: str
    step_s: float
    rates: F64
    cvs: F64
    weibull: bool
    lengths: dict[int, dict[str, Histogram]]

    def lengths_at(self, second: float) -> dict[str, Histogram]:
        """The histograms in force at a second of the day: the latest that has begun, else any."""
        begun = [start for start in self.lengths if start <= second]
        return self.lengths[max(begun) if begun else min(self.lengths)]

    def cv_between(self, begin_s: float, end_s: float) -> float:
        """The mean cv of the steps in which the client is active, each weighed by its rate."""
        steps = np.arange(int(begin_s // self.step_s), int(np.ceil(end_s / self.step_s)))
        steps = np.unique(steps % len(self.rates))
        weight = self.rates[steps] * (self.cvs[steps] > 0)
        if not weight.sum() > 0:
            weight, steps = self.rates * (self.cvs > 0), np.arange(len(self.rates))
        if not weight.sum() > 0:
            return 1.0
        return float(np.clip((self.cvs[steps] * weight).sum() / weight.sum(), 0.05, 20.0))


class Mix(NamedTuple):
    """The clients of one service: a generator of their mix."""

    model: str
    clients: tuple[Client, ...]

    @property
    def rate_per_s(self) -> float:
        """All clients' mean rate over the day."""
        return float(sum(client.rates.mean() for client in self.clients))

    def generate(
        self,
        *,
        seconds: float = 3600.0,
        start_s: float = 43_200.0,
        rate_factor: float = 1.0,
        seed: int = 0,
    ) -> Workload:
        """The requests of `seconds` from `start_s` of the day on, at `rate_factor` the rate."""
        for name, value, low in (
            ("seconds", seconds, 0.0), ("rate_factor", rate_factor, 0.0), ("start_s", start_s, -1.0)
        ):  # fmt: skip
            if not (np.isfinite(value) and value > low):
                raise WorkloadError(
                    f"servegen.{name}", f"{value!r} is refused", "give a number > 0"
                )
        parts = []
        for number, client in enumerate(self.clients):
            times = self._times(client, seconds, start_s, rate_factor, seed)
            if len(times):
                made, out = _lengths(client, times + start_s, seed)
                parts.append((times, made, out, np.full(len(times), number)))
        if not parts:
            problem = f"no client is active for {seconds:g} s from {start_s:g} s"
            raise WorkloadError("servegen", problem, "ask for a longer or another time")
        arrival, made, out, kind = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(arrival, kind="stable")
        return Workload(
            arrival_s=arrival[order],
            input_tokens=made[order].astype(np.int32),
            output_tokens=out[order].astype(np.int32),
            kind=kind[order].astype(np.int16),
            kinds=tuple(client.name for client in self.clients),
            source=f"ServeGen {self.model}",
        )

    @staticmethod
    def _times(client: Client, seconds: float, start_s: float, factor: float, seed: int) -> F64:
        if not client.rates.max() > 0:
            return np.zeros(0)
        cv = client.cv_between(start_s, start_s + seconds)
        rate = float(client.rates.mean()) * factor
        process = Profile(
            rate_per_s=rate,
            shape=tuple(client.rates.tolist()),
            step_s=client.step_s,
            start_s=start_s,
        )
        stream = Stream(seed, client.name, "servegen arrivals")
        # The renewal process has run for some time before time 0, so that no burst starts there.
        warm = float(8.0 + 4.0 * cv * cv)
        wanted = _operational_end(process, seconds) + warm
        gaps = np.zeros(0)
        while gaps.sum() < wanted:
            more = int(wanted - gaps.sum() + 16 + 4 * np.sqrt(wanted))
            drawn = (
                draws.weibulls(stream, draws.weibull_shape(cv), more)
                if client.weibull
                else draws.gammas(stream, 1.0 / cv**2, more)
            )
            gaps = np.concatenate([gaps, drawn])
        operational = np.cumsum(gaps) - warm
        operational = operational[operational >= 0]
        times = np.round(process._real(operational, stream), 9)
        return times[times < seconds]


def _operational_end(process: Profile, seconds: float) -> float:
    """How many arrivals a profile expects within its first seconds (and one step more)."""
    shape = np.array(process.shape)
    steps = np.arange(int(seconds // process.step_s) + 2) + int(process.start_s // process.step_s)
    mean = process.rate_per_s * process.step_s * len(shape) / shape.sum()
    return float(shape[steps % len(shape)].sum() * mean)


def _lengths(client: Client, seconds: F64, seed: int) -> tuple[I64, I64]:
    made = np.zeros(len(seconds))
    out = np.zeros(len(seconds))
    stream = Stream(seed, client.name, "servegen lengths")
    begins = np.array(sorted(client.lengths))
    window = np.searchsorted(begins, seconds % DAY_S, "right")
    for each in np.unique(window).tolist():
        rows = np.flatnonzero(window == each)
        found = client.lengths_at(float(begins[each - 1]) if each else -1.0)
        out[rows] = found["output_tokens"].draw(stream, len(rows))
        text = found.get("input_tokens") or found["text_tokens"]
        total = text.draw(stream, len(rows))
        for item in ("image", "audio", "video"):
            if f"{item}_count" in found and f"{item}_tokens" in found:
                count = found[f"{item}_count"].draw(stream, len(rows)).astype(np.int64)
                owner = np.repeat(np.arange(len(rows)), count)
                tokens = found[f"{item}_tokens"].draw(stream, len(owner))
                total = total + np.bincount(owner, tokens, len(rows))
        made[rows] = total
    return draws.whole(made), draws.whole(out)


# -- files


def read_servegen(
    path: str | Path,
    *,
    model: str | None = None,
    seconds: float = 3600.0,
    start_s: float = 43_200.0,
    rate_factor: float = 1.0,
    seed: int = 0,
) -> Workload:
    """A workload drawn from ServeGen's data: by default one hour from noon on."""
    mix = load_servegen(path, model)
    return mix.generate(seconds=seconds, start_s=start_s, rate_factor=rate_factor, seed=seed)


def load_servegen(path: str | Path, model: str | None = None) -> Mix:
    """The clients of one model; where the data hold several, `model` says which."""
    found: dict[str, dict[int, dict[str, tuple[str, bytes]]]] = {}
    for name, data in _files(Path(path)):
        match = NAME.search(name)
        if match:
            home = str(Path(name).parent.name) or "data"
            kind = "trace" if match[2].startswith("trace") else "dataset"
            found.setdefault(home, {}).setdefault(int(match[1]), {})[kind] = (name, data)
    if not found:
        raise WorkloadError(str(path), "holds no ServeGen clients", _FIX)
    if model is None:
        if len(found) > 1:
            known = ", ".join(sorted(found))
            raise WorkloadError(str(path), f"holds several models: {known}", "say model=...")
        model = next(iter(found))
    if model not in found:
        fix = did_you_mean(model, found)
        raise WorkloadError("load_servegen.model", f"no model {model!r}", fix)
    clients = []
    for number, files in sorted(found[model].items()):
        for kind in ("trace", "dataset"):
            if kind not in files:
                raise WorkloadError(f"{path}: chunk-{number}", f"has no {kind} file", _FIX)
        client = _client(number, files["trace"], files["dataset"])
        if client is not None:
            clients.append(client)
    if not clients:
        raise WorkloadError(str(path), "holds no client with requests", _FIX)
    return Mix(model, tuple(clients))


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            for each in sorted(path.rglob("chunk-*")):
                yield str(each), each.read_bytes()
            return
        total = 0
        with tarfile.open(path) as archive:
            for member in archive:
                total += member.size
                if total > MAX_FILE_B:
                    raise WorkloadError(str(path), "unpacks to over 8 GiB", "split it")
                file = archive.extractfile(member) if NAME.search(member.name) else None
                if file is not None:
                    yield member.name, file.read()
    except FileNotFoundError:
        raise WorkloadError(str(path), "is not there", _FIX) from None
    except WorkloadError:
        raise
    except Exception as failure:
        # A damaged archive fails in many ways inside tarfile, gzip and zlib; all mean the same.
        problem = f"cannot be read ({type(failure).__name__})"
        raise WorkloadError(str(path), problem, _FIX) from None


def _client(number: int, trace: tuple[str, bytes], dataset: tuple[str, bytes]) -> Client | None:
    seconds, rates, cvs, weibull = [], [], [], 0.0
    for line_number, line in enumerate(trace[1].decode("utf-8", "replace").splitlines(), 1):
        where = f"{trace[0]}:{line_number}"
        fields = line.split(",")
        if len(fields) != 6:
            raise WorkloadError(where, f"{brief(line)} is refused", _TRACE)
        try:
            second, rate, cv = float(fields[0]), float(fields[1]), float(fields[2])
        except ValueError:
            raise WorkloadError(where, f"{brief(line)} is refused", _TRACE) from None
        sound = np.isfinite([second, rate, cv]).all() and second >= 0 and 0 <= rate < 1e9
        if not sound or not 0 <= cv < 1e6 or fields[3] not in ("", "Gamma", "Weibull"):
            raise WorkloadError(where, f"{brief(line)} is refused", _TRACE)
        seconds.append(second)
        rates.append(rate if fields[3] else 0.0)
        cvs.append(cv)
        weibull += rate * (1 if fields[3] == "Weibull" else -1 if fields[3] else 0)
    steps = np.diff(seconds)
    if len(seconds) < 2 or not (steps > 0).all() or not np.allclose(steps, steps[0]):
        raise WorkloadError(trace[0], "has no even steps of time", _TRACE)
    lengths = _histograms(*dataset)
    if not lengths or not max(rates) > 0:
        return None
    name = f"client-{number}"
    return Client(name, float(steps[0]), np.array(rates), np.array(cvs), weibull > 0, lengths)


def _histograms(name: str, data: bytes) -> dict[int, dict[str, Histogram]]:
    fix = 'write {"0": {"input_tokens": "{9: 0.5, 10: 0.5}", "output_tokens": "{7: 1.0}"}}'
    try:
        table = msgspec.json.decode(data, type=dict[str, dict[str, str]])
        found: dict[int, dict[str, Histogram]] = {}
        for begin, fields in table.items():
            made = {key: _histogram(text) for key, text in fields.items()}
            if any(each is None for each in made.values()):
                continue  # the client was silent for these hours
            if "output_tokens" not in made or not {"input_tokens", "text_tokens"} & set(made):
                raise ValueError("lacks input_tokens or output_tokens")
            found[int(begin)] = {key: each for key, each in made.items() if each is not None}
    except (msgspec.MsgspecError, ValueError, RecursionError) as failure:
        raise WorkloadError(name, f"is refused: {str(failure)[:200]}", fix) from None
    return found


@functools.lru_cache(maxsize=64)
def _histogram(text: str) -> Histogram | None:
    """A histogram from its text `{value: probability, ...}`; None when it is empty."""
    inner = text.strip()
    if inner[:1] != "{" or inner[-1:] != "}":
        raise ValueError(f"histogram {brief(text)} is no table")
    if not inner[1:-1].strip():
        return None
    flat = np.array(inner[1:-1].replace(":", ",").split(","), dtype=np.float64)
    values, chances = flat[0::2], flat[1::2]
    if len(flat) % 2 or not np.isfinite(flat).all() or (chances < 0).any() or (values < 0).any():
        raise ValueError(f"histogram {brief(text)} has odd or negative entries")
    if values.max() > 1e8:
        raise ValueError(f"histogram {brief(text)} has a value above 1e8")
    kept = chances > 0
    if not kept.any():
        return None
    upto = np.cumsum(chances[kept])
    return Histogram(values[kept], upto / upto[-1])
