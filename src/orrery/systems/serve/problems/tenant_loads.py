"""Requests of several tenants whose answers are longer or shorter than foretold.

Two workloads. `drift`: estimates are drawn, and the true length is the estimate times a factor of
the category times lognormal noise; the factors change once. `lengths`: categories with the answer
lengths of public traces, and one estimate for all of them, the mean of the first requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orrery.base.errors import KnobError, PlatformLacks
from orrery.base.rand import Stream
from orrery.inputs.arrivals import Profile
from orrery.inputs.draws import normals, uniforms
from orrery.inputs.workload import F64, Workload
from orrery.models.requests import Request

# The first requests of a trace, of which the one estimate for all is the mean.
PROFILED = 200
MOST_TOKENS = 1e8
# Requests of each trace, which are their shares of the mix unless told otherwise.
SIZES = (19366.0, 8819.0, 12031.0)
FILES = {
    "conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
    "code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
    "mooncake": "mooncake_fast25/conversation_trace.jsonl",
}


class Offer(Request):
    """A request with the length of its answer as estimated at admission; 0: nobody knows."""

    __slots__ = ("estimate",)

    def __init__(self, *given: Any, estimate: float = 0.0, **named: Any) -> None:
        super().__init__(*given, **named)
        self.estimate = estimate


def tenant_of(kind: str) -> str:
    """Whose request it is: "acme/chat" is acme's; a kind of one word is its own tenant."""
    return kind.partition("/")[0]


def category_of(kind: str) -> str:
    """What work it is: "acme/chat" is chat."""
    return kind.rpartition("/")[2]


def _whole(name: str, tokens: F64) -> np.ndarray:
    if not (np.isfinite(tokens).all() and (np.abs(tokens) < MOST_TOKENS).all()):
        problem = f"{name} of {np.max(tokens):.3g} tokens"
        raise KnobError("LLMTenants", problem, "give smaller prompts, estimates, drift or noise")
    return np.maximum(np.rint(tokens), 1).astype(int)


class Lengths:
    """Columns of a load before it has arrival times."""

    def __init__(
        self, kind: Sequence[int], kinds: Sequence[str], prompt: F64, output: F64, estimate: F64
    ) -> None:
        self.kind, self.kinds = np.asarray(kind), tuple(kinds)
        self.prompt, self.output = _whole("prompts", prompt), _whole("answers", output)
        self.estimate = np.asarray(estimate, float)

    def __len__(self) -> int:
        return len(self.kind)

    def offers(self, arrival_s: F64, priorities: dict[str, int]) -> list[Offer]:
        """The requests, one object each, in the order of arrival."""
        rows = zip(
            arrival_s.tolist(), self.kind.tolist(), self.prompt.tolist(), self.output.tolist(),
            self.estimate.tolist(), strict=True,
        )  # fmt: skip
        return [
            Offer(
                number, at_s, prompt, output, kind=self.kinds[kind], estimate=estimate,
                priority=priorities.get(tenant_of(self.kinds[kind]), 0),
            )
            for number, (at_s, kind, prompt, output, estimate) in enumerate(rows)
        ]  # fmt: skip


def pick_kinds(shares: Sequence[float], count: int, stream: Stream) -> np.ndarray:
    """A kind for each request, by the kinds' shares of the traffic."""
    whole = float(sum(shares))
    if not whole > 0:
        raise KnobError("shares", f"{tuple(shares)} has no share above 0", "give one a kind")
    edges = np.cumsum(np.asarray(shares, float) / whole)
    return np.minimum(np.searchsorted(edges, uniforms(stream, count), "right"), len(shares) - 1)


def drifting(
    count: int, seed: int, *, kinds: Sequence[str], shares: Sequence[float],
    drift: Sequence[float], turned: Sequence[float], turn_at: float, noise: float,
    estimates: tuple[float, float], prompts: tuple[float, float],
) -> Lengths:  # fmt: skip
    """True length = estimate x factor of the category x lognormal noise of median 1."""
    kind = pick_kinds(shares, count, Stream(seed, "tenants", "kind"))
    low, high = estimates
    estimate = np.rint(low + (high - low) * uniforms(Stream(seed, "tenants", "estimate"), count))
    early = np.arange(count) < turn_at * count
    factor = np.where(early, np.asarray(drift, float)[kind], np.asarray(turned, float)[kind])
    spread = np.exp(noise * normals(Stream(seed, "tenants", "noise"), count))
    prompt = prompts[0] + (prompts[1] - prompts[0]) * uniforms(
        Stream(seed, "tenants", "prompt"), count
    )
    return Lengths(kind, kinds, prompt, estimate * factor * spread, estimate)


