"""How fast do the experiment files of QUANTAS 2 run, in rounds and on sockets?

For each file: CPU seconds and messages a CPU-second in the abstract mode, wall seconds and messages
a wall-second in the concrete one. There is no Python library for the same job to stand beside it;
the original platform is C++ and not installed here.
"""

from __future__ import annotations

import json
import time

from orrery import run
from orrery.systems.protocols.quantas2 import load, shipped


def measure(name: str) -> dict[str, float]:
    """Both modes of one file."""
    experiment = load(name)
    cpu_s = time.process_time()
    abstract = run(experiment.part, **experiment.call("abstract"))
    cpu_s = time.process_time() - cpu_s
    wall_s = time.perf_counter()
    concrete = run(experiment.part, **experiment.call("concrete"))
    wall_s = time.perf_counter() - wall_s
    return {
        "abstract_cpu_s": cpu_s,
        "abstract_messages_per_cpu_s": abstract.messages / cpu_s,
        "virtual_s_per_cpu_s": abstract.seconds / cpu_s,
        "concrete_wall_s": wall_s,
        "concrete_messages_per_s": concrete.messages / wall_s,
        "violations": len(abstract.violations) + len(concrete.violations),
    }


if __name__ == "__main__":
    print(json.dumps({name: measure(name) for name in shipped()}))
