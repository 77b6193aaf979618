"""The compute continuum as a world: cloud, edge and intermittent domains, and sessions that end."""

from __future__ import annotations

import math

from orrery.base.errors import WorldError
from orrery.world import RandomCrashes, World
from orrery.world.network import Network, Topology
from orrery.world.world import Group
from orrery.world.worlds import ACCESS_S, BACKHAUL_S, METRO_S

# Our choice: of eight agents one runs in the cloud, three at the edge, four where links come and
# go (phones, vehicles, sensors); the paper's abstract gives no shares.
CLOUD, EDGE = 1 / 8, 3 / 8
CELLS = 4
# With `mixed`, an edge node stays six times as long as an intermittent one, as 60 to 10 minutes.
EDGE_STAYS = 6.0
# Access links of the edge: 1 Gb/s, our assumption; messages here are small, so it hardly counts.
ACCESS_BPS = 1.25e8


def discovery_world(
    nodes: int,
    *,
    session_s: float = 0.0,
    between_s: tuple[float, float] = (0.0, 600.0),
    away_s: float = 120.0,
    mixed: bool = False,
) -> World:
    """So many agents in one cloud, four edge sites and four cells; with sessions if wanted.

    A crash rate that is the same at every moment makes sessions exponential: a median of
    `session_s` means a rate of ln 2 / session_s for each node. A node that crashes is back after a
    uniform time of half to three halves of `away_s`.

    >>> discovery_world(16).roles
    ('cloud', 'edge', 'intermittent')
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= 1_000_000:
        raise WorldError("discovery_world.nodes", f"{nodes!r}", "give a whole number, 1 to 1000000")
    for name, value in (("session_s", session_s), ("away_s", away_s)):
        if not (math.isfinite(value) and value >= 0):
            raise WorldError(f"discovery_world.{name}", f"{value!r}", "give seconds >= 0")
    clouds = max(1, round(nodes * CLOUD)) if nodes > 1 else 1
    edges = min(round(nodes * EDGE), nodes - clouds)
    rest = nodes - clouds - edges
    groups = [Group(name="cloud", count=clouds, machine="server", site="cloud")]
    for role, count, machine in (("edge", edges, "edge_box"), ("intermittent", rest, "device")):
        for cell in range(CELLS):
            share = count // CELLS + (cell < count % CELLS)
            if share:
                site = f"{role}-{cell}"
                groups.append(Group(name=role, count=share, machine=machine, site=site))
    sites = tuple(group.site for group in groups)
    table = tuple(tuple(round(_apart_s(a, b), 9) for b in sites) for a in sites)
    topology = Topology(kind="wan", sites=sites, site_latency_s=table)
    network = Network(latency_s=0.00025, jitter=0.2, bandwidth_Bps=ACCESS_BPS, topology=topology)
    world = World(title=f"discovery({nodes})", groups=tuple(groups), network=network)
    return world.with_faults(*_sessions(world, session_s, between_s, away_s, mixed))


def _apart_s(a: str, b: str) -> float:
    """One way between two sites; latencies add up along the tree to the metropolitan ring."""
    up_s = {"cloud": BACKHAUL_S, "edge": METRO_S, "intermittent": METRO_S + ACCESS_S}
    kind_a, kind_b = a.partition("-")[0], b.partition("-")[0]
    if a == b:
        return 2 * ACCESS_S if kind_a == "intermittent" else 0.00025
    if a.partition("-")[2] == b.partition("-")[2]:  # a cell and its own edge site
        return ACCESS_S
    return up_s[kind_a] + up_s[kind_b]


def _sessions(
    world: World, session_s: float, between_s: tuple[float, float], away_s: float, mixed: bool
) -> list[RandomCrashes]:
    if session_s <= 0:
        return []
    down_s = (0.5 * away_s, 1.5 * away_s)
    stays = {"edge": EDGE_STAYS, "intermittent": 1.0} if mixed else {"": 1.0}
    found = []
    for role, factor in stays.items():
        count = len(world.members(role)) if role in world.roles else 0 if role else world.size
        if count:
            rate_per_s = count * math.log(2) / (factor * session_s)
            found.append(
                RandomCrashes(
                    rate_per_s=rate_per_s,
                    between_s=between_s,
                    down_s=down_s,
                    at_most=count,
                    domain=role or None,
                )
            )
    return found
