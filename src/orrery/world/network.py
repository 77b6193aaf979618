"""The network of a world: its model, its figures, and the shape of its wiring."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from orrery.world.spec import Bytes, Count, Fraction, Index, Name, NonNegative, Positive, Spec

Model = Literal["messages", "rounds", "flows", "chosen"]
Kind = Literal[
    "lan", "wan", "islands", "fat_tree", "torus", "star", "ring", "random", "graph"
]  # fmt: skip
Latency = Annotated[float, Meta(ge=0, le=1e6)]
DIRECT_KINDS = ("torus", "star", "ring", "random", "graph")


class Edge(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One two-way cable of a graph; figures left out are those of the network."""

    label: ClassVar[str] = "edge"
    a: Index
    b: Index
    latency_s: Latency | None = None
    bandwidth_Bps: Positive | None = None

    def _check(self) -> None:
        if self.a == self.b:
            raise self._refuse("b", f"{self.b} joins a node to itself", "name another node")


class Topology(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of the wiring, as data; `world.wiring()` turns it into arithmetic.

    kind            what else it needs
    lan             nothing: a switch that never blocks
    wan             `sites` and `site_latency_s` (one way, by site; the diagonal is inside a site)
    islands         `island`: so many neighbours share fast links (`island_Bps`), as with NVLink
    fat_tree        `k` (even): k pods, up to k**3/4 nodes
    torus           `dims`; `axis_latency_s` where the axes differ
    star            nothing: node 0 is the hub
    ring            nothing
    random          `degree` and `seed`: connected, size*degree//2 cables
    graph           `edges`; `names` of the nodes, if any

    `link_Bps` is the capacity of one cable of the fabric; left out, it is `network.bandwidth_Bps`.
    """

    label: ClassVar[str] = "topology"
    kind: Kind = "lan"
    k: Annotated[int, Meta(ge=2, le=256)] | None = None
    dims: tuple[Count, ...] = ()
    axis_latency_s: tuple[Latency, ...] = ()
    degree: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    edges: tuple[Edge, ...] = ()
    names: tuple[str, ...] = ()
    sites: tuple[Name, ...] = ()
    site_latency_s: tuple[tuple[Latency, ...], ...] = ()
    island: Count | None = None
    island_Bps: Positive | None = None
    island_latency_s: Latency | None = None
    link_Bps: Positive | None = None

    def _check(self) -> None:
        needs = {
            "wan": ("sites", "site_latency_s"),
            "islands": ("island", "island_Bps"),
            "fat_tree": ("k",),
            "torus": ("dims",),
            "random": ("degree",),
            "graph": ("edges",),
        }
        takes = {"torus": ("axis_latency_s",), "random": ("seed",), "graph": ("names",)}
        takes["islands"] = ("island_latency_s",)
        allowed = (*needs.get(self.kind, ()), *takes.get(self.kind, ()), "kind", "link_Bps")
        for name in self.__struct_fields__:
            given = getattr(self, name) not in (None, ())
            if given and name not in allowed:
                fix = f"leave it out, or choose another kind than {self.kind!r}"
                raise self._refuse(name, f"means nothing for a {self.kind}", fix)
        for name in needs.get(self.kind, ()):
            empty_graph = name == "edges" and self.names and len(self.names) == 1
            if getattr(self, name) in (None, ()) and not empty_graph:
                raise self._refuse(name, f"is missing for a {self.kind}", "give it a value")
        self._check_shape()

    def _check_shape(self) -> None:
        if self.k is not None and self.k % 2:
            raise self._refuse("k", f"{self.k} is odd", "give an even number of ports")
        if math.prod(self.dims) > 10_000_000:
            raise self._refuse("dims", f"{self.dims} has over 10 million nodes", "give fewer")
        if self.axis_latency_s and len(self.axis_latency_s) != len(self.dims):
            count = len(self.axis_latency_s)
            raise self._refuse("axis_latency_s", f"has {count} values", "give one for each axis")
        if len(set(self.sites)) != len(self.sites):
            raise self._refuse("sites", f"{self.sites} repeats a name", "name each site once")
        if len(self.site_latency_s) != len(self.sites):
            count = len(self.site_latency_s)
            raise self._refuse("site_latency_s", f"has {count} rows", "give one for each site")
        for i, row in enumerate(self.site_latency_s):
            if len(row) != len(self.sites):
                fix = "give one value for each site"
                raise self._refuse(f"site_latency_s.{i}", f"has {len(row)} values", fix)
        seen: set[tuple[int, int]] = set()
        for i, edge in enumerate(self.edges):
            pair = (min(edge.a, edge.b), max(edge.a, edge.b))
            if pair in seen:
                raise self._refuse(f"edges.{i}", f"joins {pair} once more", "give each cable once")
            seen.add(pair)


class Network(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How messages travel.

    model          messages: each has latency, bandwidth and loss; bulk transfers see only the NICs
                   flows: the same, and bulk transfers share the cables of the topology max-min fair
                   rounds: synchronous rounds of `round_s`
                   chosen: the next delivery is picked by the seed, a script or an explorer
    latency_s      one way; end to end on a lan, inside a site on a wan, one cable elsewhere
    jitter         added to it: uniform in [0, jitter * latency]
    latency_sigma  it is multiplied by a log-normal number of median 1 and this sigma, for each
                   message and transfer: the long tails of the internet. Messages may overtake
    bandwidth_Bps  of a NIC (where the machine names none) and of a cable (where the topology
                   names none)
    drop           the chance that a message is lost;  duplicate: that it comes twice
    fifo           messages of one sender to one receiver keep their order
    egress_queue   messages of one sender wait for one another at its NIC
    header_B       bytes that every message costs beyond its payload
    window_B       what one connection may have under way unacknowledged (a TCP window): a bulk
                   transfer goes at most so many bytes in a round trip; left out, no limit
    """

    label: ClassVar[str] = "network"
    model: Model = "messages"
    latency_s: Latency = 0.0005
    jitter: NonNegative = 0.1
    latency_sigma: NonNegative = 0.0
    bandwidth_Bps: Positive = 1.25e9
    drop: Fraction = 0.0
    duplicate: Fraction = 0.0
    fifo: bool = True
    egress_queue: bool = True
    header_B: Bytes = 64
    # Left out, the hash is that of a network without the field.
    window_B: Positive | None = None
    round_s: Positive = 1.0
    topology: Topology = Topology()
