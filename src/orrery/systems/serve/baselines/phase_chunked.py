"""Unified serving, prompts in chunks."""

from __future__ import annotations

from orrery.parts import Count
from orrery.systems.serve.problems.llm_phases import PhasePolicy, Place, Site


class PhaseChunked(PhasePolicy):
    """Every engine serves both phases: all decodes, and chunks of prompts beside them.

    Sarathi-Serve (Agrawal et al., OSDI 2024), vLLM and SGLang: a step has `chunk` tokens at most,
    so no prompt makes anybody wait for longer than such a step. Engines of the problem's `tp`
    devices; a request goes where the fewest prompt tokens wait.

    chunk   tokens of one step
    """

    chunk: Count = 512

    def places(self, site: Site) -> list[Place]:
        return [Place("mixed", site.tp, chunk=self.chunk)] * (site.devices // site.tp)


__all__ = ["PhaseChunked"]
