"""`orrery verify`: that equal seeds give equal runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from orrery.cli.common import OK, VIOLATED, Json, answer, leave, new_app, note_kernel, say
from orrery.cli.progress import bar
from orrery.cli.table import print_pairs

app = new_app(no_args_is_help=True, help="Verify that equal seeds give equal digests.")


@app.callback()
def group() -> None:
    """Verify that equal seeds give equal digests."""


@app.command("determinism")
def determinism(
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=100_000, help="Seeds 0 to N-1 of every case.")
    ] = 20,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Also in new processes under other hash seeds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run every built system again and again: twice, on both kernels, in wire mode.

    \b
    Examples:
      orrery verify determinism
      orrery verify determinism --seeds 1000 --fresh
    """
    from orrery.lab.determinism import verify_determinism

    note_kernel()
    with bar("verify") as advance:

        def step(done: int, total: int) -> None:
            advance(f"{done} of {total}", 1)

        found = verify_determinism(seeds, fresh, progress=step)
    answer(found, as_json, lambda: _show(found))
    leave(VIOLATED if found["mismatches"] or found.get("failed") else OK)


def _show(found: dict[str, Any]) -> None:
    print_pairs([
        ("runs", found["runs"]), ("mismatches", str(found["mismatches"])),
        ("cases", ", ".join(found.get("cases", []))),
        ("kernels", ", ".join(found.get("kernels", []))),
    ])  # fmt: skip
    for case, why in (found.get("failed") or {}).items():
        say(f"{case} failed: {why}")
    first = found["first_divergence"]
    if first is None:
        say("every pair of runs agrees")
        return
    say("the first event that differs:")
    print_pairs(list(first.items()), indent="  ")
