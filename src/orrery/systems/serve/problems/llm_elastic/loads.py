"""Jobs for an elastic pool: online waves and flips, text and images, and an offline backlog."""

from __future__ import annotations

import functools
import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import KnobError, PlatformLacks
from orrery.base.rand import Stream
from orrery.inputs import azure_like, load_servegen, mooncake_like, open_workload, reasoning_like
from orrery.inputs.arrivals import Arrivals, Diurnal, Poisson
from orrery.inputs.draws import uniforms, whole
from orrery.models.requests import Target
from orrery.systems.serve.problems.llm_elastic.ports import OFFLINE, ONLINE, Job

MOST_JOBS = 1_000_000
WORKLOADS = ("conv", "code", "reasoning", "flip", "images", "texts", "mixed", "prefixes", "even")
# Shares of requests with images in the workloads of that name.
IMAGE_SHARES = {"images": 1.0, "texts": 0.1, "mixed": 0.5}
# Quantiles of the image service in ServeGen (mm-image, all clients at noon, weighed by rate;
# Apache-2.0), at these levels; where the data are there, its own histograms are drawn from.
LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
IMAGE_TOKENS = (4, 6, 6, 98, 357, 1196, 1225, 1248, 1271, 1280)
IMAGE_COUNTS = (1, 1, 1, 1, 1, 1, 3, 4, 9, 12)
TEXT_TOKENS = (1, 1, 36, 75, 94, 1032, 1892, 2313, 3066, 3518)
# Coefficient of variation of the gaps between Azure's conversations once the rate of the minute is
# taken out (`inputs/facts.toml`); 1 would be independent arrivals.
AZURE_CV = 1.0264
ANSWER_TOKENS = (1, 1, 2, 25, 95, 184, 263, 339, 594, 2000)


class Sizes(NamedTuple):
    """Lengths of jobs: prompt (with images), image tokens in it, answer, keys of blocks."""

    prompt: np.ndarray
    image: np.ndarray
    output: np.ndarray
    blocks: list[tuple[int, ...]]
    kind: str

    def __len__(self) -> int:
        return len(self.prompt)


