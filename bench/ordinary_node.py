"""How many nodes a CPU-second do the vectorised LOCAL algorithms serve, beside plain loops?

The peers are the same algorithms as messages in a Python loop, and NetworkX's greedy colouring
(sequential) for the same colours.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np

from orrery.systems.protocols.baselines.cole_vishkin import ColeVishkin
from orrery.systems.protocols.baselines.greedy_by_id import GreedyById
from orrery.systems.protocols.baselines.greedy_mis import GreedyMis
from orrery.systems.protocols.baselines.luby_mis import LubyMis
from orrery.systems.protocols.ordinary_node import LargestId
from orrery.systems.protocols.problems.local_rounds import cycle, lockstep, random_ids

LARGE, SMALL = 1_000_000, 2_000


def cpu_s(work: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> dict[str, Any]:
    """Nodes per CPU-second of each algorithm, by arrays and by messages."""
    large, small = cycle(LARGE, random_ids(LARGE, 1)), cycle(SMALL, random_ids(SMALL, 1))
    found: dict[str, Any] = {"n": LARGE}
    for part in (LargestId(), ColeVishkin(), GreedyById(), GreedyMis(), LubyMis()):
        name = type(part).__name__
        found[name] = {"arrays_nodes_per_s": LARGE / cpu_s(lambda part=part: part.arrays(large))}
        if not isinstance(part, LargestId):  # its messages cost n^2 on a cycle
            taken_s = cpu_s(lambda part=part: lockstep(part, small))
            found[name]["messages_nodes_per_s"] = SMALL / taken_s
    order = np.argsort(-small.ids).tolist()
    ring = nx.cycle_graph(SMALL)
    taken_s = cpu_s(lambda: nx.greedy_color(ring, strategy=lambda g, c: order))
    found["networkx_greedy_nodes_per_s"] = SMALL / taken_s
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
