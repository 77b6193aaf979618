"""Proof of work in two files: `node` (the honest miner) and `cheats` (selfish, parasite)."""

from orrery.systems.protocols.baselines.proof_of_work.node import ProofOfWork

__all__ = ["ProofOfWork"]
