"""The way to Ray: a local one of our own, started on the first need, or a cluster that is there."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from orrery.base.errors import PlatformLacks, UsageError
from orrery.engines.ray import boot, code
from orrery.engines.ray import watcher as watching
from orrery.engines.ray.watcher import TAG, end_all

OBJECT_STORE_B = 200 << 20
CONNECT_S = 5.0
# A Unix socket's path has at most 107 bytes, of which Ray takes about 65 below its folder.
_MOST_FOLDER = 40
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # The one switch by which Ray takes 127.0.0.1 for this machine, and then listens nowhere else.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_DEDUP_LOGS": "0",
}
_CLEARED_S = 15.0


class Cluster(NamedTuple):
    """A Ray that this process is connected to."""

    ray: Any
    ours: bool  # started by this process, and ended with it
    nodes: list[str]  # the ids of the living Ray nodes, in order
    here: bool  # whether all of them are on this machine, as far as their addresses tell
    host: str  # the address at which the others reach this process
    cpus: int


class _Local(NamedTuple):
    """What must be put back when our local Ray ends."""

    pid: int
    folder: str
    watcher: subprocess.Popen[bytes]
    before: dict[str, str | None]
    switch: bool | None


_local: _Local | None = None
_uploaded: dict[tuple[str, ...], dict[str, Any]] = {}
_connected_pid = 0


def need_ray() -> Any:
    """The ray module, or an error that says how to get it."""
    if code.is_bringing():
        raise UsageError(
            "a script that is loaded by a Ray worker began a run of its own; put the call under "
            'if __name__ == "__main__":'
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as failure:
        raise PlatformLacks(
            f'Ray is not here ({failure}); pip install "orrery[ray]", or use engine="processes"'
        ) from None


def connect(address: str | None = None, cpus: int | None = None) -> Cluster:
    """The Ray to work on: the one at `address` or RAY_ADDRESS, the one in use here, or a new one.

    `address` is "host:port", "auto" (a cluster of this machine) or "local" (one of our own).
    """
    global _connected_pid
    ray = need_ray()
    known = ray.is_initialized()
    if known and _connected_pid not in (0, os.getpid()):
        raise UsageError(
            "this process was forked from one that uses Ray; start a fresh one (a script, spawn)"
        )
    asked = (address or "").strip()
    if known and not _is_worker(ray) and not _is_at(ray, asked):
        raise UsageError(
            f"address {asked!r}: this process uses another Ray already; call "
            "orrery.engines.ray.shutdown() first, or start a fresh process"
        )
    if not known:
        wanted = asked or os.environ.get("RAY_ADDRESS", "").strip()
        _mute(ray)
        if wanted in ("", "local"):
            _start(ray, cpus)
        else:
            _join(ray, wanted)
    _connected_pid = os.getpid()
    ray.cloudpickle.register_pickle_by_value(boot)
    return _describe(ray)


def _is_worker(ray: Any) -> bool:
    return bool(ray.is_initialized() and ray._private.worker.global_worker.mode == 1)


def _is_at(ray: Any, asked: str) -> bool:
    """Whether the Ray in use is the one that is asked for."""
    if asked in ("", "auto"):
        return True
    if asked == "local":
        return _local is not None
    host, _, port = asked.rpartition(":")
    there, _, its_port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return port == its_port and (host == there or host in ("127.0.0.1", "localhost", "[::1]"))


def _mute(ray: Any) -> None:
    """Keep what Ray says off stdout, which is for results; deaths are told by whoever waits.

    Only where we make the connection: a user who made it wants to hear Ray as ever.
    """
    worker = ray._private.worker
    if not hasattr(worker, "print_to_stdstream") or hasattr(worker, "_orrery_talk"):
        return

    def talk(data: Any, *words: Any, **options: Any) -> None:
        for line in data.get("lines", ()):
            if "worker died or was killed" not in line:
                print(f"ray: {line}", file=sys.stderr)

    worker._orrery_talk = worker.print_to_stdstream
    worker.print_to_stdstream = talk


def _unmute(ray: Any) -> None:
    worker = ray._private.worker
    if hasattr(worker, "_orrery_talk"):
        worker.print_to_stdstream = worker._orrery_talk
        del worker._orrery_talk


def _describe(ray: Any) -> Cluster:
    living = [node for node in ray.nodes() if node["Alive"]]
    living.sort(key=lambda node: str(node["NodeID"]))
    mine = ray.util.get_node_ip_address()
    here = all(node["NodeManagerAddress"] == mine for node in living)
    cpus = int(sum(node["Resources"].get("CPU", 0) for node in living))
    return Cluster(
        ray, _local is not None, [node["NodeID"] for node in living], here,
        "127.0.0.1" if here else mine, max(cpus, 1),
    )  # fmt: skip


# -- a cluster that is there


def _join(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise UsageError(
            f"address {address!r}: a part cannot reach its actors through Ray Client; run on a "
            "machine of the cluster and give host:port of its head, e.g. 10.0.0.1:6379"
        )
    if address != "auto":
        _knock(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, OSError) as failure:
        why = str(failure).strip().partition("\n")[0]
        raise UsageError(f"address {address!r}: Ray cannot connect: {why}") from None


def _knock(address: str) -> None:
    """Ray tries a wrong address for minutes; a closed door can be told at once."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"address {address!r}: give host:port of the head, auto or local")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as failure:
        why = failure.strerror or str(failure)
        fix = "start one with `ray start --head`, or leave the address out for a local Ray"
        raise UsageError(f"address {address!r}: nobody answers there ({why}); {fix}") from None


