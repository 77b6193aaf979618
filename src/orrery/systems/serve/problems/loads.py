"""Requests for serving problems: from a trace, or from a generator that is like one."""

from __future__ import annotations

from collections.abc import Callable

from orrery.base.errors import UsageError, did_you_mean
from orrery.inputs.workload import Workload
from orrery.models.requests import Request, Target


def _generators() -> dict[str, Callable[..., Workload]]:
    from orrery import inputs

    return {
        "azure-conv": lambda *of, **kw: inputs.azure_like("conv", *of, **kw),
        "azure-code": lambda *of, **kw: inputs.azure_like("code", *of, **kw),
        "mooncake": inputs.mooncake_like, "reasoning": inputs.reasoning_like,
        "sharegpt": inputs.sharegpt_like, "multimodal": inputs.multimodal_like,
        "agents": inputs.agents_like,
    }  # fmt: skip


def workload_of(trace: str, name: str, count: int, rate_per_s: float, seed: int) -> Workload:
    """So many requests of a trace, or of a generator; at a rate, if one is given."""
    if trace:
        from orrery.inputs import open_workload

        found = open_workload(trace).head(count)
        if rate_per_s:
            found = found.at_rate(rate_per_s)
    else:
        known = _generators()
        if name not in known:
            raise UsageError(f"workload={name!r}: unknown; {did_you_mean(name, known)}")
        found = known[name](count, rate_per_s=rate_per_s or None, seed=seed)
    return found


def requests_of(
    workload: Workload, block_tokens: int, target: Target | None = None
) -> list[Request]:
    """The requests of a workload, with the keys of an engine's blocks."""
    cut = workload.reblocked(block_tokens)
    rows = zip(
        workload.arrival_s.tolist(), workload.input_tokens.tolist(),
        workload.output_tokens.tolist(), workload.session.tolist(), strict=True,
    )  # fmt: skip
    return [
        Request(
            number, arrival_s, prompt, output, session=session, kind=workload.kind_of(number),
            target=target, blocks=tuple(cut.blocks(number).tolist())[: prompt // block_tokens],
        )
        for number, (arrival_s, prompt, output, session) in enumerate(rows)
    ]  # fmt: skip


__all__ = ["requests_of", "workload_of"]
