"""BalanceRoute, and the classifiers that its variant with a horizon asks."""

from __future__ import annotations

from orrery.systems.serve.balanceroute.router import BalanceRoute
from orrery.systems.serve.balanceroute.termination import (
    Adversary,
    BaseRate,
    Oracle,
    Termination,
    Trained,
)

__all__ = ["Adversary", "BalanceRoute", "BaseRate", "Oracle", "Termination", "Trained"]
