"""The classics of this room; `orrery.systems.protocols` gives their names."""
