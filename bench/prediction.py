"""How well does calibrated virtual time foretell Raft and ring all-reduce on real processes?

Measures this machine on three processes, then compares 18 points with real runs. Waits for quiet
moments, so on a busy machine it takes long; what stays noisy is called inconclusive.
"""

from __future__ import annotations

import json
import sys

import msgspec

from orrery.lab.calibrate import calibrate
from orrery.lab.prediction import compare_points, points, table, tally, wait_for_quiet


def main() -> None:
    """Print the table to stderr as it grows, and everything as JSON at the end."""
    wait_for_quiet(120.0)
    world, figures = calibrate()
    rows = compare_points(
        world, points(), tries=8,
        on_row=lambda row: print(table([row]).split("\n")[1], file=sys.stderr, flush=True),
    )  # fmt: skip
    print(json.dumps({
        "bar": 0.25, "tally": tally(rows), "figures": [each.text() for each in figures],
        "rows": [msgspec.to_builtins(row) for row in rows],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
