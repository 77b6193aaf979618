"""Prefill and decode as two processes over one arena: weights mapped once, one paged cache.

`serve_phases(model, prompts, outputs)` runs them; `BlockBook` is the allocator that survives the
death of a process in the middle of a change. Nothing here imports torch until something computes.
"""

from orrery.base.doors import door

__getattr__, __dir__ = door(
    __name__,
    {
        "Arena": "orrery.models.real.phases.arena",
        "BlockBook": "orrery.models.real.phases.blocks",
        "FuzzReport": "orrery.models.real.phases.fuzz",
        "PhaseReport": "orrery.models.real.phases.service",
        "Requests": "orrery.models.real.phases.table",
        "fuzz_blocks": "orrery.models.real.phases.fuzz",
        "owner_of": "orrery.models.real.phases.blocks",
        "serve_alone": "orrery.models.real.phases.service",
        "serve_phases": "orrery.models.real.phases.service",
    },
)
