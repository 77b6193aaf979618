"""How quickly does the command line answer? Seconds of wall time, the best of five starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time


def best(*words: str) -> float:
    """The quickest of five runs of a command."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "orrery.cli", *words], stdout=subprocess.DEVNULL, check=True
        )
        took.append(time.perf_counter() - began)
    return min(took)


if __name__ == "__main__":
    bare = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append(time.perf_counter() - began)
    print(json.dumps({
        "python_s": min(bare), "help_s": best("--help"), "list_s": best("list"),
    }))  # fmt: skip
