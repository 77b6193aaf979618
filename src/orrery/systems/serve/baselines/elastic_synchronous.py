"""An engine in which host and device take turns; it stands for a class of engines."""

from __future__ import annotations

from typing import Any

from orrery.models.ports import Scheduler
from orrery.parts import Count
from orrery.systems.serve.problems.llm_elastic.device import DeviceWork, Synchronous
from orrery.systems.serve.problems.llm_elastic.paced import PACE, Paced
from orrery.systems.serve.problems.llm_elastic.ports import ElasticPolicy, Profile


class ElasticSynchronous(ElasticPolicy):
    """Plans a step, launches it, waits for the device, and plans the next one.

    A stand-in, and no model of one product: MindIE is closed and neither it nor vLLM-Ascend can run
    here. What it shares with the engines of their class is what xLLM says it removes: the host's
    planning between two steps, a launch for every kernel (or, with `graphs`, one graph for each
    captured batch size, padded), no second micro-batch. Everything else is as in xLLM: fused
    instances, the same scheduler with the same limit of time for a token, least load first.

    graphs      replay captured graphs for pure decode steps
    paced       keep each step within the target for a token
    """

    graphs: bool = False
    paced: bool = True
    max_seqs: Count = 256
    max_tokens: Count = 2048

    def steps(self, device: DeviceWork) -> Any:
        return Synchronous(device, graphs=self.graphs)

    def scheduler(self, profile: Profile) -> Scheduler:
        pace_s = PACE * profile.target.tpot_s if self.paced else 0.0
        made = Paced(max_seqs=self.max_seqs, max_tokens=self.max_tokens, pace_s=pace_s)
        made.profile = profile
        return made


__all__ = ["ElasticSynchronous"]
