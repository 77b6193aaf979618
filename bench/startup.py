"""How quickly does the command line answer? Wall and CPU seconds, the median of several starts.

`orrery --help` has 0.3 s and `orrery list` 0.5 s. A machine may be slow or busy, so each is also
told as so many bare starts of Python (`python -c pass`), measured in between, and the verdict on a
slow machine goes by that ratio: what the limits are on one where a bare start takes 15 ms of CPU.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

STARTS = 7
# The words, and the seconds that they may take (none: shown, not judged).
COMMANDS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "help": (("--help",), 0.3),
    "list": (("list",), 0.5),
    "list_json": (("list", "--json"), 0.5),
    "show": (("show", "chord"), None),
    "where": (("where", "moves KV blocks"), None),
}
BARE_S = 0.015  # CPU seconds of a bare start on the machine that the limits were set for


def once(words: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one start; the CPU time is that of the child alone."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(starts: int = STARTS) -> dict[str, Any]:
    """Medians of each command, and of bare starts taken in between."""
    bare: list[tuple[float, float]] = []
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for name, (words, _) in COMMANDS.items():
        once([sys.executable, "-m", "orrery.cli", *words])  # fills caches, as a first use does
        for _ in range(starts):
            bare.append(once([sys.executable, "-c", "pass"]))
            taken[name].append(once([sys.executable, "-m", "orrery.cli", *words]))
    bare_wall_s, bare_cpu_s = (statistics.median(times) for times in zip(*bare, strict=True))
    bare_row = {"wall_s": round(bare_wall_s, 4), "cpu_s": round(bare_cpu_s, 4)}
    found: dict[str, Any] = {"python": bare_row}
    for name, (_, limit_s) in COMMANDS.items():
        wall_s, cpu_s = (statistics.median(times) for times in zip(*taken[name], strict=True))
        row = {"wall_s": wall_s, "cpu_s": cpu_s, "starts_of_python": cpu_s / bare_cpu_s}
        if limit_s is not None:
            row |= {"limit_s": limit_s, "passes": _passes(wall_s, cpu_s, bare_cpu_s, limit_s)}
        found[name] = {key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}
    judged = [row["passes"] for row in found.values() if "passes" in row]
    return {**found, "passes": all(judged), "starts": starts}


def _passes(wall_s: float, cpu_s: float, bare_cpu_s: float, limit_s: float) -> bool:
    """Within the limit on the clock, or, where others use the machine, by CPU and ratio."""
    return wall_s < limit_s or cpu_s / max(bare_cpu_s, BARE_S) < limit_s / BARE_S


def main() -> int:
    """Measure in a home of its own and print one line of JSON."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORRERY_HOME"] = home
        found = measure()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
