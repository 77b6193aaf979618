"""The replica that has the beginning of the prompt, unless it is too busy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orrery.models.ports import ReplicaView, Router
from orrery.models.requests import Request
from orrery.parts import NonNegative


class KVAware(Router):
    """Weighs what a replica has in its cache against how busy it is.

    As NVIDIA Dynamo's router does it: the cost of a replica is the prompt that it would have to
    compute, `overlap_weight` times, in blocks, plus the blocks in use there. With
    `overlap_weight=0` it looks at the load alone.
    """

    overlap_weight: NonNegative = 1.0

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        if not replicas:
            return -1
        weight, shared = self.overlap_weight, bool(request.blocks)
        best, best_cost = replicas[0], math.inf
        for each in replicas:
            waits = each.prefill_tokens
            cost = weight * waits + each.kv_tokens + waits
            # What the replica has lowers its cost, so there is no need to look if it is too busy.
            if shared and cost - weight * request.prompt_tokens < best_cost:
                cost -= weight * each.cached_tokens(request)
            if cost < best_cost:
                best, best_cost = each, cost
        return best.index


__all__ = ["KVAware"]