# -- one of our own


def _start(ray: Any, cpus: int | None) -> None:
    """Start a small local Ray on the loopback, in a folder of its own."""
    global _local
    base = tempfile.gettempdir()
    base = base if len(base) <= _MOST_FOLDER - 20 else "/tmp"
    sweep_stale(base)
    folder = f"{base}/orrery-ray-{os.getuid()}-{os.getpid()}-{secrets.token_hex(2)}"
    os.mkdir(folder, 0o700)
    mine = {
        **_QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32), TAG: os.path.basename(folder),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", watching.__file__, folder], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    before = {name: os.environ.get(name) for name in (*mine, "RAY_ADDRESS")}
    os.environ.update(mine)
    os.environ.pop("RAY_ADDRESS", None)
    constants = ray._private.ray_constants
    switch = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    _local = _Local(os.getpid(), folder, watcher, before, switch)
    _reread(ray, False)
    atexit.register(shutdown)
    try:
        ray.init(
            address="local", num_cpus=cpus or max(os.cpu_count() or 1, 2), num_gpus=0,
            include_dashboard=False, object_store_memory=OBJECT_STORE_B, _temp_dir=folder,
            log_to_driver=False, configure_logging=False,
        )  # fmt: skip
    except Exception as failure:
        shutdown()
        why = str(failure).strip().partition("\n")[0]
        raise PlatformLacks(
            f"a local Ray does not start here: {type(failure).__name__}: {why}; free memory and "
            f"space in {base}, or give the address of a cluster"
        ) from None
    # These were for Ray; what this process starts later has its own ways and is not Ray's.
    _put_back({"PYTHONPATH": before["PYTHONPATH"], TAG: None})


def shutdown() -> None:
    """End the local Ray, if this process started one, and remove its files; else only let go."""
    global _local, _connected_pid
    ray: Any = sys.modules.get("ray")
    if ray is None or _connected_pid not in (0, os.getpid()):
        return  # a forked child: the Ray is its parent's
    if _local is not None and _local.pid != os.getpid():
        return
    if ray.is_initialized() and not _is_worker(ray) and (_local is not None or _connected_pid):
        ray.shutdown()
        _unmute(ray)
        _uploaded.clear()
    _connected_pid = 0
    if _local is None:
        return
    local, _local = _local, None
    atexit.unregister(shutdown)
    _put_back(local.before)
    _reread(ray, local.switch)
    _clear(local)


def _clear(local: _Local) -> None:
    """Let the watcher see the last of it."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        local.watcher.communicate(timeout=_CLEARED_S)
    if local.watcher.poll() is None:
        local.watcher.kill()
        local.watcher.wait()
    shutil.rmtree(local.folder, ignore_errors=True)


def note_folder(path: str, gone: bool = False) -> None:
    """Tell the watcher of a folder that it must remove if this process is killed."""
    if _local is not None and _local.pid == os.getpid() and _local.watcher.stdin is not None:
        with contextlib.suppress(OSError):
            _local.watcher.stdin.write(f"{'-' if gone else '+'}{path}\n".encode())
            _local.watcher.stdin.flush()


def _reread(ray: Any, switch: bool | None) -> None:
    """Ray reads the environment when it is imported, which may have been before we changed it."""
    if switch is not None:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = switch
    inside = importlib.import_module("ray._raylet")
    if hasattr(inside, "AuthenticationTokenLoader"):  # Rays before 2.52 know no tokens
        inside.Config.initialize("")
        inside.AuthenticationTokenLoader.instance().reset_cache()


def _put_back(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def sweep_stale(base: str) -> list[str]:
    """Clear up after local Rays whose owner was killed: most of their processes died with it."""
    removed = []
    for path in Path(base).glob(f"orrery-ray-{os.getuid()}-*-*"):
        owner = path.name.split("-")[3]
        if owner.isdigit() and not _alive(int(owner)):
            end_all(path.name)
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# -- things that both the engine and sweeps ask of a cluster


def environment(cluster: Cluster, classes: Any) -> dict[str, Any] | None:
    """What Ray must carry to machines that do not have our disk: the packages that are used."""
    if cluster.here:
        return None
    folders = tuple(code.packages(classes))
    if folders not in _uploaded:
        # Ray takes folders only when it connects, which was before we knew the part.
        upload = importlib.import_module("ray._private.runtime_env.py_modules")
        with tempfile.TemporaryDirectory(prefix="orrery-") as scratch:
            _uploaded[folders] = upload.upload_py_modules_if_needed(
                {"py_modules": list(folders)}, include_gitignore=True, scratch_dir=scratch
            )
    return _uploaded[folders]


def pinned(cluster: Cluster, place: int) -> tuple[str, Any]:
    """(the Ray node for the actor at this place, the strategy that puts it there)."""
    node = cluster.nodes[place % len(cluster.nodes)]
    if len(cluster.nodes) == 1:
        return node, "DEFAULT"
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return node, strategies.NodeAffinitySchedulingStrategy(node, soft=False)


@contextlib.contextmanager
def quiet_errors() -> Iterator[None]:
    """For the end of things: what Ray says then about what is gone already helps nobody."""
    with contextlib.suppress(Exception):
        yield
