"""Requests for serving problems: from a trace, or from a generator that is like one."""

from __future__ import annotations

from collections.abc import Callable

from orrery.base.errors import KnobError, UsageError, did_you_mean
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


class Targets:
    """What users expect: one target for all, and others for some classes of traffic.

    >>> Targets(Target(1.0, 0.05), ("batch=60:1",)).of("batch").ttft_s
    60.0
    """

    def __init__(self, usual: Target, patience: tuple[str, ...] = ()) -> None:
        self.usual = usual
        self.special = dict(_class_target(text) for text in patience)

    def of(self, kind: str) -> Target:
        """The target of a class."""
        return self.special.get(kind, self.usual)


def _class_target(text: str) -> tuple[str, Target]:
    kind, _, numbers = text.partition("=")
    first, _, each = numbers.partition(":")
    try:
        target = Target(float(first), float(each))
    except ValueError:
        target = Target(0.0, 0.0)
    if not kind or not (0 < target.ttft_s < 1e9 and 0 < target.tpot_s < 1e9):
        fix = 'write "class=ttft_s:tpot_s" with two numbers above 0, as in "batch=60:1"'
        raise KnobError("patience", f"{text!r} is refused", fix)
    return kind, target


def requests_of(
    workload: Workload, block_tokens: int, targets: Targets | None = None
) -> list[Request]:
    """The requests of a workload, with the keys of an engine's blocks."""
    cut = workload.reblocked(block_tokens)
    rows = zip(
        workload.arrival_s.tolist(), workload.input_tokens.tolist(),
        workload.output_tokens.tolist(), workload.session.tolist(), strict=True,
    )  # fmt: skip
    kinds = [workload.kind_of(number) for number in range(len(workload))]
    return [
        Request(
            number, arrival_s, prompt, output, session=session, kind=kinds[number],
            target=targets.of(kinds[number]) if targets else None,
            blocks=tuple(cut.blocks(number).tolist())[: prompt // block_tokens],
        )
        for number, (arrival_s, prompt, output, session) in enumerate(rows)
    ]  # fmt: skip


__all__ = ["Targets", "requests_of", "workload_of"]
