"""Named worlds, ready to use: `worlds.h100_pod(8)`, or by text, `worlds.get("h100_pod:8")`.

Figures of machines come from the catalogue (`hardware.toml`), those of cities from `cities.py`; the
source of every other constant stands beside it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orrery.base.errors import WorldError, did_you_mean
from orrery.world import hardware
from orrery.world.network import Network, Topology
from orrery.world.spec import brief
from orrery.world.world import Group, World

LIGHT_KM_PER_S = 299_792.458
EARTH_RADIUS_KM = 6371.0

# NVIDIA aiconfigurator 0.12 (gb200.yaml) calls 5 µs typical of InfiniBand between racks.
INFINIBAND_S = 5e-6
# Inside an NVLink island: our assumption, between the hardware's hop and a collective's launch.
NVLINK_S = 2e-6
# One rail of 400 Gb/s NDR for each GPU (DGX H100 and H200), 200 Gb/s HDR for A100.
NDR_RAIL_BPS = 50e9
HDR_RAIL_BPS = 25e9
# One ICI link of TPU v4: 50 GB/s (Jouppi et al., ISCA 2023).
ICI_LINK_BPS = 50e9
# A laser link of Starlink: up to 100 Gb/s (SpaceX, 2023).
LASER_BPS = 12.5e9
# Loopback TCP on one machine: of this order on laptops; `orrery calibrate` measures yours.
LOOPBACK_S, LOOPBACK_BPS = 20e-6, 4e9
# One way; our assumptions for a good 5G or Wi-Fi access, a metropolitan ring, a nearby region.
ACCESS_S, METRO_S, BACKHAUL_S = 0.005, 0.001, 0.015


def lan(n: int = 5) -> World:
    """n servers on one switch: 0.5 ms, 10 Gb/s."""
    return World.lan(n, title=f"lan({n})")


def wan(n: int = 5) -> World:
    """n servers in five cities on four continents, with measured latencies."""
    return World.wan(n, title=f"wan({n})")


def laptop(n: int = 4) -> World:
    """n processes on one laptop, joined by loopback sockets."""
    more: dict[str, Any] = {}
    more |= {"latency_s": LOOPBACK_S, "bandwidth_Bps": LOOPBACK_BPS, "machine": "process"}
    whole = hardware.machine("laptop")
    share = max(min(n, whole.cores), 1) if isinstance(n, int) else 1
    process = whole.replace(
        cores=max(whole.cores // share, 1),
        cpu_flops=whole.cpu_flops / share,
        memory_B=whole.memory_B // share,
        memory_Bps=whole.memory_Bps / share,
        nic_Bps=LOOPBACK_BPS,
        idle_W=whole.idle_W / share,
        active_W=whole.active_W / share,
    )
    return World.lan(n, title=f"laptop({n})", machines={"process": process}, **more)


def h100_pod(nodes: int = 8, rank_per_gpu: bool = False) -> World:
    """DGX H100 nodes of 8 GPUs: NVLink inside, one 400 Gb/s rail a GPU between them."""
    return _pod("h100_pod", "dgx_h100", nodes, NDR_RAIL_BPS, rank_per_gpu)


def h200_pod(nodes: int = 8, rank_per_gpu: bool = False) -> World:
    """DGX H200 nodes of 8 GPUs: NVLink inside, one 400 Gb/s rail a GPU between them."""
    return _pod("h200_pod", "dgx_h200", nodes, NDR_RAIL_BPS, rank_per_gpu)


def b200_pod(nodes: int = 8, rank_per_gpu: bool = False) -> World:
    """DGX B200 nodes of 8 GPUs: NVLink inside, one 400 Gb/s rail a GPU between them."""
    return _pod("b200_pod", "dgx_b200", nodes, NDR_RAIL_BPS, rank_per_gpu)


def a100_pod(nodes: int = 8, rank_per_gpu: bool = False) -> World:
    """DGX A100 nodes of 8 80-GB GPUs: NVLink inside, one 200 Gb/s rail a GPU between them."""
    return _pod("a100_pod", "dgx_a100", nodes, HDR_RAIL_BPS, rank_per_gpu)


def tpu_v4_slice(x: int = 4, y: int = 4, z: int = 4) -> World:
    """A torus of TPU v4 chips, one node a chip, joined by ICI links."""
    host = hardware.machine("server")  # four chips share a host (Jouppi et al., 2023)
    chip = host.replace(
        accelerators=("TPU-v4",), cores=host.cores // 4, cpu_flops=host.cpu_flops / 4,
        memory_B=host.memory_B // 4, memory_Bps=host.memory_Bps / 4,
        idle_W=host.idle_W / 4, active_W=host.active_W / 4,
    )  # fmt: skip
    more: dict[str, Any] = {"latency_s": 1e-6, "bandwidth_Bps": ICI_LINK_BPS}
    title = f"tpu_v4_slice({x}, {y}, {z})"
    more |= {"machine": "chip", "machines": {"chip": chip}, "role": "chip"}
    return World.torus((x, y, z), title=title, **more)


def leo_shell(planes: int = 72, per_plane: int = 22, altitude_km: float = 550.0,
              inclination_deg: float = 53.0) -> World:  # fmt: skip
    """A shell of satellites with laser links to four neighbours; the default is Starlink's first.

    Node i is satellite i mod per_plane of plane i div per_plane. The link along a plane has its
    exact length; the one to the next plane, which shrinks away from the equator, its mean over an
    orbit. Planes are taken without a phase shift, so that the shell is a torus.
    """
    _whole("planes", planes)
    _whole("per_plane", per_plane)
    if not (isinstance(altitude_km, (int, float)) and 100 <= altitude_km <= 2000):
        raise WorldError("leo_shell.altitude_km", brief(altitude_km), "give 100 to 2000")
    if not (isinstance(inclination_deg, (int, float)) and 0 < inclination_deg <= 98):
        raise WorldError("leo_shell.inclination_deg", brief(inclination_deg), "give 1 to 98")
    radius_km = EARTH_RADIUS_KM + altitude_km
    along_km = 2 * radius_km * math.sin(math.pi / per_plane)
    across_km = _mean_across_km(radius_km, 2 * math.pi / planes, math.radians(inclination_deg))
    # To the nanosecond, so that no libm changes the world's hash.
    axis_latency_s = [round(km / LIGHT_KM_PER_S, 9) for km in (across_km, along_km)]
    return World.torus(
        (planes, per_plane), axis_latency_s=axis_latency_s, bandwidth_Bps=LASER_BPS,
        machine="satellite", role="satellite", title=f"leo_shell({planes}, {per_plane})",
    )  # fmt: skip


def edge_cloud(devices: int = 8, edges: int = 2, clouds: int = 1) -> World:
    """Devices behind wireless access, an edge box in each cell, and servers of a nearby cloud."""
    return _tiers("edge_cloud", devices, edges, clouds, cloud_machine="server")


def continuum(devices: int = 100, edges: int = 10, clouds: int = 4) -> World:
    """The whole continuum: many devices, edge boxes, and H100 machines in the cloud."""
    return _tiers("continuum", devices, edges, clouds, cloud_machine="dgx_h100")


_MAKERS: tuple[Callable[..., World], ...] = (
    lan, wan, laptop, h100_pod, h200_pod, b200_pod, a100_pod, tpu_v4_slice,
    leo_shell, edge_cloud, continuum,
)  # fmt: skip
MAKERS: dict[str, Callable[..., World]] = {make.__name__: make for make in _MAKERS}


def names() -> dict[str, str]:
    """The named worlds, each with its line of explanation."""
    return {name: (make.__doc__ or "").splitlines()[0] for name, make in MAKERS.items()}


def get(text: str) -> World:
    """A named world from `name`, `name:arg,arg` or `name:key=value`.

    >>> get("h100_pod:2").size
    2
    """
    name, _, rest = text.partition(":")
    if name not in MAKERS:
        raise WorldError("world", f"there is no world {brief(name)}", did_you_mean(name, MAKERS))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for word in rest.split(",") if rest.strip() else ():
        key, equals, value = word.partition("=")
        if equals:
            named[key.strip()] = _number(value, name)
        else:
            positional.append(_number(word, name))
    try:
        inspect.signature(MAKERS[name]).bind(*positional, **named)
    except TypeError as failure:
        takes = ", ".join(inspect.signature(MAKERS[name]).parameters)
        raise WorldError(f"world {text!r}", str(failure), f"{name} takes {takes}") from None
    return MAKERS[name](*positional, **named)


def find(text: str) -> World:
    """A world from the path of a TOML or JSON file, or from a name as in `get`."""
    path = Path(text)
    if path.suffix in (".toml", ".json") or path.is_file():
        return World.load(path)
    return get(text)


# -- shared


def _number(word: str, name: str) -> int | float | bool:
    word = word.strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    raise WorldError(f"world {name}", f"{brief(word)} is not a number", "write it as name:8,2")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise WorldError(name, f"{brief(value)} is refused", "give a whole number, 1 to 1,000,000")
    return value


def _pod(name: str, machine: str, nodes: int, rail_Bps: float, rank_per_gpu: bool) -> World:
    _whole("nodes", nodes)
    whole = hardware.machine(machine)
    gpus = len(whole.accelerators)
    if not rank_per_gpu:
        return World.lan(
            nodes, latency_s=INFINIBAND_S, bandwidth_Bps=rail_Bps * gpus, jitter=0.0,
            machine=machine, model="flows", title=f"{name}({nodes})",
        )  # fmt: skip
    rank = whole.replace(
        accelerators=whole.accelerators[:1], cores=whole.cores // gpus,
        cpu_flops=whole.cpu_flops / gpus, memory_B=whole.memory_B // gpus,
        memory_Bps=whole.memory_Bps / gpus, nic_Bps=rail_Bps, idle_W=whole.idle_W / gpus,
        active_W=whole.active_W / gpus,
        price_per_h=None if whole.price_per_h is None else whole.price_per_h / gpus,
    )  # fmt: skip
    return World.islands(
        nodes * gpus, island=gpus, island_Bps=whole.accelerators[0].link_Bps or rail_Bps,
        island_latency_s=NVLINK_S, latency_s=INFINIBAND_S, bandwidth_Bps=rail_Bps, jitter=0.0,
        machine="rank", machines={"rank": rank}, title=f"{name}({nodes}, rank_per_gpu)",
    )  # fmt: skip


def _mean_across_km(radius_km: float, turn: float, tilt: float) -> float:
    """The mean distance of two satellites at the same place of neighbouring planes."""
    steps, total = 360, 0.0
    for step in range(steps):
        u = 2 * math.pi * step / steps
        x, y = math.cos(u), math.sin(u) * math.cos(tilt)
        dx = x * math.cos(turn) - y * math.sin(turn) - x
        dy = x * math.sin(turn) + y * math.cos(turn) - y
        total += math.hypot(dx, dy)
    return radius_km * total / steps


def _tiers(name: str, devices: int, edges: int, clouds: int, *, cloud_machine: str) -> World:
    """Devices in cells with one edge box each, and a cloud; latencies add up along the tree."""
    for label, value in (("devices", devices), ("edges", edges), ("clouds", clouds)):
        _whole(f"{name}.{label}", value)
    if devices < edges:
        problem = f"{devices} for {edges} cells"
        raise WorldError(f"{name}.devices", problem, "give at least one device a cell")
    cells = [f"cell-{i}" for i in range(edges)]
    boxes = [f"edge-{i}" for i in range(edges)]
    sites = (*cells, *boxes, "cloud")
    each, rest = divmod(devices, edges)
    groups = [
        Group(name="device", count=each + (i < rest), machine="device", site=cell)
        for i, cell in enumerate(cells)
    ]
    groups += [Group(name="edge", count=1, machine="edge_box", site=box) for box in boxes]
    groups.append(Group(name="cloud", count=clouds, machine=cloud_machine, site="cloud"))

    def up_s(site: str) -> float:
        """From a site up to the metropolitan ring, where all branches meet."""
        if site == "cloud":
            return BACKHAUL_S
        return (METRO_S + ACCESS_S) if site.startswith("cell") else METRO_S

    def apart_s(a: str, b: str) -> float:
        if a == b:
            return {"cell": 2 * ACCESS_S}.get(a[:4], 0.00025)
        if a.split("-")[-1] == b.split("-")[-1]:  # a cell and its own edge box
            return ACCESS_S
        return up_s(a) + up_s(b)

    table = tuple(tuple(round(apart_s(a, b), 9) for b in sites) for a in sites)
    topology = Topology(kind="wan", sites=sites, site_latency_s=table, link_Bps=1.25e9)
    network = Network(model="flows", latency_s=0.00025, jitter=0.2, topology=topology)
    title = f"{name}({devices}, {edges}, {clouds})"
    return World(title=title, groups=tuple(groups), network=network)
