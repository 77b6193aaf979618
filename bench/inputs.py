"""How quickly are workloads read and made? Requests per second of CPU time, the best of three.

The public traces are read where ORRERY_DATA has them; the generators need nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from orrery.inputs import Workload, load_servegen, open_workload
from orrery.inputs.generate import GENERATORS
from orrery.inputs.measure import MODELS, SOURCES

DATA = os.environ.get("ORRERY_DATA", "")


def best(make: Callable[[], Workload]) -> dict[str, float]:
    """The quickest of three: requests, seconds and requests per second."""
    took = []
    for _ in range(3):
        began = time.process_time()
        work = make()
        took.append(time.process_time() - began)
    seconds = max(min(took), 1e-9)
    return {"requests": len(work), "seconds": seconds, "per_s": len(work) / seconds}


def main() -> None:
    """Ask all readers and generators, print one JSON document."""
    readers = {}
    for name, (place, _, _) in SOURCES.items():
        path = Path(DATA) / place
        if not DATA or not path.exists():
            continue
        if name in MODELS:
            mix = load_servegen(path, MODELS[name])
            readers[f"{name}_drawn"] = best(mix.generate)
            readers[name] = best(lambda p=path, m=MODELS[name]: open_workload(p, model=m))
        else:
            readers[name] = best(lambda p=path: open_workload(p))
    generators = {name: best(make) for name, make in sorted(GENERATORS.items())}
    print(json.dumps({"readers": readers, "generators": generators}))


if __name__ == "__main__":
    main()
