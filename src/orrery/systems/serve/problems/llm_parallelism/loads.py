"""Requests of two tiers whose mix changes from window to window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orrery.base.errors import KnobError, UsageError
from orrery.base.rand import Stream
from orrery.inputs import azure_like, open_workload
from orrery.inputs.draws import exponentials, uniforms
from orrery.models.requests import Request, Target
from orrery.systems.serve.problems.llm_parallelism.ports import Tier

FILES = {
    "conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
    "code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
}  # fmt: skip


def arrivals(rates: Sequence[float], window_s: float, windows: int, stream: Stream) -> np.ndarray:
    """Poisson arrivals whose rate is that of each window in turn."""
    found = []
    for at in range(windows):
        rate = rates[at % len(rates)]
        if rate <= 0:
            continue
        many = int(rate * window_s + 10 * (rate * window_s) ** 0.5 + 20)
        draws = exponentials(Stream(stream.word(), "window", str(at)), many)
        times = np.cumsum(draws / rate)
        found.append(at * window_s + times[times < window_s])
    return np.concatenate(found) if found else np.zeros(0)


def lengths(kind: str, count: int, seed: int, data: str) -> tuple[np.ndarray, np.ndarray]:
    """(prompt, answer) tokens: of the generator like a service's trace, or rows of the trace."""
    if kind not in FILES:
        fix = f"give some of {', '.join(FILES)}"
        raise KnobError("LLMParallelism.lengths", f"{kind!r} is unknown", fix)
    if not count:
        return np.zeros(0, int), np.zeros(0, int)
    if not data:
        made = azure_like(kind, count, seed=seed)
        return made.input_tokens.astype(int), made.output_tokens.astype(int)
    path = Path(data) / FILES[kind]
    if not path.is_file():
        raise UsageError(f"LLMParallelism.data={data!r}: no file {FILES[kind]}; leave data empty")
    trace = open_workload(str(path))
    rows = (uniforms(Stream(seed, "rows", kind), count) * len(trace)).astype(int)
    return trace.input_tokens[rows].astype(int), trace.output_tokens[rows].astype(int)


def requests_of(
    tiers: Sequence[Tier], kinds: Sequence[str], rates: Sequence[Sequence[float]], *,
    window_s: float, windows: int, seed: int, data: str, most_tokens: int,
) -> list[Request]:  # fmt: skip
    """All requests of a seed, in order of arrival. A tier's requests do not change with others'."""
    rows: list[tuple[float, int, int, int]] = []
    for number, (kind, rate) in enumerate(zip(kinds, rates, strict=True)):
        times = arrivals(rate, window_s, windows, Stream(seed, "tier", str(number)))
        prompt, answer = lengths(kind, len(times), seed * 8 + number, data)
        prompt = np.clip(prompt, 1, most_tokens // 2)
        answer = np.clip(answer, 1, most_tokens // 2)
        rows += [
            (float(t), number, int(p), int(o))
            for t, p, o in zip(times, prompt, answer, strict=True)
        ]
    rows.sort()
    return [
        Request(
            at, when_s, prompt, answer, kind=tiers[number].name, max_tokens=most_tokens,
            priority=tiers[number].priority,
            target=Target(tiers[number].ttft_s, tiers[number].tpot_s),
        )
        for at, (when_s, number, prompt, answer) in enumerate(rows)
    ]  # fmt: skip


__all__ = ["FILES", "arrivals", "lengths", "requests_of"]
