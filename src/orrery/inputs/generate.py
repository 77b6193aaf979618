"""Generators: workloads that are like real ones, with no file needed.

Each takes the number of requests (that of the trace unless told otherwise), a seed, and optionally
a mean rate or a process of arrivals of its own. Their parameters are facts measured on public
traces (`facts.toml`, by `measure.py`); a test compares each generator with its trace.

=================  ===========================================================================
azure_like         Azure's conversation or code service of 2023: lengths, bursts
mooncake_like      Kimi's conversations: long prompts, sessions, shared prefixes of 512 tokens
reasoning_like     DeepSeek-R1 at Alibaba over a day: the eight busiest clients and the rest
multimodal_like    an image-and-text service at Alibaba over a day; image tokens count as input
sharegpt_like      300 ShareGPT requests as benchmarks send them: Poisson, few repeated prompts
agents_like        sessions of an agent: fans, joins and chains, waiting for each other
=================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from orrery.base.errors import did_you_mean
from orrery.base.rand import Stream
from orrery.inputs import draws
from orrery.inputs.arrivals import DAY_S, Arrivals, Gamma, Poisson, Profile
from orrery.inputs.prefixes import Sharing, weave
from orrery.inputs.tables import DAY_LEVELS, LEVELS, Lengths, facts, tokens
from orrery.inputs.workload import F64, Workload, WorkloadError
from orrery.world.spec import brief

MAX_REQUESTS = 50_000_000


def _count(name: str, requests: int | None, default: int) -> int:
    count = default if requests is None else requests
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise WorkloadError(f"{name}.requests", f"{brief(count)} is refused", "give an integer")
    if not 1 <= count <= MAX_REQUESTS:
        raise WorkloadError(f"{name}.requests", f"{count} requests", f"give 1 to {MAX_REQUESTS}")
    return int(count)


def _rate(name: str, rate_per_s: float | None, default: float) -> float:
    rate = default if rate_per_s is None else rate_per_s
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number):
        raise WorkloadError(f"{name}.rate_per_s", f"{brief(rate)} is refused", "give a number")
    if not (np.isfinite(rate) and 0 < rate < 1e9):
        raise WorkloadError(f"{name}.rate_per_s", f"{rate!r} is refused", "give a rate > 0")
    return float(rate)


def _times(
    name: str, count: int, rate_per_s: float | None, arrivals: Arrivals | None, seed: int
) -> F64:
    """The arrival times: those asked for, else as bursty as the trace."""
    if arrivals is not None:
        if rate_per_s is not None:
            problem = "both rate_per_s and arrivals are given"
            raise WorkloadError(name, problem, "give the rate to the arrivals")
        return arrivals.times(count, seed)
    found = facts()[name]
    rate = _rate(name, rate_per_s, found["seen"]["rate_per_s"])
    table = found["arrivals"]
    if "shape" not in table:
        return Gamma(rate_per_s=rate, cv=table["cv"]).times(count, seed)
    gaps = tuple(table.get("gaps", ()))
    # Faster or slower, the ups and downs keep their number of requests, not their seconds.
    stretch = found["seen"]["rate_per_s"] / rate
    return Profile(
        rate_per_s=rate,
        shape=tuple(table["shape"]),
        step_s=table["step_s"] * stretch,
        cv=table["cv"],
        gaps=gaps,
        gap_levels=LEVELS if gaps else (),
    ).times(count, seed)


def azure_like(
    service: str = "conv",
    requests: int | None = None,
    *,
    rate_per_s: float | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """Requests like those of Azure's LLM services of 2023: `conv` or `code`."""
    name = f"azure_{service}"
    if service not in ("conv", "code"):
        fix = did_you_mean(str(service), ("conv", "code"))
        raise WorkloadError("azure_like.service", f"no service {service!r}", fix)
    count = _count("azure_like", requests, facts()[name]["seen"]["requests"])
    made, out = Lengths.of(facts()[name]["lengths"]).draw(Stream(seed, name, "lengths"), count)
    return Workload(
        arrival_s=_times(name, count, rate_per_s, arrivals, seed),
        input_tokens=made.astype(np.int32),
        output_tokens=out.astype(np.int32),
        kinds=(service,),
        source=f"azure_like({service!r}, seed={seed})",
    )


def _with_sessions(
    name: str, count: int, rate_per_s: float | None, arrivals: Arrivals | None, seed: int
) -> Workload:
    found = facts()[name]
    times = _times(name, count, rate_per_s, arrivals, seed)
    columns = weave(
        times,
        Lengths.of(found["lengths"]),
        Lengths.of(found["later_lengths"]),
        Sharing(**found["sharing"]),
        seed,
        name,
    )
    return Workload(
        arrival_s=times,
        kinds=(name,),
        source=f"{name}_like(seed={seed})",
        **columns,
    )