def real_lengths(
    count: int, seed: int, *, shares: Sequence[float], most_prompt: int, data: str = ""
) -> Lengths:
    """Three categories with the lengths of Azure's and Mooncake's traces, mixed by the seed.

    `data` is a folder with the traces; without it the generators stand in, whose marginals are
    those of the traces. Prompts are cut to `most_prompt`.
    """
    kind = pick_kinds(shares, count, Stream(seed, "tenants", "kind"))
    prompt, output = np.zeros(count), np.zeros(count)
    for number, name in enumerate(FILES):
        rows = np.flatnonzero(kind == number)
        found = trace_of(name, data, max(len(rows), 1), seed)
        if len(found) < len(rows):
            rows = rows[: len(found)]
        prompt[rows] = found.input_tokens[: len(rows)]
        output[rows] = found.output_tokens[: len(rows)]
    there = output > 0
    kind, prompt, output = kind[there], prompt[there], output[there]
    estimate = np.full(len(kind), output[:PROFILED].mean())
    return Lengths(kind, tuple(FILES), np.minimum(prompt, most_prompt), output, estimate)


def trace_of(name: str, data: str, count: int, seed: int) -> Workload:
    """One of the three services: its trace under the folder `data`, or its generator."""
    from orrery import inputs

    if data:
        path = Path(data) / FILES[name]
        if not path.exists():
            raise PlatformLacks(
                f"no trace {path}; let the knob data name the folder of the traces, or use "
                'workload="lengths", which needs none'
            )
        return inputs.open_workload(str(path))
    if name == "mooncake":
        return inputs.mooncake_like(count, seed=seed)
    return inputs.azure_like(name, count, seed=seed)


def flooded(
    made: Lengths, arrival_s: F64, tenant: str, factor: float, seed: int
) -> tuple[Lengths, F64]:
    """The same requests, and between them so many more of one tenant, like its own."""
    mine = [at for at, kind in enumerate(made.kinds) if tenant_of(kind) == tenant]
    rows = np.flatnonzero(np.isin(made.kind, mine))
    count = round((factor - 1.0) * len(rows))
    if not count or not len(rows):
        return made, arrival_s
    drawn = uniforms(Stream(seed, "tenants", f"flood {tenant}"), count)
    chosen = np.concatenate([np.arange(len(made)), rows[(drawn * len(rows)).astype(int)]])
    more_s = uniforms(Stream(seed, "tenants", f"flood times {tenant}"), count) * arrival_s[-1]
    times_s = np.concatenate([arrival_s, more_s])
    order = np.argsort(times_s, kind="stable")
    chosen = chosen[order]
    whole = Lengths(
        made.kind[chosen], made.kinds, made.prompt[chosen], made.output[chosen],
        made.estimate[chosen],
    )  # fmt: skip
    return whole, times_s[order]


def from_trace(path: str, count: int) -> tuple[Lengths, F64]:
    """A workload trace as it is: its kinds, lengths and times; nobody estimates anything."""
    from orrery.inputs import open_workload

    found = open_workload(path).head(count)
    nothing = np.zeros(len(found))
    lengths = Lengths(
        found.kind, found.kinds, found.input_tokens.astype(float),
        found.output_tokens.astype(float), nothing,
    )  # fmt: skip
    return lengths, found.arrival_s


def alternating(
    count: int, rates_per_s: tuple[float, float], phase_s: float, seed: int
) -> F64:  # fmt: skip
    """Poisson arrivals whose rate alternates between two values, `phase_s` each."""
    low, high = rates_per_s
    profile = Profile(rate_per_s=(low + high) / 2, shape=(low, high), step_s=phase_s)
    return profile.times(count, Stream(seed, "tenants", "arrivals").word())


__all__ = [
    "PROFILED", "Lengths", "Offer", "alternating", "category_of", "drifting",
    "flooded", "from_trace", "real_lengths", "tenant_of", "trace_of",
]  # fmt: skip
