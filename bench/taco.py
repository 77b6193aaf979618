"""How long do the procedures take on the classics, and enumeration beside them? Prints JSON.

For each library automaton: CPU-seconds and wall seconds of every procedure on all its properties,
and those of explicit enumeration up to n, for the properties that both can judge. The acceptance
bounds (10 s for the four smallest, 120 s for any) are judged here, never in a test.
`python -m bench.taco --help` lists the settings.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from typing import Any

from orrery.systems.protocols.baselines.explicit_state import ExplicitState
from orrery.systems.protocols.taco import Taco, UnsupportedProperty, library

BOUND_SMALL_S, BOUND_ANY_S = 10.0, 120.0


def timed(part: Any, name: str) -> dict[str, Any]:
    """All properties of one automaton by one part."""
    automaton = library.automaton(name)
    begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
    verdicts, work = {}, 0
    for asked in library.expected(name):
        try:
            answer = part(automaton, asked)
        except UnsupportedProperty:
            verdicts[asked] = "refused"
        else:
            verdicts[asked] = answer.verdict
            work += answer.work
    return {
        "cpu_s": round(time.process_time() - begin_cpu_s, 3),
        "wall_s": round(time.perf_counter() - begin_s, 3),
        "work": work,
        "verdicts": verdicts,
    }


def main() -> None:
    """Time everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--automata", nargs="*", default=sorted(library.EXPECTED))
    parser.add_argument("--most-n", type=int, default=5, help="for the enumeration")
    settings = parser.parse_args()
    rows = {}
    for name in settings.automata:
        print(name, file=sys.stderr, flush=True)
        row = {method: timed(Taco(method=method), name) for method in ("smt", "zcs", "acs")}
        row["explicit"] = timed(ExplicitState(most_n=settings.most_n), name)
        wall_s = sum(row[method]["wall_s"] for method in ("smt", "zcs", "acs"))
        row["wall_s"] = round(wall_s, 3)
        row["within_bound"] = wall_s < (BOUND_SMALL_S if name in library.SMALLEST else BOUND_ANY_S)
        rows[name] = row
    answer = {"machine": platform.machine(), "most_n": settings.most_n, "automata": rows,
              "all_within_bound": all(row["within_bound"] for row in rows.values())}  # fmt: skip
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
