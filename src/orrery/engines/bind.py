"""Binding: how a part meets an engine.

An engine has a host class that knows how to sleep, send and spawn. Binding makes a subclass of
(host class, user's class), with the knobs as class attributes, so a bound node finds the engine's
methods first, costs no extra dictionary per knob, and is still an instance of the user's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orrery.base.errors import PartError, WorldError
from orrery.parts.node import Node
from orrery.world import World


def bound_class(host: type, part: Node) -> type:
    """The class of `part` as it runs on an engine with this host class."""
    cls = type(part)
    # The annotations stay with the user's class: a bound node has values, not knobs to set.
    body = {**part.knobs(), "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (host, cls), body)


def cast(roles: Mapping[str, Any], world: World) -> list[tuple[str, Node]]:
    """Which (role, part) runs on each node of the world, in order of node id."""
    for role, part in roles.items():
        if not isinstance(part, Node):
            raise PartError(
                f"role {role!r} is a {type(part).__name__}, which cannot run on a machine by "
                "itself; give a Node, or a problem that hosts it"
            )
    if not roles:
        return []
    if len(roles) == 1:
        ((role, part),) = roles.items()
        return [(group.name, part) for group in world.groups for _ in range(group.count)]
    names = [group.name for group in world.groups]
    missing = [role for role in roles if role not in names]
    if missing:
        raise WorldError(
            "groups",
            f"no group named {missing[0]!r} (there are: {', '.join(names)})",
            "name the world's groups by role, e.g. "
            f"World.lan({{{', '.join(f'{r!r}: 1' for r in roles)}}})",
        )
    unplayed = [name for name in names if name not in roles]
    if unplayed:
        raise WorldError(
            "groups", f"nobody plays the group {unplayed[0]!r}", "give a part for that role"
        )
    return [(g.name, roles[g.name]) for g in world.groups for _ in range(g.count)]
