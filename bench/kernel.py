"""How many events a CPU-second does each kernel run, beside SimPy in the same process?"""

from __future__ import annotations

import json

from orrery.engines.virtual import kernel as kernels
from orrery.lab.bench import kernel_bench

if __name__ == "__main__":
    names = ["c", "python"] if kernels.load().NAME == "c" else ["python"]
    # The run with 100,000 nodes is asked of the faster kernel only.
    print(json.dumps({name: kernel_bench(name, big=name == names[0]) for name in names}))
