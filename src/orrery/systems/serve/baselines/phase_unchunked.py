"""Unified serving, whole prompts."""

from __future__ import annotations

from orrery.systems.serve.problems.llm_phases import PhasePolicy, Place, Site


class PhaseUnchunked(PhasePolicy):
    """Every engine serves both phases in turn; whole prompts come before all decodes.

    What vLLM did before it had chunks (Kwon et al., SOSP 2023), and what papers mean by unified
    serving: the answers under way stand still while a prompt is computed.
    """

    def places(self, site: Site) -> list[Place]:
        return [Place("mixed", site.tp)] * (site.devices // site.tp)


__all__ = ["PhaseUnchunked"]
