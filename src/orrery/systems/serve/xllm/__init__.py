"""xLLM: an elastic service and an overlapping engine, one file for each mechanism."""

from __future__ import annotations

from orrery.systems.serve.xllm.elastic import OnlineFirst
from orrery.systems.serve.xllm.eplb import Balancer, balanced, fractional_bound, static_placement
from orrery.systems.serve.xllm.kvindex import GlobalIndex
from orrery.systems.serve.xllm.node import XInstance
from orrery.systems.serve.xllm.overlap import Pipelined
from orrery.systems.serve.xllm.roles import RoleKeeper
from orrery.systems.serve.xllm.speculation import PromptLookup, SmallModel
from orrery.systems.serve.xllm.swap import ExpertStore
from orrery.systems.serve.xllm.system import XLLM
from orrery.systems.serve.xllm.xtensor import XTensor

__all__ = [
    "XLLM", "Balancer", "ExpertStore", "GlobalIndex", "OnlineFirst", "Pipelined", "PromptLookup",
    "RoleKeeper", "SmallModel", "XInstance", "XTensor", "balanced", "fractional_bound",
    "static_placement",
]  # fmt: skip
