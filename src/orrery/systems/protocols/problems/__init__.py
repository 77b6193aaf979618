"""The questions of this room; `orrery.systems.protocols` gives their names."""