def sizes_of(name: str, count: int, seed: int, *, data: str = "", block_tokens: int = 16,
             even: tuple[int, int] = (1024, 256)) -> Sizes:  # fmt: skip
    """So many jobs of a workload."""
    if name in IMAGE_SHARES:
        return _with_images(name, count, seed, data)
    if name == "even":
        prompt, output = (np.full(count, each) for each in even)
        return Sizes(prompt, np.zeros(count, int), output, [()] * count, name)
    if name in ("conv", "code"):
        work = _azure(name, count, seed, data)
    elif name == "reasoning":
        work = reasoning_like(count, seed=seed)
    elif name == "prefixes":
        work = mooncake_like(count, seed=seed).reblocked(block_tokens)
    else:
        fix = f"give one of {', '.join(WORKLOADS)}"
        raise KnobError("LLMElastic.workload", f"{name!r} is unknown", fix)
    prompt, output = work.input_tokens.astype(int), work.output_tokens.astype(int)
    blocks: list[tuple[int, ...]] = [()] * count
    if name == "prefixes":
        blocks = [
            tuple(work.blocks(at).tolist()[: size // block_tokens])
            for at, size in enumerate(prompt.tolist())
        ]
    return Sizes(prompt, np.zeros(count, int), output, blocks, name)


def _azure(name: str, count: int, seed: int, data: str) -> Any:
    if not data:
        return azure_like(name, count, seed=seed)
    path = Path(data) / "azure_llm_2023" / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.is_file():
        raise PlatformLacks(f"{path} is not there; give data = a folder with Azure's traces")
    work = open_workload(str(path))
    start = Stream(seed, "elastic", "azure").below(max(len(work) - count, 1))
    return work.take(np.arange(start, min(start + count, len(work))))


def _quantile(stream: Stream, count: int, table: tuple[int, ...]) -> np.ndarray:
    return whole(np.interp(uniforms(stream, count), LEVELS, table)).astype(int)


@functools.lru_cache(maxsize=2)
def _servegen(data: str) -> Any:
    found = sorted(glob.glob(str(Path(data) / "servegen" / "*.tar.gz")))
    if not found:
        raise PlatformLacks(f"{data}/servegen has no archive; give data = a folder with ServeGen")
    return load_servegen(found[0], "mm-image")


def _with_images(name: str, count: int, seed: int, data: str) -> Sizes:
    """Jobs of an image service, and text jobs like Azure's conversations beside them."""
    stream = Stream(seed, "elastic", f"sizes {name}")
    pictured = uniforms(stream, count) < IMAGE_SHARES[name]
    if data:
        text, image, output = _drawn(_servegen(data), count, stream)
    else:
        text = _quantile(stream, count, TEXT_TOKENS)
        output = np.maximum(_quantile(stream, count, ANSWER_TOKENS), 1)
        counts = np.maximum(_quantile(stream, count, IMAGE_COUNTS), 1)
        owner = np.repeat(np.arange(count), counts)
        image = np.bincount(owner, _quantile(stream, len(owner), IMAGE_TOKENS), count).astype(int)
    plain = azure_like("conv", count, seed=seed)
    image = np.where(pictured, image, 0)
    prompt = np.where(pictured, np.maximum(text, 1) + image, plain.input_tokens)
    output = np.where(pictured, output, plain.output_tokens)
    return Sizes(prompt.astype(int), image.astype(int), output.astype(int), [()] * count, name)


def _drawn(mix: Any, count: int, stream: Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(text, image, answer) tokens from ServeGen's histograms, clients weighed by their rates."""
    noon_s = 43_200.0
    clients = [each for each in mix.clients if each.lengths_at(noon_s)["image_count"].values.any()]
    upto = np.cumsum([each.rates.mean() for each in clients])
    owner = np.searchsorted(upto / upto[-1], uniforms(stream, count), "right")
    text, image, output = np.zeros(count), np.zeros(count), np.zeros(count)
    for number, client in enumerate(clients):
        rows = np.flatnonzero(owner == number)
        found = client.lengths_at(noon_s)
        text[rows] = found["text_tokens"].draw(stream, len(rows))
        output[rows] = found["output_tokens"].draw(stream, len(rows))
        counts = np.clip(found["image_count"].draw(stream, len(rows)), 1, 12).astype(int)
        item = np.repeat(np.arange(len(rows)), counts)
        tokens = found["image_tokens"].draw(stream, len(item))
        image[rows] = np.bincount(item, tokens, len(rows))
    return text, np.maximum(whole(image), 1), np.maximum(whole(output), 1)


# -- times


def arrivals_of(rate_per_s: float, wave: float, period_s: float) -> Arrivals:
    """Independent arrivals; a wave has gaps like Azure's, and a peak of `wave` times its trough."""
    if wave <= 1:
        return Poisson(rate_per_s=rate_per_s)
    swing = (wave - 1) / (wave + 1)
    return Diurnal(
        rate_per_s=rate_per_s, swing=swing, period_s=period_s, peak_s=period_s / 2, cv=AZURE_CV
    )


def steady_jobs(
    name: str, requests: int, seed: int, *, rate_per_s: float, wave: float, period_s: float,
    target: Target, block_tokens: int, data: str, most_output: int, even: tuple[int, int],
) -> list[Job]:  # fmt: skip
    """Jobs of one workload at one mean rate."""
    _bounded(requests)
    sizes = sizes_of(name, requests, seed, data=data, block_tokens=block_tokens, even=even)
    times = arrivals_of(rate_per_s, wave, period_s).times(len(sizes), seed)
    return _jobs(sizes, times, 0, target, most_output)


def flipping_jobs(
    seconds: float, seed: int, *, rates: tuple[float, float], window_s: float, target: Target,
    data: str, most_output: int, names: tuple[str, str] = ("code", "reasoning"),
) -> list[Job]:  # fmt: skip
    """Windows of prompts with short answers, and of short prompts with long answers, by turns."""
    jobs: list[Job] = []
    for window in range(max(round(seconds / window_s), 1)):
        which = window % 2
        own = seed * 1009 + window
        _bounded(int(rates[which] * window_s) + len(jobs))
        times = Poisson(rate_per_s=rates[which]).until(window_s, own)
        if not len(times):
            continue
        sizes = sizes_of(names[which], len(times), own, data=data)
        jobs += _jobs(sizes, times + window * window_s, len(jobs), target, most_output)
    return jobs


def _bounded(count: int) -> None:
    if count > MOST_JOBS:
        raise KnobError("LLMElastic.requests", f"{count} jobs", f"give at most {MOST_JOBS}")


def _jobs(
    sizes: Sizes, times: np.ndarray, first: int, target: Target, most_output: int
) -> list[Job]:  # fmt: skip
    _bounded(first + len(sizes))
    rows = zip(
        times.tolist(), sizes.prompt.tolist(), sizes.image.tolist(), sizes.output.tolist(),
        sizes.blocks, strict=True,
    )  # fmt: skip
    return [
        Job(
            first + at, when_s, max(prompt, 1), min(max(output, 1), most_output), blocks=blocks,
            kind=sizes.kind, priority=ONLINE, target=target, image_tokens=image,
        )
        for at, (when_s, prompt, image, output, blocks) in enumerate(rows)
    ]  # fmt: skip


def backlog_of(first: int, seed: int, name: str, most_output: int) -> Iterator[Job]:
    """Offline jobs without end, numbered from `first` on."""
    turn = 0
    while True:
        sizes = sizes_of(name, 512, seed * 7919 + turn)
        for at in range(len(sizes)):
            yield Job(
                first + turn * 512 + at, 0.0, int(sizes.prompt[at]),
                int(min(max(sizes.output[at], 1), most_output)), kind="offline", priority=OFFLINE,
            )  # fmt: skip
        turn += 1


__all__ = [
    "IMAGE_SHARES", "WORKLOADS", "Sizes", "arrivals_of", "backlog_of", "flipping_jobs", "sizes_of",
    "steady_jobs",
]  # fmt: skip
