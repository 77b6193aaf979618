"""How many flow completions a CPU-second does each twin carry? Prints one JSON document.

The load: a number of concurrent flows on random routes of distinct links; each flow that completes
is replaced by a new one, so every completion costs one full fair-share solve. Routes and sizes are
drawn before the clock starts. `python bench/flows.py --help` lists the settings.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from typing import Any

from orrery.base.rand import Stream
from orrery.engines.virtual.flows import implementations


def churn(net_class: Any, settings: argparse.Namespace, completions: int) -> dict[str, float]:
    """Run the load on one implementation and report its rate per CPU-second."""
    draw = Stream(settings.seed, "bench", "flows")
    net = net_class([draw.uniform(0.5e9, 1.5e9) for _ in range(settings.links)])
    flow_count = settings.flows + completions
    places = range(settings.links)
    routes = [tuple(draw.sample(places, settings.hops)) for _ in range(flow_count)]
    sizes_B = [draw.expovariate(1e-6) for _ in range(flow_count)]
    caps_Bps = [
        draw.uniform(1e6, 4e7) if draw.random() < settings.capped else float("inf")
        for _ in range(flow_count)
    ]
    for place in range(settings.flows):
        net.start(0, routes[place], sizes_B[place], caps_Bps[place])
    net.next_ns()
    started = settings.flows
    begin_s = time.process_time()
    done = 0
    while done < completions:
        now_ns = net.next_ns()
        for _ in net.finish_due(now_ns):
            done += 1
            if started < flow_count:
                net.start(now_ns, routes[started], sizes_B[started], caps_Bps[started])
                started += 1
    cpu_s = time.process_time() - begin_s
    return {
        "completions": done,
        "cpu_s": round(cpu_s, 4),
        "completions_per_cpu_s": round(done / cpu_s, 1),
        "virtual_s": now_ns / 1e9,
    }


def main() -> None:
    """Measure both implementations and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=100)
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--hops", type=int, default=5)
    parser.add_argument("--capped", type=float, default=0.0, help="share of flows with a rate cap")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--completions", type=int, default=20_000, help="for the C twin")
    parser.add_argument("--python-completions", type=int, default=500, help="for the Python twin")
    settings = parser.parse_args()
    if min(settings.links, settings.flows, settings.completions, settings.python_completions) < 1:
        parser.error("--links, --flows and both counts of completions must be at least 1")
    if not 0 <= settings.hops <= settings.links:
        parser.error(f"--hops {settings.hops} must lie between 0 and --links {settings.links}")
    report: dict[str, Any] = {"question": "flow completions per CPU-second", **vars(settings)}
    report["machine"] = f"{platform.machine()} Python {platform.python_version()}"
    for name, net_class in implementations().items():
        count = settings.completions if name == "c" else settings.python_completions
        report[name] = churn(net_class, settings, count)
    if "c" not in report:
        print("the C twin is not built: only Python was measured", file=sys.stderr)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
