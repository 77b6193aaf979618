"""Runs every benchmark of this folder and keeps the answers as dated JSON lines.

`python -m bench` runs all; `python -m bench kernel flows` runs some. Each answer is appended to
results/benchmarks.jsonl with the date, the version and the machine, so that a change can be laid
beside what was there before.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import orrery

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "benchmarks.jsonl"


def questions() -> list[str]:
    """The names of the benchmarks, in order."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def ask(name: str) -> dict[str, object]:
    """Run one benchmark in a process of its own and read its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}"], cwd=HERE.parent, capture_output=True, text=True
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"bench {name} failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def main() -> None:
    """Ask, print, keep."""
    known = questions()
    wanted = sys.argv[1:] or known
    for name in wanted:
        if name not in known:
            raise SystemExit(f"no benchmark {name!r}; known: {', '.join(known)}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    RESULTS.parent.mkdir(exist_ok=True)
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)
        answer = ask(name)
        row = {
            "bench": name,
            "date": datetime.date.today().isoformat(),
            "version": orrery.__version__,
            "machine": machine,
            "answer": answer,
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")
        print(json.dumps({name: answer}, indent=1))


if __name__ == "__main__":
    main()
