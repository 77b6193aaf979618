"""`orrery bench`: how fast the event kernel and the serving model are here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import Json, answer, new_app, say, strong, talk
from orrery.cli.table import print_table

app = new_app(no_args_is_help=True, help="Measure how fast the simulator is.")


@app.callback()
def group() -> None:
    """Measure how fast the simulator is."""


@app.command("kernel")
def kernel(
    which: Annotated[
        str | None, typer.Option("--kernel", help="c or python; by default the one in use.")
    ] = None,
    scale: Annotated[
        float, typer.Option("--scale", help="Share of the full work, for a quick look.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Timers, messages, PHOLD and rpc per CPU-second, with SimPy measured in the same run.

    \b
    Examples:
      orrery bench kernel
      orrery bench kernel --scale 0.1
    """
    import importlib.util

    from orrery.engines.virtual import kernel as kernels
    from orrery.lab.bench import kernel_bench

    check_number("--scale", scale, 0.001, 100.0)
    kernels.load(which)
    peers = importlib.util.find_spec("simpy") is not None
    if not peers:
        talk('orrery: SimPy, the peer, is not installed; pip install "orrery[bench]"')
    talk("orrery: measuring; about half a minute at full scale")
    # The memory of 100,000 nodes is part of the full measurement only.
    found = kernel_bench(which, scale=scale, peers=peers, big=scale >= 0.5)
    answer(found, as_json, lambda: _show(found))


@app.command("serving")
def serving(
    trace: Annotated[
        Path | None, typer.Option("--trace", help="A workload trace; generated if left out.")
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", help="Replicas of the model.")] = 16,
    requests: Annotated[
        int, typer.Option("--requests", help="At most so many; 0: all of the trace.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Requests simulated per CPU-second, with prefix cache, preemption and a KV-aware router.

    \b
    Examples:
      orrery bench serving --replicas 16
      orrery bench serving --trace AzureLLMInferenceTrace_conv.csv --replicas 1024
    """
    from orrery.lab.bench_serving import serving_bench

    check_number("--replicas", replicas, 1, 100_000)
    check_number("--requests", requests, 0, 10_000_000)
    found = serving_bench(trace, replicas, requests)
    answer(found, as_json, lambda: _show_serving(found))


def _show_serving(found: dict[str, Any]) -> None:
    from orrery.base.units import show

    say(strong(f"{show(found['requests_per_cpu_s'])} requests per CPU-second"))
    say(f"{found['requests']} requests, {found['replicas']} replicas, {found['cpu_s']:.2f} CPU-s, "
        f"{found['seconds']:.0f} s of virtual time, {found['rss_mb']:.0f} MB at most, "
        f"{found['preemptions']} preemptions, hit ratio {found['hit_ratio']:.1%}")  # fmt: skip


def _show(found: dict[str, Any]) -> None:
    from orrery.base.units import show

    say(strong(f"kernel: {found['kernel']} (events per CPU-second)"))
    rows = []
    for name in ("timers", "messages", "phold", "rpc"):
        row = found[name]
        peer = show(row["simpy_per_s"]) if row["simpy_per_s"] else None
        ratio = f"{row['ratio']:.1f}x" if row["ratio"] else None
        rows.append((name, show(row["orrery_per_s"]), peer, ratio))
    heads = ("question", "orrery", "simpy", "ratio")
    print_table(heads, rows, right=("orrery", "simpy", "ratio"))
    say(f"flows: {show(found['flows']['per_s'])} completions/s")
    many = found.get("nodes_100k")
    if many:
        say(f"100,000 nodes: {show(many['per_s'])} messages/s, {many['rss_mb']:.0f} MB at most")
