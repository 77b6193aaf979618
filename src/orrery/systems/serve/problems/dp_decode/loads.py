"""The requests of a run, as columns: how they come, how long they are, what they may make."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from orrery.base.errors import KnobError
from orrery.base.rand import Stream
from orrery.inputs.workload import Workload
from orrery.systems.serve.problems.dp_decode.ports import F64, I64

FILES = {
    "conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
    "code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
}
# Requests of the two traces in their common hour: the shares of the mix.
SIZES = {"conv": 19366, "code": 8819}


class Load(msgspec.Struct, frozen=True):
    """Requests in the order of arrival; `limit` is the longest answer that a client takes."""

    arrival_s: F64
    prompt: I64
    output: I64
    limit: I64
    source: str = ""

    def __len__(self) -> int:
        return len(self.prompt)

    def head(self, count: int) -> Load:
        """The first so many."""
        return Load(self.arrival_s[:count], self.prompt[:count], self.output[:count],
                    self.limit[:count], self.source)  # fmt: skip


def mixed(source: str, count: int, seed: int) -> Workload:
    """Conversation and code together, in the proportions of Azure's hour of November 2023.

    `source`: "generated" needs no file; a folder holds the traces by their names in `FILES`;
    anything else is one trace.
    """
    from orrery import inputs

    if source == "generated":
        conv = max(1, round(count * SIZES["conv"] / sum(SIZES.values())))
        return inputs.azure_like("conv", conv, seed=seed).merged(
            inputs.azure_like("code", max(1, count - conv), seed=seed)
        )
    if Path(source).is_dir():
        paths = [Path(source) / name for name in FILES.values()]
        missing = [str(path) for path in paths if not path.is_file()]
        if missing:
            fix = 'give a folder that has it, a trace, or "generated"'
            raise KnobError("DPDecode.source", f"there is no {missing[0]}", fix)
        first, second = (inputs.open_workload(str(path)) for path in paths)
        return first.merged(second)
    return inputs.open_workload(source)


def load_of(
    source: str, count: int, seed: int, *, rate_per_s: float, ahead: int, limit: int,
) -> Load:  # fmt: skip
    """So many requests, of which the first `ahead` wait at the start; the rest at a mean rate.

    Answers are cut to `limit`, the longest that a client takes. A trace is begun at a place that
    the seed picks; what lies before it comes at the end.
    """
    found = mixed(source, count, seed)
    count = min(count, len(found))
    gaps_s = np.diff(found.arrival_s, prepend=found.arrival_s[0])
    start = 0 if source == "generated" else Stream(seed, "dp_decode", "start").below(len(found))
    prompt, output, gaps_s = (
        np.roll(column, -start)[:count]
        for column in (found.input_tokens, found.output_tokens, gaps_s)
    )
    prompt, output = prompt.astype(np.int64), np.minimum(output, limit).astype(np.int64)
    arrival_s = np.cumsum(gaps_s)
    if ahead >= count:
        arrival_s = np.zeros(count)
    elif rate_per_s:
        later = arrival_s[ahead:] - arrival_s[ahead]
        span_s = later[-1] if later[-1] > 0 else 1.0
        later = later * ((count - ahead) / rate_per_s / span_s)
        arrival_s = np.concatenate([np.zeros(ahead), later])
    return Load(arrival_s, prompt, output, np.full(count, limit, np.int64), found.source)


def check_fits(load: Load, capacity: int) -> None:
    """Refuse a load with a request that no worker could ever take."""
    need = load.prompt + load.limit
    worst = int(need.argmax())
    if need[worst] > capacity:
        raise KnobError(
            "DPDecode.kv_tokens", f"{capacity} tokens cannot hold request {worst}, which may need "
            f"{need[worst]}", "give more, or a smaller most_output",
        )  # fmt: skip


__all__ = ["Load", "check_fits", "load_of", "mixed"]
