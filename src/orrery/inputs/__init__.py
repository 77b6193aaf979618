"""Inputs: the requests that come in. Traces of real services, and generators that are like them.

`open_workload("trace.csv")` reads a trace of any known format; `azure_like()` and its kin need no
file: their parameters are facts measured on public traces (`facts.toml`, by `measure.py`). Both
give a `Workload`, whose times any process of `arrivals` can replace.
"""

from orrery.base.doors import door

_NAMES = {
    "arrivals": "Arrivals Constant Diurnal Gamma MMPP Poisson Profile Replay Weibull",
    "describe": "hit_ratio lru_hit_ratio",
    "generate": "agents_like azure_like generated mooncake_like multimodal_like reasoning_like"
    " sharegpt_like",
    "ragged": "chain_blocks",
    "readers": "FORMATS open_workload sniff",
    "readers.azure": "read_azure",
    "readers.mooncake": "read_mooncake",
    "readers.openai": "read_openai",
    "readers.otel": "read_otel",
    "readers.servegen": "load_servegen read_servegen",
    "readers.sharegpt": "read_sharegpt",
    "workload": "Workload WorkloadError",
}
HOMES = {
    name: f"orrery.inputs.{module}" for module, names in _NAMES.items() for name in names.split()
}

__all__ = sorted(HOMES)

__getattr__, __dir__ = door(__name__, HOMES)
