"""Measures the facts that the generators use, on the public traces themselves.

Run `python -m orrery.inputs.measure FOLDER` with the folder that holds the traces (or set
ORRERY_DATA); it writes `facts.toml` beside this file. Anyone who has the traces can thus check
every figure, and a new trace becomes a new set of facts. Nothing of a trace is kept but
distributions.
"""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np

from orrery.inputs.arrivals import DAY_S
from orrery.inputs.describe import gap_cv, shared_blocks, summary
from orrery.inputs.readers.azure import read_azure
from orrery.inputs.readers.mooncake import read_mooncake
from orrery.inputs.readers.otel import read_otel
from orrery.inputs.readers.servegen import load_servegen
from orrery.inputs.readers.sharegpt import read_sharegpt
from orrery.inputs.tables import DAY_LEVELS, LEVELS, SLICE_LEVELS, joint, quantiles
from orrery.inputs.workload import F64, Workload, WorkloadError

SOURCES = {
    "azure_conv": (
        "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
        "Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv (November 2023)",
        "CC-BY 4.0; Patel et al., Splitwise, ISCA 2024",
    ),
    "azure_code": (
        "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
        "Azure/AzurePublicDataset, AzureLLMInferenceTrace_code (November 2023)",
        "CC-BY 4.0; Patel et al., Splitwise, ISCA 2024",
    ),
    "mooncake": (
        "mooncake_fast25/conversation_trace.jsonl",
        "kvcache-ai/Mooncake, FAST25 conversation_trace",
        "Apache-2.0; Qin et al., Mooncake, FAST 2025",
    ),
    "reasoning": (
        "servegen/servegen_reason_multimodal.tar.gz",
        "alibaba/ServeGen, reason/deepseek-r1",
        "Apache-2.0; Xiang et al., ServeGen, NSDI 2026",
    ),
    "multimodal": (
        "servegen/servegen_reason_multimodal.tar.gz",
        "alibaba/ServeGen, multimodal/mm-image",
        "Apache-2.0; Xiang et al., ServeGen, NSDI 2026",
    ),
    "sharegpt": (
        "vllm_runs/workloads/sharegpt-llama-3.1-8b-300-sps10.blocks16.jsonl.gz",
        "casys-kaist/LLMServingSim, 300 ShareGPT requests for Llama-3.1-8B",
        "MIT; Cho et al., LLMServingSim, IISWC 2024",
    ),
    "agents": (
        "otel_agentic",
        "kubernetes-sigs/inference-perf, examples/otel/test_traces (written by hand as examples)",
        "Apache-2.0",
    ),
}
MODELS = {"reasoning": "deepseek-r1", "multimodal": "mm-image"}
TOP_CLIENTS = 8
DAY_STEPS = 48


def measure(name: str, data: str | Path) -> dict[str, Any]:
    """The facts of one workload, from its trace under the folder `data`."""
    path = Path(data) / SOURCES[name][0]
    if name.startswith("azure"):
        return azure(read_azure(path), 60.0 if name == "azure_conv" else 10.0)
    if name == "mooncake":
        return mooncake(read_mooncake(path, spread=True))
    if name == "sharegpt":
        return sharegpt(read_sharegpt(path))
    if name == "agents":
        return agents(read_otel(path))
    return servegen(path, MODELS[name])


def seen(work: Workload) -> dict[str, Any]:
    """The figures by which a reader of the facts knows the trace."""
    found = summary(work)
    keep = ("requests", "seconds", "rate_per_s", "gap_cv", "rank_correlation", "block_hit_ratio")
    figures: dict[str, Any] = {name: _short(found[name]) for name in keep}
    for name in ("input_tokens", "output_tokens"):
        figures[name] = {key: _short(value) for key, value in found[name].items()}
    return figures


