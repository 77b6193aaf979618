"""`orrery validate`: models beside what was measured or published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import INCONCLUSIVE, OK, VIOLATED, Json, answer, leave, new_app, say
from orrery.cli.table import print_table

app = new_app(no_args_is_help=True, help="Lay models beside what was measured.")

# What a model of a serving engine must reach: mean, quantiles, the median request.
BARS = {"mean": 0.02, "p50": 0.04, "p90": 0.04, "p99": 0.04}
REQUEST_BAR = 0.06


@app.callback()
def group() -> None:
    """Lay models beside what was measured."""


@app.command("serving")
def serving(
    run: Annotated[Path, typer.Option("--run", help="The folder of a saved engine run.")],
    tables: Annotated[
        Path, typer.Option("--tables", help="Measured op tables: a folder or an archive.")
    ],
    as_json: Json = False,
) -> None:
    """Replay a saved run of a real engine and tell how far the model is off.

    Errors are fractions. Exit code 1 if a mean is off by more than 2 %, a quantile by more than
    4 %, or the median request by more than 6 %.

    \b
    Example:
      orrery validate serving --run vllm_runs/RTX4090/Llama-3.1-8B --tables op_profiles
    """
    from orrery.lab.validate import validate_serving

    found = validate_serving(run, tables)
    missed = misses(found)
    answer(found, as_json, lambda: _show(found, missed))
    leave(VIOLATED if missed else OK)


@app.command("engine")
def engine(
    model: Annotated[
        str, typer.Option("--model", help="A model of the catalogue; its weights are random.")
    ] = "SmolLM2-135M",
    layers: Annotated[int, typer.Option("--layers", help="Only so many layers; 0: all.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="fp32, bf16, fp16.")] = "fp32",
    requests: Annotated[int, typer.Option("--requests", help="Of each load.")] = 32,
    large: Annotated[
        bool, typer.Option("--large", help="Longer requests and larger batches, for a GPU.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of weights and loads.")] = 1,
    as_json: Json = False,
) -> None:
    """Serve loads with the real engine on this machine, and lay the forecast beside them.

    Steps and operators are measured first; then three loads that had no part in that are served
    for real and in the model. Exit code 1 if the forecast from single steps is off by more than
    10 % for the time to the first token, or 12 % for that of each further one (mean over requests).

    \b
    Example:
      orrery validate engine --layers 6 --requests 24
    """
    from orrery.lab.validate_engine import LARGE, SMALL, TPOT_BAR, TTFT_BAR, validate_engine

    check_number("--layers", layers, 0, 1000)
    check_number("--requests", requests, 2, 10_000)
    tell = None if as_json else say
    found = validate_engine(
        model, layers=layers, device=device, dtype=dtype, requests=requests, seed=seed,
        limits=LARGE if large else SMALL, on_load=tell,
    )  # fmt: skip
    missed = [
        row for row in found["rows"]
        if row["table"] == "steps" and (row["ttft_mape"] > TTFT_BAR or row["tpot_mape"] > TPOT_BAR)
    ]  # fmt: skip
    answer(found, as_json, lambda: _show_engine(found))
    leave(VIOLATED if missed else OK)


@app.command("training")
def training(
    points: Annotated[
        Path, typer.Option("--points", help="A folder of published Megatron points.")
    ],
    as_json: Json = False,
) -> None:
    """Lay the model of training beside published steps: time and memory of each.

    Errors are fractions. Exit code 1 if the mean error of time or of memory is more than 6 %, 2 if
    no point has a published figure.

    \b
    Example:
      orrery validate training --points training/calculon_validation
    """
    from orrery.lab.validate_training import misses as missed_means
    from orrery.lab.validate_training import validate_training

    found = validate_training(points, None if as_json else lambda name: say(f"running {name}"))
    missed = missed_means(found)
    answer(found, as_json, lambda: _show_training(found, missed))
    if not found["times"] and not found["memories"]:
        leave(INCONCLUSIVE)
    leave(VIOLATED if missed else OK)


def _show_training(found: dict[str, Any], missed: list[str]) -> None:
    gib = 1 << 30
    rows = [
        (row["name"], f"{row['predicted_s']:.2f} s", _cell(row["published_s"], "{:.2f} s"),
         _cell(row["err"], "{:+.1%}"), f"{row['predicted_bytes'] / gib:.2f} GiB",
         _cell(row["published_bytes"] and row["published_bytes"] / gib, "{:.2f} GiB"),
         _cell(row["memory_err"], "{:+.1%}"), row["counts"])
        for row in found["rows"]
    ]  # fmt: skip
    names = ("point", "modelled", "published", "off", "memory", "published", "off", "of")
    print_table(names, rows)
    say(f"mean error of {found['times']} times {_cell(found['mean_err'], '{:.2%}')}, at most "
        f"{_cell(found['max_err'], '{:.2%}')}; of {found['memories']} memories "
        f"{_cell(found['memory_mean_err'], '{:.2%}')}, at most "
        f"{_cell(found['memory_max_err'], '{:.2%}')}")  # fmt: skip
    if not found["times"] and not found["memories"]:
        say("no point has a published figure; add published_s or published_bytes to its file")
    elif missed:
        say(f"beyond {found['bar']:.0%}: {', '.join(missed)}")
    else:
        say(f"within {found['bar']:.0%} on average")


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _show_engine(found: dict[str, Any]) -> None:
    names = ("ttft_mape", "ttft_mean_err", "tpot_mape", "tpot_mean_err", "step_mape")
    rows = [[row["load"], row["table"], *(f"{row[name]:+.1%}" for name in names)]
            for row in found["rows"]]  # fmt: skip
    print_table(["load", "measured", "TTFT", "of its mean", "TPOT", "of its mean", "step"], rows)
    say(f"{found['model']}, {found['dtype']} on {found['device']}; errors of each request, of the "
        f"mean, and of each step; load average {found['load_average']:.1f}")  # fmt: skip


def misses(found: dict[str, Any]) -> list[str]:
    """The figures that are off by more than their bar."""
    wrong = [
        f"{name}_{which}_err"
        for name in ("ttft", "tpot", "latency") for which, bar in BARS.items()
        if abs(found[f"{name}_{which}_err"]) > bar
    ]  # fmt: skip
    if found["request_latency_median_err"] > REQUEST_BAR:
        wrong.append("request_latency_median_err")
    return wrong + (["faults"] if found["faults"] else [])


def _show(found: dict[str, Any], missed: list[str]) -> None:
    rows = [
        (name, f"{found[f'{name}_mean_measured_s']:.4g} s", f"{found[f'{name}_mean_s']:.4g} s",
         *(f"{found[f'{name}_{which}_err']:+.2%}" for which in BARS))
        for name in ("ttft", "tpot", "latency")
    ]  # fmt: skip
    print_table(("", "measured", "modelled", "mean", "p50", "p90", "p99"), rows)
    say(f"{found['model']} on {found['hardware']}: {found['requests']} requests, median request "
        f"off by {found['request_latency_median_err']:.2%}, {found['preemptions']} preemptions, "
        f"{found['extrapolated_ops']} steps beyond the measured tables")  # fmt: skip
    say("all within their bars" if not missed else f"beyond their bars: {', '.join(missed)}")
