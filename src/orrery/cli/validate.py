"""`orrery validate`: models beside what was measured or published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orrery.cli.common import OK, VIOLATED, Json, answer, leave, new_app, say
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
