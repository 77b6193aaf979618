"""The real replica: a small serving engine on PyTorch, driven by the same policy objects.

Nothing here imports torch until a name that computes is used, and a machine without it gets an
error that names the extra `torch`.
"""

from orrery.base.doors import door

__getattr__, __dir__ = door(
    __name__,
    {
        "Continuous": "orrery.models.real.schedule",
        "GgufFile": "orrery.models.real.gguf",
        "Graphs": "orrery.models.real.graphs",
        "Job": "orrery.models.real.jobs",
        "PagedCache": "orrery.models.real.paged",
        "PagedPool": "orrery.models.real.paged",
        "Piece": "orrery.models.real.paged",
        "Profiler": "orrery.models.real.profiler",
        "RealReplica": "orrery.models.real.engine",
        "StepTable": "orrery.models.real.steptable",
        "Tokenizer": "orrery.models.real.tokenizer",
        "Transformer": "orrery.models.real.transformer",
        "jobs_of": "orrery.models.real.jobs",
        "load_model": "orrery.models.real.loading",
        "load_smollm": "orrery.models.real.smollm",
        "make_job": "orrery.models.real.jobs",
        "profile": "orrery.models.real.profiler",
        "serve": "orrery.models.real.server",
        "serve_all": "orrery.models.real.measure",
        "smollm_path": "orrery.models.real.smollm",
        "warm_up": "orrery.models.real.measure",
    },
)
