"""Ready ways to make a world: `World.lan(5)`, `World.wan(...)`, `World.fat_tree(4)` and so on.

All of them take, beside their own arguments, any field of the network (`drop=0.1`), any field of
the world (`clocks=Clocks(skew_s=0.01)`), and `role` and `machine` for their one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from orrery.base.errors import PlatformLacks, WorldError, did_you_mean
from orrery.world import cities
from orrery.world.network import Edge, Network, Topology
from orrery.world.spec import Spec, brief, build, field_names

KM_PER_S_IN_FIBRE = 200_000.0  # two thirds of the speed of light: the refractive index is near 1.5


class Makers(Spec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constructors of `World`."""

    @classmethod
    def lan(cls, n: int | Mapping[str, int], *, latency_s: float = 0.0005, jitter: float = 0.1,
            bandwidth_Bps: float = 1.25e9, drop: float = 0.0, **more: Any) -> Self:  # fmt: skip
        """n machines on one switch that never blocks; {"role": n, …} makes a group of each."""
        more |= {"latency_s": latency_s, "jitter": jitter}
        return cls._make(n, Topology(), more | {"bandwidth_Bps": bandwidth_Bps, "drop": drop})

    @classmethod
    def rounds(cls, n: int | Mapping[str, int], *, round_s: float = 1.0, **more: Any) -> Self:
        """n machines in synchronous rounds: what is sent in a round arrives in the next."""
        return cls._make(n, Topology(), {"model": "rounds", "round_s": round_s, **more})

    @classmethod
    def chosen(cls, n: int | Mapping[str, int], **more: Any) -> Self:
        """n machines whose next delivery is picked by the seed, a script or an explorer."""
        return cls._make(n, Topology(), {"model": "chosen", **more})

    @classmethod
    def star(cls, n: int, **more: Any) -> Self:
        """n machines, of which node 0 is the hub."""
        return cls._make(n, Topology(kind="star"), {"model": "flows", **more})

    @classmethod
    def ring(cls, n: int, **more: Any) -> Self:
        """n machines in a ring; messages go the short way round."""
        return cls._make(n, Topology(kind="ring"), {"model": "flows", **more})

    @classmethod
    def torus(cls, dims: Sequence[int], *, axis_latency_s: Sequence[float] = (),
              link_Bps: float | None = None, **more: Any) -> Self:  # fmt: skip
        """A torus of any number of axes, one machine at each place."""
        fields = {"kind": "torus", "dims": dims, "axis_latency_s": axis_latency_s}
        topology = build(Topology, fields | {"link_Bps": link_Bps}, "network.topology")
        return cls._make(math.prod(topology.dims), topology, {"model": "flows", **more})

    @classmethod
    def fat_tree(cls, k: int, *, n: int | None = None, link_Bps: float | None = None,
                 latency_s: float = 1e-6, **more: Any) -> Self:  # fmt: skip
        """A k-ary fat tree with k**3/4 machines, or the first n of them; latency is of one hop."""
        topology = build(
            Topology, {"kind": "fat_tree", "k": k, "link_Bps": link_Bps}, "network.topology"
        )
        size = (topology.k or 2) ** 3 // 4 if n is None else n
        return cls._make(size, topology, {"model": "flows", "latency_s": latency_s, **more})

    @classmethod
    def random(cls, n: int, degree: int = 4, seed: int = 0, **more: Any) -> Self:
        """A connected random graph with n * degree // 2 cables."""
        fields = {"kind": "random", "degree": degree, "seed": seed}
        topology = build(Topology, fields, "network.topology")
        return cls._make(n, topology, {"model": "flows", **more})

    @classmethod
    def islands(cls, n: int, *, island: int = 8, island_Bps: float = 450e9,
                island_latency_s: float | None = None, **more: Any) -> Self:  # fmt: skip
        """n nodes, each `island` neighbours joined by fast links, the rest through their NICs."""
        fields = {"kind": "islands", "island": island, "island_Bps": island_Bps}
        fields["island_latency_s"] = island_latency_s
        topology = build(Topology, fields, "network.topology")
        return cls._make(n, topology, {"model": "flows", **more})

    @classmethod
    def wan(cls, n: int | None = None, *, sites: Mapping[str, int] | None = None,
            link_Bps: float = 1.25e9, **more: Any) -> Self:  # fmt: skip
        """Machines in cities: n over the five usual ones, or as many in each as `sites` says.

        The latencies are those of `orrery.world.cities`: measured where a measurement is published,
        else from the distance. `link_Bps` is the trunk from one site to another.
        """
        if (n is None) == (sites is None):
            raise WorldError("wan", f"n = {n} and sites = {brief(sites)}", "give one of them")
        spread = cities.spread(n) if sites is None else dict(sites)
        if not spread:
            raise WorldError("sites", "{} is empty", "name at least one city")
        more = {"latency_s": 0.00025, "bandwidth_Bps": 1.25e9, "model": "flows", **more}
        inside_s = build(Network, {"latency_s": more["latency_s"]}, "network").latency_s
        fields = {
            "kind": "wan", "sites": tuple(spread), "link_Bps": link_Bps,
            "site_latency_s": cities.matrix(tuple(spread), inside_s),
        }  # fmt: skip
        topology = build(Topology, fields, "network.topology")
        return cls._make(0, topology, more, sites=spread)

    @classmethod
    def graph(cls, edges: Any, *, n: int | None = None, names: Sequence[str] = (),
              **more: Any) -> Self:  # fmt: skip
        """A graph of cables: pairs (a, b), tables, a NetworkX graph, or the path of an edge list.

        Pairs may carry a latency and a bandwidth: (a, b, latency_s, bandwidth_Bps). A NetworkX
        graph's edges may carry `latency_s` and `bandwidth_Bps`. An edge list has a pair a line.
        """
        if isinstance(edges, (str, Path)):
            edges = _read_edges(Path(edges))
        if hasattr(edges, "adjacency") and hasattr(edges, "nodes"):
            names = tuple(str(node) for node in edges.nodes)
            place = {node: i for i, node in enumerate(edges.nodes)}
            edges = [
                {"a": place[a], "b": place[b]}
                | {key: data[key] for key in ("latency_s", "bandwidth_Bps") if key in data}
                for a, b, data in edges.edges(data=True)
            ]
        made = tuple(_edge(item, i) for i, item in enumerate(_iterate(edges)))
        size = n or len(names) or max((max(e.a, e.b) for e in made), default=0) + 1
        fields = {"kind": "graph", "edges": made, "names": tuple(names)}
        if size == 1 and not names:
            fields["names"] = ("0",)
        topology = build(Topology, fields, "network.topology")
        return cls._make(size, topology, {"model": "flows", **more})

    @classmethod
    def topohub(cls, name: str, **more: Any) -> Self:
        """A real network of the TopoHub collection: `World.topohub("topozoo/Abilene")`.

        The latency of a cable is its length at 200,000 km/s.
        """
        try:
            import topohub
        except ImportError:
            raise PlatformLacks(
                "World.topohub needs the collection: pip install 'orrery[topologies]'"
            ) from None
        try:
            data = topohub.get(name)
        except (KeyError, OSError, ValueError, AttributeError, TypeError):
            fix = 'give a name such as "topozoo/Abilene"'
            raise WorldError("topohub", f"there is no topology {brief(name)}", fix) from None
        place = {node["id"]: i for i, node in enumerate(data["nodes"])}
        cables: dict[tuple[int, int], Edge] = {}
        for item in data.get("edges", data.get("links", ())):
            a, b = sorted((place[item["source"]], place[item["target"]]))
            if a != b:
                latency_s = float(item.get("dist", 0.0)) / KM_PER_S_IN_FIBRE
                cables.setdefault((a, b), Edge(a=a, b=b, latency_s=latency_s))
        names = tuple(str(node.get("name", node["id"])) for node in data["nodes"])
        return cls.graph(tuple(cables.values()), names=names, **{"title": name, **more})

    # -- shared

    @classmethod
    def _make(cls, n: int | Mapping[str, int], topology: Topology, more: Mapping[str, Any], *,
              sites: Mapping[str, int] | None = None) -> Self:  # fmt: skip
        own = [name for name in field_names(Network) if name != "topology"]
        network: dict[str, Any] = {"topology": topology}
        world: dict[str, Any] = {}
        group: dict[str, Any] = {"name": "node", "machine": "server"}
        for key, value in more.items():
            if key in own:
                network[key] = value
            elif key == "role" or key == "machine":
                group["name" if key == "role" else key] = value
            elif key in field_names(cls) and key not in ("groups", "network"):
                world[key] = value
            else:
                known = [*own, *field_names(cls), "role", "machine"]
                raise WorldError(key, "unknown option", did_you_mean(key, known))
        if isinstance(group["machine"], Spec):
            world["machines"] = {**world.get("machines", {}), "custom": group["machine"]}
            group["machine"] = "custom"
        if isinstance(n, Mapping):
            groups = [{**group, "name": role, "count": count} for role, count in n.items()]
        else:
            groups = [{**group, "count": n}]
        if sites is not None:
            groups = [{**group, "count": count, "site": site} for site, count in sites.items()]
        made = build(Network, network, "network")
        return build(cls, {"groups": groups, "network": made, **world}, "")

    def scale(self, n: int) -> Self:
        """The same world with n nodes, shared out over the groups in proportion.

        A torus of several axes and a graph have a size of their own and are refused.
        """
        data: dict[str, Any] = self.to_data()  # type: ignore[attr-defined]
        topology = data["network"]["topology"]
        old = sum(group["count"] for group in data["groups"])
        if isinstance(n, bool) or not isinstance(n, int) or n < len(data["groups"]):
            least = len(data["groups"])
            raise WorldError("scale", f"{brief(n)} nodes", f"give a whole number from {least} up")
        if topology["kind"] in ("torus", "graph") and n != old:
            fix = "make a new one of the size that you want"
            raise WorldError("scale", f"a {topology['kind']} has a size of its own", fix)
        spare = n - len(data["groups"])
        shares = [spare * group["count"] / old for group in data["groups"]]
        counts = [1 + int(share) for share in shares]
        by_rest = sorted(range(len(shares)), key=lambda i: (int(shares[i]) - shares[i], i))
        for i in by_rest[: n - sum(counts)]:
            counts[i] += 1
        for group, count in zip(data["groups"], counts, strict=True):
            group["count"] = count
        scaled: Self = type(self).from_data(data)  # type: ignore[attr-defined]
        return scaled


def _iterate(edges: Any) -> Iterable[Any]:
    if isinstance(edges, Iterable) and not isinstance(edges, Mapping):
        return edges
    raise WorldError("edges", f"{brief(edges)} is refused", "give pairs of node numbers")


def _edge(item: Any, i: int) -> Edge:
    path = f"network.topology.edges.{i}"
    if isinstance(item, Edge):
        return item
    if isinstance(item, (tuple, list)) and 2 <= len(item) <= 4:
        item = dict(zip(("a", "b", "latency_s", "bandwidth_Bps"), item, strict=False))
    return build(Edge, item, path)


def _read_edges(path: Path) -> list[list[Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as failure:
        raise WorldError(str(path), f"cannot be read: {failure}", "check the path") from None
    found: list[list[Any]] = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].replace(",", " ").split()
        try:
            if words:
                found.append([int(word) for word in words[:2]] + [float(w) for w in words[2:]])
        except ValueError:
            fix = "give two node numbers, then perhaps latency_s and bandwidth_Bps"
            raise WorldError(f"{path}:{number}", f"{brief(line)} is refused", fix) from None
    return found
