"""`orrery bench`: how fast the event kernel is here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orrery.cli.asking import check_number
from orrery.cli.common import Json, answer, new_app, say, strong, talk
from orrery.cli.table import print_table

app = new_app(no_args_is_help=True, help="Measure the event kernel beside its peer.")


@app.callback()
def group() -> None:
    """Measure the event kernel beside its peer."""


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
