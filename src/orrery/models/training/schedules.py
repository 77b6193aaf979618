"""The zero-bubble schedule, and how many micro-batches a schedule keeps in memory.

A step is ("F", "B" or "W", micro-batch, chunk): forward, the gradient of the input, the gradient of
the weights. In schedules without "W" the backward step "B" does both.
"""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.taskgraph.graph import GraphError
from orrery.models.taskgraph.schedules import Step, one_f_one_b


def zero_bubble(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Step]:
    """ZB-H1: weight gradients fill the bubble of 1F1B (Qi et al., "Zero Bubble", ICLR 2024).

    Only the gradient of the input is on the way back to earlier stages, so it goes first; weight
    gradients wait. Stage s puts off s of them, so every stage holds as many micro-batches as the
    first stage of 1F1B does, and no more. With equal F, B and W the bubble is a third of that of
    1F1B.

    >>> "".join(step.direction for step in zero_bubble(0, 2, 3))
    'FFBWFBWBW'
    >>> "".join(step.direction for step in zero_bubble(1, 2, 3))
    'FBFBWFBWW'
    """
    if chunks != 1:
        raise GraphError("chunks", f"{chunks!r:.40} with zero_bubble", "give 1")
    waiting: list[int] = []
    steps: list[Step] = []
    for step in one_f_one_b(stage, stages, micro_batches):
        steps.append(step)
        if step.direction == "B":
            waiting.append(step.micro_batch)
            if len(waiting) > stage:
                steps.append(Step("W", waiting.pop(0)))
    return steps + [Step("W", each) for each in waiting]


def held(steps: Sequence[Step]) -> int:
    """The most passes through a chunk whose activations are kept at one time.

    >>> held(one_f_one_b(0, 4, 16)), held(zero_bubble(3, 4, 16))
    (4, 4)
    """
    last = "W" if any(step.direction == "W" for step in steps) else "B"
    now = most = 0
    for step in steps:
        if step.direction == "F":
            now += 1
            most = max(most, now)
        elif step.direction == last:
            now -= 1
    return most


__all__ = ["held", "zero_bubble"]
