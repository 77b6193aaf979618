"""A scheduler that keeps each step within the time that a token may take."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.models.ports import Batch, EngineView
from orrery.models.requests import Running
from orrery.parts import Count, NonNegative
from orrery.systems.serve.baselines.vllm_v1 import VllmV1

# Steps aim at this share of the target, since a request's steps vary around what was profiled.
PACE = 0.9


class Paced(VllmV1):
    """vLLM's scheduler, whose prompt chunks and batch are cut to a limit of time for each step.

    Sarathi-Serve's stall-free batching (Agrawal et al., OSDI 2024) with the budget of tokens taken
    from a profile of step times, not fixed by hand. With `pace_s` = 0 it is vLLM's, decision by
    decision.

    pace_s       seconds that a step with decodes may take; 0: no limit
    least_chunk  prompt tokens of a step at least, whatever the limit, so that prompts get on
    """

    max_seqs: Count = 256
    max_tokens: Count = 2048
    pace_s: NonNegative = 0.0
    least_chunk: Count = 64

    profile = None  # a `Profile`, given by the pool

    def next_batch(self, view: EngineView) -> Batch:
        if not self.pace_s or self.profile is None:
            return super().next_batch(view)
        most, seqs = self._limits(view.running, view.waiting)
        return self._bounded(view, most, seqs)

    def _bounded(self, view: EngineView, tokens: int, seqs: int) -> Batch:
        """vLLM's batch under other limits, for this step alone."""
        kept = self.__dict__.get("max_tokens"), self.__dict__.get("max_seqs")
        self.__dict__["max_tokens"], self.__dict__["max_seqs"] = tokens, seqs
        try:
            return super().next_batch(view)
        finally:
            for name, value in zip(("max_tokens", "max_seqs"), kept, strict=True):
                if value is None:
                    del self.__dict__[name]
                else:
                    self.__dict__[name] = value

    def _limits(self, running: Sequence[Running], waiting: Sequence[Running]) -> tuple[int, int]:
        """(tokens of the step, requests in the batch) that the pace allows."""
        decodes, kv = decoding(running)
        if not decodes:
            return self.max_tokens, self.max_seqs
        return decodes + self.chunk(decodes, kv, self.pace_s), self.seats(decodes, kv)

    def chunk(self, decodes: int, kv: int, limit_s: float) -> int:
        """Prompt tokens that fit into a step beside these decodes."""
        most = self.max_tokens - decodes
        if most <= self.least_chunk:
            return max(most, 1)
        seconds = self.profile.seconds
        low, high = self.least_chunk, most
        while high - low > 16:
            middle = (low + high) // 2
            if seconds(((middle, 0),), decodes, kv) <= limit_s:
                low = middle
            else:
                high = middle
        return low

    def seats(self, decodes: int, kv: int) -> int:
        """Requests that may decode together, each with as much context as those now have."""
        each, seconds = kv // decodes, self.profile.seconds
        if seconds((), self.max_seqs, self.max_seqs * each) <= self.pace_s:
            return self.max_seqs
        low, high = 1, self.max_seqs
        while high - low > 1:
            middle = (low + high) // 2
            if seconds((), middle, middle * each) <= self.pace_s:
                low = middle
            else:
                high = middle
        return low

    def steady(self, view: EngineView) -> bool:
        """As vLLM's, with the batch that the pace allows now; it only shrinks as contexts grow."""
        if not view.waiting or not self.pace_s or self.profile is None:
            return super().steady(view)
        decodes, kv = decoding(view.running)
        if decodes and len(view.running) >= self.seats(decodes, kv):
            return True
        return super().steady(view)


def decoding(running: Sequence[Running]) -> tuple[int, int]:
    """How many of a batch decode, and their context."""
    decodes = kv = 0
    for seq in running:
        if seq.decoding:
            decodes += 1
            kv += seq.computed
    return decodes, kv


__all__ = ["PACE", "Paced", "decoding"]
