"""The classics of this room; `orrery.systems.serve` gives their names."""
