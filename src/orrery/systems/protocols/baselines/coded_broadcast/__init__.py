"""Erasure-coded broadcast: `codes` (Reed-Solomon over GF(256)), `proofs` (Merkle trees), `node`."""

from orrery.systems.protocols.baselines.coded_broadcast.node import CodedBroadcast

__all__ = ["CodedBroadcast"]
