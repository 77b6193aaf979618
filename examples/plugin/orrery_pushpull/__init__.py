"""Gossip systems for Orrery, in a package outside its tree."""
