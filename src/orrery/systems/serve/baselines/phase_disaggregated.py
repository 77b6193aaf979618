"""Each phase on accelerators of its own, with caches that move between them."""

from __future__ import annotations

from orrery.base.errors import KnobError
from orrery.parts import Count, Whole
from orrery.systems.serve.problems.llm_phases import PhasePolicy, Place, Site


class PhaseDisaggregated(PhasePolicy):
    """Some engines compute prompts, the others decode; the cache of a prompt goes over the links.

    DistServe (Zhong et al., OSDI 2024) and Splitwise (Patel et al., ISCA 2024): no phase disturbs
    the other, for the price of the weights on both sides and of moving the cache. The cache of a
    layer goes while later layers are computed, if room for it was found when the prompt began; a
    prompt whose cache finds no room stays where it is until there is some.

    prefill   engines that compute prompts; all others decode
    devices   of an engine; 0: the fewest that hold the weights, so that there are many engines
    """

    prefill: Count = 1
    devices: Whole = 0

    def places(self, site: Site) -> list[Place]:
        each = self.devices or site.least
        engines = site.devices // each
        if engines < 2 or self.prefill >= engines:
            problem = f"{self.prefill} prefill engines of {engines} with {each} devices each"
            fix = f"give 1 to {engines - 1}" if engines > 1 else "give more devices"
            raise KnobError("PhaseDisaggregated.prefill", problem, fix)
        rest = engines - self.prefill
        return [Place("prefill", each)] * self.prefill + [Place("decode", each)] * rest


__all__ = ["PhaseDisaggregated"]
