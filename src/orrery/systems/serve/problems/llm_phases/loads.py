"""Requests for the problem of phases: lengths of a trace, arrivals that are Poisson."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orrery.base.errors import KnobError, UsageError
from orrery.inputs import open_workload
from orrery.inputs.arrivals import Poisson
from orrery.inputs.workload import Workload
from orrery.systems.serve.problems.loads import workload_of

# Where the traces behind the generators lie in a folder of data.
FILES = {
    "azure-conv": "azure_llm_2023/*conv.csv", "azure-code": "azure_llm_2023/*code.csv",
    "mooncake": "mooncake_fast25/conversation_trace.jsonl",
}  # fmt: skip


def lengths(
    name: str, trace: str, count: int, seed: int, data: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """(prompt, answer) tokens of so many requests.

    trace   the path of a file; else data, a folder with the trace behind the generator of that
            name; else the generator. A file's requests begin at a place that the seed chooses.
    """
    found: Workload
    if not trace and not data:
        found = workload_of("", name, count, 1.0, seed)
        return found.input_tokens, found.output_tokens
    found = open_workload(trace or _file(name, data))
    start = (seed * 7919) % max(len(found) - count, 1)
    rows = np.arange(start, start + min(count, len(found)))
    return found.input_tokens[rows], found.output_tokens[rows]


def _file(name: str, data: str) -> str:
    if name not in FILES:
        fix = f"take one of {', '.join(FILES)}, or give the path of a file as trace"
        raise KnobError("LLMPhases.workload", f"no trace is known of {name!r}", fix)
    places = sorted(Path(data).glob(FILES[name]))
    if not places:
        raise UsageError(
            f"LLMPhases.data = {data!r}: there is no {FILES[name]} in it; give the folder of the "
            "traces, or leave it empty for the generator"
        )
    return str(places[0])


def arrivals(count: int, rate_per_s: float, seed: int) -> np.ndarray:
    """Poisson arrivals; at another rate the same ones come faster or slower."""
    return Poisson(rate_per_s=1.0).times(count, seed) / rate_per_s


__all__ = ["FILES", "arrivals", "lengths"]
