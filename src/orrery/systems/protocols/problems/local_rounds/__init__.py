"""LOCAL-model round counting: the problem, its port, its graphs, balls and judges."""

from orrery.systems.protocols.problems.local_rounds.ball import (
    Ball,
    BeyondRadius,
    ball_times,
    check_balls,
    check_locality,
    check_said,
    check_task,
)
from orrery.systems.protocols.problems.local_rounds.graph import (
    LocalGraph,
    all_ids,
    cycle,
    draws,
    from_lists,
    many_cycles,
    random_graph,
    random_ids,
    some_ids,
    sorted_ids,
    worst_ids,
    worst_sum,
    worst_sums,
)
from orrery.systems.protocols.problems.local_rounds.port import (
    LocalAlgorithm,
    Me,
    Payload,
    State,
    lockstep,
    me_of,
)
from orrery.systems.protocols.problems.local_rounds.problem import LocalRounds, Solved

__all__ = [
    "Ball", "BeyondRadius", "LocalAlgorithm", "LocalGraph", "LocalRounds", "Me", "Payload",
    "Solved", "State", "all_ids", "ball_times", "check_balls", "check_locality", "check_said",
    "check_task", "cycle", "draws", "from_lists", "lockstep", "many_cycles", "me_of",
    "random_graph", "random_ids", "some_ids", "sorted_ids", "worst_ids", "worst_sum", "worst_sums",
]  # fmt: skip
