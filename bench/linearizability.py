"""How long does it take to check 100,000 operations of 20 clients, 5 % of them indefinite?"""

from __future__ import annotations

import json
import time

from orrery.check import linearizable
from orrery.check.generate import linearizable_history

if __name__ == "__main__":
    history = linearizable_history(100_000, clients=20, indefinite=0.05, seed=1)
    began = time.process_time()
    verdict = linearizable(history)
    print(json.dumps({"ok": verdict.ok, "cpu_s": time.process_time() - began}))