def mooncake_like(
    requests: int | None = None,
    *,
    rate_per_s: float | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """Conversations with long prompts and shared prefixes, like Mooncake's trace.

    The gaps between the turns of a session are those of the trace at any rate, since people think
    no faster when there are more of them.
    """
    count = _count("mooncake_like", requests, facts()["mooncake"]["seen"]["requests"])
    return _with_sessions("mooncake", count, rate_per_s, arrivals, seed)


def sharegpt_like(
    requests: int | None = None,
    *,
    rate_per_s: float | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """ShareGPT requests as benchmarks send them: one in ten repeats an earlier prompt's head."""
    count = _count("sharegpt_like", requests, facts()["sharegpt"]["seen"]["requests"])
    work = _with_sessions("sharegpt", count, rate_per_s, arrivals, seed)
    # The benchmark draws prompts with repetition; that is no session of a user.
    return work.replace(session=np.full(count, -1))


def _clients(
    name: str, requests: int | None, rate_per_s: float | None, start_s: float, seed: int
) -> Workload:
    """A mix of clients over a day, each with its own rate over the day, burstiness and lengths."""
    found = facts()[name]
    clients: dict[str, Any] = found["clients"]
    mean = found["arrivals"]["rate_per_s"]
    factor = _rate(f"{name}_like", rate_per_s, mean) / mean
    count = _count(f"{name}_like", requests, 50_000)
    if not (np.isfinite(start_s) and start_s >= 0):
        raise WorkloadError(f"{name}_like.start_s", f"{start_s!r} is refused", "give seconds >= 0")
    step_s = found["arrivals"]["step_s"]
    horizon_s = 1.2 * count / (mean * factor) + step_s
    while True:
        parts = [
            _members(f"{name} {label}", client, step_s, start_s, factor, horizon_s, seed)
            for label, client in clients.items()
        ]
        if sum(map(len, parts)) >= count:
            break
        horizon_s *= 1.5
    arrival = np.concatenate(parts)
    kind = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(arrival, kind="stable")[:count]
    arrival, kind = arrival[order], kind[order]
    quarter = ((arrival + start_s) // (DAY_S / 4)).astype(np.int64) % 4
    made, out = np.empty(count), np.empty(count)
    for number, (label, client) in enumerate(clients.items()):
        stream = Stream(seed, f"{name} {label}", "lengths")
        for each in range(4):
            rows = np.flatnonzero((kind == number) & (quarter == each))
            for column, table in ((made, client["input"]), (out, client["output"])):
                level = draws.uniforms(stream, len(rows))
                column[rows] = tokens(table[each], level, DAY_LEVELS)
    return Workload(
        arrival_s=arrival,
        input_tokens=draws.whole(made).astype(np.int32),
        output_tokens=draws.whole(out).astype(np.int32),
        kind=kind.astype(np.int16),
        kinds=tuple(clients),
        source=f"{name}_like(seed={seed})",
    )


def _members(
    owner: str,
    client: dict[str, Any],
    step_s: float,
    start_s: float,
    factor: float,
    horizon_s: float,
    seed: int,
) -> F64:
    """The arrivals of all members of a group, each with its own rate and burstiness."""
    found = []
    pairs = zip(client["rates_per_s"], client["cvs"], strict=True)
    for number, (rate_per_s, cv) in enumerate(pairs):
        process = Profile(
            rate_per_s=rate_per_s * factor,
            shape=tuple(client["shape"]),
            step_s=step_s,
            start_s=float(start_s),
            cv=cv,
        )
        own = Stream(seed, f"{owner} {number}", "arrivals").word()
        found.append(process.until(horizon_s, own))
    return np.sort(np.concatenate(found))


def reasoning_like(
    requests: int | None = None,
    *,
    rate_per_s: float | None = None,
    start_s: float = 0.0,
    seed: int = 0,
) -> Workload:
    """Requests to a reasoning model (DeepSeek-R1): long answers, uneven clients.

    `rate_per_s` is the mean over the day (16 in the data); time 0 is `start_s` after midnight.
    Prompt and answer lengths are independent within a client, as only their marginals are public.
    """
    return _clients("reasoning", requests, rate_per_s, start_s, seed)


def multimodal_like(
    requests: int | None = None,
    *,
    rate_per_s: float | None = None,
    start_s: float = 0.0,
    seed: int = 0,
) -> Workload:
    """Requests with images: the tokens of the images count as input; else as `reasoning_like`."""
    return _clients("multimodal", requests, rate_per_s, start_s, seed)


def agents_like(
    sessions: int = 100,
    *,
    rate_per_s: float = 0.5,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """Sessions of an agent: calls in levels, each level waiting for the whole level before.

    `rate_per_s` is that of sessions. The shapes, lengths and tool times are those of the public
    example traces of inference-perf, which people wrote by hand: they show structure, not load.
    Arrivals of later calls are nominal, at 50 answer tokens a second.
    """
    count = _count("agents_like", sessions, 100)
    rate = _rate("agents_like", rate_per_s, 0.5)
    starts = (arrivals or Poisson(rate_per_s=rate)).times(count, seed)
    from orrery.inputs.agents import grow

    return grow(facts()["agents"], starts, seed)


GENERATORS: dict[str, Callable[..., Workload]] = {
    "agents_like": agents_like,
    "azure_like": azure_like,
    "mooncake_like": mooncake_like,
    "multimodal_like": multimodal_like,
    "reasoning_like": reasoning_like,
    "sharegpt_like": sharegpt_like,
}


def generated(text: str, seed: int = 0) -> Workload:
    """A workload by name, as on a command line: `azure_like:code`, `mooncake_like:2000`.

    >>> len(generated("azure_like:conv,50"))
    50
    """
    name, _, rest = text.partition(":")
    if name not in GENERATORS:
        raise WorkloadError("generated", f"no generator {name!r}", did_you_mean(name, GENERATORS))
    words = [word.strip() for word in rest.split(",") if word.strip()]
    given: list[Any] = [int(word) if word.isdigit() else word for word in words]
    if len(given) > (2 if name == "azure_like" else 1):
        raise WorkloadError("generated", f"too many arguments in {text!r}", "give name:requests")
    if name == "azure_like" and given and isinstance(given[0], int):
        given.insert(0, "conv")
    return GENERATORS[name](*given, seed=seed)
