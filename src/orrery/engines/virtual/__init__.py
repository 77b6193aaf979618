"""The virtual engine: deterministic time on a modelled world."""
