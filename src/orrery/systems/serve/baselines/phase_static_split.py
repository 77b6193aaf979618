"""Both phases at once on fixed shares of the multiprocessors."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orrery.systems.serve.problems.llm_phases import PhasePolicy, Place, Site

Share = Annotated[float, Meta(gt=0, lt=1)]


class PhaseStaticSplit(PhasePolicy):
    """Prefill has a fixed share of the multiprocessors of every engine, decode has the others.

    Both run at once over one cache and one copy of the weights, as under NVIDIA MPS with fixed
    percentages. The share that suits one load does not suit another.

    share_of_prefill   of the multiprocessors; decode has the rest
    """

    share_of_prefill: Share = 0.5

    def places(self, site: Site) -> list[Place]:
        place = Place("split", site.tp, share=self.share_of_prefill)
        return [place] * (site.devices // site.tp)


__all__ = ["PhaseStaticSplit"]