def _short(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(f"{value:.5g}")


def profile(times: F64, step_s: float) -> tuple[list[int], F64]:
    """Arrivals in each whole step, and the times on the scale on which their rate is 1."""
    steps = int(times[-1] // step_s)
    whole = times[times < steps * step_s]
    counts = np.bincount((whole // step_s).astype(np.int64), minlength=steps)
    upto = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    return counts.tolist(), np.interp(whole / step_s, np.arange(steps + 1), upto)


def azure(work: Workload, step_s: float) -> dict[str, Any]:
    """Lengths, and arrivals as a profile by step with gaps around it."""
    counts, operational = profile(work.arrival_s, step_s)
    gaps = np.diff(operational)
    bursts: dict[str, Any] = {"step_s": step_s, "shape": counts, "cv": _short(gap_cv(operational))}
    if bursts["cv"] > 1.5:  # a Gamma distribution no longer looks like these gaps
        bursts["gaps"] = [_short(each) for each in np.quantile(gaps, LEVELS)]
    return {
        "seen": seen(work),
        "arrivals": bursts,
        "lengths": joint(work.input_tokens, work.output_tokens),
    }


def followers(work: Workload, common_blocks: int) -> dict[str, Any]:
    """Who follows up on whom: for each request, what it shares and with which latest request."""
    shared = shared_blocks(work)
    last: dict[int, int] = {}
    source = np.full(len(work), -1)
    for i in range(len(work)):
        row = work.blocks(i).tolist()
        if shared[i] > common_blocks:
            source[i] = last[row[shared[i] - 1]]
        last.update(dict.fromkeys(row, i))
    return {"shared": shared, "source": source, "follows": source >= 0}


def mooncake(work: Workload) -> dict[str, Any]:
    """Lengths of first and of later requests, sessions, gaps, growth and sharing."""
    size = work.block_tokens
    first = work.block_ids[work.block_starts[:-1]]
    common = int((first == first[0]).mean() > 0.5)
    found = followers(work, common)
    counts, _ = profile(work.arrival_s, 300.0)
    ticks = np.bincount((work.arrival_s // 3.0).astype(np.int64))[:-1]
    slow = np.repeat([np.mean(part) for part in np.array_split(ticks, len(counts))], 1)
    cv = np.sqrt(max(0.0, (ticks.var() - slow.var()) / ticks.mean()))
    return {
        "seen": seen(work),
        "arrivals": {"step_s": 300.0, "shape": counts, "cv": _short(cv)},
        "lengths": joint(
            work.input_tokens[~found["follows"]], work.output_tokens[~found["follows"]]
        ),
        "later_lengths": joint(
            work.input_tokens[found["follows"]], work.output_tokens[found["follows"]]
        ),
        "sharing": sharing(work, found, common, size),
    }


def sharing(work: Workload, found: dict[str, Any], common: int, size: int) -> dict[str, Any]:
    """The facts of `prefixes.Sharing`."""
    rows = np.flatnonzero(found["follows"])
    before, shared = found["source"][rows], found["shared"][rows]
    made, out = work.input_tokens.astype(np.int64), work.output_tokens.astype(np.int64)
    full = made[before] // size
    goes_on = shared >= full
    growth = made[rows] - made[before] - out[before]
    kept = shared / np.maximum(full, 1)
    gap_s = work.arrival_s[rows] - work.arrival_s[before]
    second = ~found["follows"][before]
    followed = np.zeros(len(work), bool)
    followed[before] = True
    # Prompts of one block more than the common ones cannot be seen to be followed up.
    edges = sorted({(common + 1) * size, *quantiles(made, (0.25, 0.4, 0.55, 0.7, 0.85, 0.95))})
    edges = [each for each in edges if each >= (common + 1) * size]
    place = np.searchsorted(edges, made, "right")
    branches = ~goes_on if (~goes_on).any() else np.ones(len(rows), bool)
    return {
        "block_tokens": size,
        "common_blocks": common,
        "follow_up": _short(found["follows"].mean()),
        "again": goes_on_after(found["source"]),
        "length_edges": edges,
        "length_again": [
            [_relative(followed, rows, place == k) for k in range(len(edges) + 1)]
            for rows in (~found["follows"], found["follows"])
        ],
        "continues": [
            _short(goes_on[part].mean() if part.sum() >= 20 else goes_on.mean())
            for part in (place[before] == k for k in range(len(edges) + 1))
        ],
        "gap_s": [_short(q) for q in np.quantile(gap_s, LEVELS)],
        "growth_tokens": [
            quantiles(growth[each] if each.any() else growth)
            for each in (goes_on & second, goes_on & ~second)
        ],
        "kept_share": [_short(q) for q in np.quantile(kept[branches], LEVELS)],
        "branch_tokens": quantiles((made[rows] - shared * size)[branches]),
        "strict": 1,
        "max_tokens": int(made.max()),
    }


def _relative(followed: Any, rows: Any, part: Any) -> float | int:
    """How much likelier than all `rows` those of a part are to be followed up; 1: unknown."""
    if rows.sum() < 1000 or not (rows & part).any():
        return 1
    return _short(followed[rows & part].mean() / followed[rows].mean())


def goes_on_after(source: Any, turns: int = 8) -> list[float]:
    """Of the requests that are turn 1, 2, ... of their session, the share that is followed up."""
    turn = np.zeros(len(source), np.int64)
    followed = np.zeros(len(source), bool)
    for i in np.flatnonzero(source >= 0).tolist():
        turn[i] = turn[source[i]] + 1
        followed[source[i]] = True
    shares = []
    for each in range(turns):
        rows = turn == each
        if rows.sum() < 50:  # too few to tell
            break
        shares.append(_short(followed[rows].mean()))
    return shares or [1.0]


def sharegpt(work: Workload) -> dict[str, Any]:
    """Lengths, and prompts that repeat an earlier one."""
    found = followers(work, 0)
    facts = sharing(work, found, 0, work.block_tokens)
    rows = np.flatnonzero(found["follows"])
    shared = found["shared"][rows]
    full = work.input_tokens[found["source"][rows]] // work.block_tokens
    # No prompt here goes on from an answer, so every follow-up keeps a part of an earlier prompt.
    facts |= {"continues": [0.0] * len(facts["continues"]), "strict": 0}
    facts["kept_share"] = [_short(q) for q in np.quantile(shared / full, LEVELS)]
    facts["branch_tokens"] = quantiles(work.input_tokens[rows] - shared * work.block_tokens)
    alone = ~found["follows"]
    lengths = joint(work.input_tokens[alone], work.output_tokens[alone])
    return {
        "seen": seen(work),
        "arrivals": {"cv": _short(gap_cv(work.arrival_s))},
        "lengths": lengths,
        "later_lengths": joint(work.input_tokens[rows], work.output_tokens[rows]),
        "sharing": facts,
    }


def servegen(path: Path, model: str) -> dict[str, Any]:
    """The busiest clients one by one, the rest as one: rates over the day, cv and lengths."""
    mix = load_servegen(path, model)
    day = mix.generate(seconds=DAY_S, start_s=0.0, seed=0)
    clients = sorted(mix.clients, key=lambda each: -each.rates.mean())
    quarter = (day.arrival_s // (DAY_S / 4)).astype(np.int64)
    groups = {}
    parts = [[each] for each in clients[:TOP_CLIENTS]] + [clients[TOP_CLIENTS:]]
    for part in parts:
        if not part:
            continue
        rates = np.sum([each.rates for each in part], axis=0)
        rows = np.isin(day.kind, [mix.clients.index(each) for each in part])
        quarters = [rows & (quarter == k) for k in range(4)]
        # A client that is silent for a quarter of the day is given its lengths of the whole day.
        quarters = [each if each.any() else rows for each in quarters]
        shape = [float(np.mean(each)) for each in np.array_split(rates, DAY_STEPS)]
        name = part[0].name if len(part) == 1 else f"{len(part)} others"
        groups[name] = {
            "rates_per_s": [_short(float(each.rates.mean())) for each in part],
            "cvs": [_short(each.cv_between(0.0, DAY_S)) for each in part],
            "shape": [_short(1000 * each) for each in shape],
            "input": [quantiles(day.input_tokens[each], DAY_LEVELS) for each in quarters],
            "output": [quantiles(day.output_tokens[each], DAY_LEVELS) for each in quarters],
        }
    step_s = DAY_S / DAY_STEPS
    rates = {"step_s": step_s, "rate_per_s": _short(mix.rate_per_s)}
    return {"seen": seen(day), "arrivals": rates, "clients": groups}


def agents(work: Workload) -> dict[str, Any]:
    """The shapes of agent sessions by level, and the lengths, times and sharing in each role."""
    level = np.zeros(len(work), np.int64)
    for i in range(len(work)):
        waits = work.parents(i)
        level[i] = 1 + max(level[j] for j in waits) if waits else 0
    shapes = []
    width = np.zeros(len(work), np.int64)
    for each in np.unique(work.session).tolist():
        rows = work.session == each
        counts = np.bincount(level[rows])
        width[rows] = counts[level[rows]]
        shapes.append(counts.tolist())
    waits_for = np.array([len(work.parents(i)) for i in range(len(work))])
    roles = {
        "root": waits_for == 0,
        "fan": (waits_for > 0) & (width > 1),
        "join": (waits_for > 1) & (width == 1),
        "chain": (waits_for == 1) & (width == 1),
    }
    tables = {}
    for role, rows in roles.items():
        tables[role] = {
            "input": quantiles(work.input_tokens[rows], SLICE_LEVELS),
            "output": quantiles(work.output_tokens[rows], SLICE_LEVELS),
            "delay_s": [_short(q) for q in np.quantile(work.delay_s[rows], SLICE_LEVELS)],
        }
    held = np.diff(work.block_starts)
    later = (waits_for > 0) & (held > 0)
    share = _shared_in_session(work)[later] / held[later]
    return {
        "seen": seen(work),
        "sessions": {
            "block_tokens": work.block_tokens,
            "shapes": shapes,
            "shared": [_short(q) for q in np.quantile(share, SLICE_LEVELS)],
        },
        "roles": tables,
    }


def _shared_in_session(work: Workload) -> Any:
    """Leading blocks of each prompt that an earlier prompt or answer of its session holds."""
    shared = np.zeros(len(work), np.int64)
    held: dict[int, set[int]] = {}
    for i in range(len(work)):
        known = held.setdefault(int(work.session[i]), set())
        row = work.blocks(i).tolist()
        while shared[i] < len(row) and row[shared[i]] in known:
            shared[i] += 1
        known.update(row, work.answer_blocks(i).tolist())
    return shared


# -- the file


def _line(key: str, value: Any) -> str:
    if isinstance(value, str):
        return f'{key} = "{value}"'
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            rows = ",\n".join("  " + _wrapped(row, "    ") for row in value)
            return f"{key} = [\n{rows},\n]"
        return f"{key} = {_wrapped(value, '  ')}"
    if isinstance(value, dict):
        inner = ", ".join(f"{k} = {v}" for k, v in value.items())
        return f"{key} = {{ {inner} }}"
    return f"{key} = {value}"


def _wrapped(values: list[Any], indent: str) -> str:
    lines, line = [], "["
    for each in values:
        text = f"{each}, "
        if len(line) + len(text) > 92:
            lines.append(line.rstrip())
            line = indent
        line += text
    return "\n".join([*lines, line.rstrip(", ") + "]"])


def to_toml(found: dict[str, dict[str, Any]], date: str) -> str:
    """The facts as text."""
    blocks = [
        "# Facts measured on public traces by `python -m orrery.inputs.measure`. Tables are",
        "# quantiles at the levels of tables.py. No request of a trace stands here.",
    ]
    for name, facts in found.items():
        _, source, licence = SOURCES[name]
        blocks.append(f"\n[{name}]")
        head = {"source": source, "licence": licence, "measured": date}
        blocks += [_line(key, value) for key, value in head.items()]
        for section, table in facts.items():
            if section in ("clients", "roles"):
                for inner, each in table.items():
                    blocks.append(f'\n[{name}.{section}."{inner}"]')
                    blocks += [_line(key, value) for key, value in each.items()]
            else:
                blocks.append(f"\n[{name}.{section}]")
                blocks += [_line(key, value) for key, value in table.items()]
    return "\n".join(blocks) + "\n"


def main() -> None:
    """Measure all traces and write the file of facts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default=os.environ.get("ORRERY_DATA"))
    parser.add_argument("-o", "--out", default=str(Path(__file__).with_name("facts.toml")))
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    chosen = parser.parse_args()
    if not chosen.data:
        raise WorkloadError("measure", "no folder of traces", "give it, or set ORRERY_DATA")
    found = {name: measure(name, chosen.data) for name in SOURCES}
    Path(chosen.out).write_text(to_toml(found, chosen.date), encoding="utf-8")
    print(f"{chosen.out}: {', '.join(found)}")


if __name__ == "__main__":
    main()
