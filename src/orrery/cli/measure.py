"""Measures this machine: loopback, disk, processor, memory. Every figure comes with its interval.

Nothing here feeds a virtual run; the figures become a world only when the user loads them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from orrery.base.errors import PlatformLacks

LOOPBACK = "127.0.0.1"
WAIT_S = 20.0

# The other end of the loopback, in a process of its own, so that no interpreter lock is shared.
# "p" answers pings of one byte until the connection ends, "s" swallows bytes and says "." at the
# end of each round of the announced size.
PEER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
for _ in range(2):
    link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    mode = link.recv(1)
    if mode == b"p":
        while True:
            got = link.recv(1)
            if not got:
                break
            link.sendall(got)
    else:
        size = int.from_bytes(link.recv(8), "big")
        room = bytearray(1 << 20)
        while True:
            left = size
            while left:
                n = link.recv_into(room, min(left, len(room)))
                if not n:
                    sys.exit()
                left -= n
            link.sendall(b".")
"""


class Figure(NamedTuple):
    """A measured figure: the mean of n samples, its 95 % interval, and its unit."""

    name: str
    value: float
    lo: float
    hi: float
    unit: str
    n: int
    how: str

    def text(self) -> str:
        """As it stands in a file: value, interval, samples, method."""
        spread = f"[{self.lo:.3g}, {self.hi:.3g}]"
        return f"{self.name} = {self.value:.4g} {spread} {self.unit}, {self.n} samples: {self.how}"


def figure(name: str, unit: str, how: str, samples: list[float]) -> Figure:
    """The mean of samples with its 95 % interval; no figure here can be below zero."""
    from orrery.lab.stats import mean_interval

    found = mean_interval(samples)
    return Figure(name, found.mean, max(found.lo, 0.0), found.hi, unit, len(samples), how)


# -- loopback


@contextmanager
def _peer() -> Iterator[int]:
    """The port of a peer process, which is gone afterwards."""
    child = subprocess.Popen(
        [sys.executable, "-c", PEER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        line = child.stdout.readline() if child.stdout is not None else b""
        if not line.strip():
            raise PlatformLacks("no socket can be opened on the loopback; check the sandbox")
        yield int(line)
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def loopback(rounds: int, bulk_B: int) -> list[Figure]:
    """One-way latency, its jitter and the bandwidth of TCP between two processes here."""
    try:
        with _peer() as port:
            with socket.create_connection((LOOPBACK, port), WAIT_S) as link:
                latencies, jitters = _pings(link, rounds)
            with socket.create_connection((LOOPBACK, port), WAIT_S) as link:
                speeds = _bulk(link, bulk_B, rounds)
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise PlatformLacks(f"the loopback cannot be measured: {why}") from None
    return [
        figure("latency_s", "s", "half a TCP round trip of one byte, 5th centile", latencies),
        figure("jitter", "", "twice what the median is above that, as a share of it", jitters),
        figure("bandwidth_Bps", "B/s", f"{bulk_B >> 20} MiB over one TCP connection", speeds),
    ]


def _pings(link: socket.socket, batches: int, each: int = 200) -> tuple[list[float], list[float]]:
    """The latency and the jitter of each batch, as a world has them.

    A world adds a uniform time in [0, jitter * latency] to its latency, of which the median is
    half; so the least latency is the base, and twice the median's excess is the jitter.
    """
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(b"p")
    lows, jitters = [], []
    for batch in range(batches + 1):
        times = []
        for _ in range(each):
            began = time.perf_counter()
            link.sendall(b"x")
            link.recv(1)
            times.append((time.perf_counter() - began) / 2)
        times.sort()
        low, middle = times[each // 20], times[each // 2]
        if batch:  # the first one warms up
            lows.append(low)
            jitters.append(2 * (middle - low) / low)
    return lows, jitters


def _bulk(link: socket.socket, size_B: int, rounds: int) -> list[float]:
    link.sendall(b"s" + size_B.to_bytes(8, "big"))
    data = memoryview(bytes(1 << 20))
    speeds = []
    for each in range(rounds + 1):
        began = time.perf_counter()
        left = size_B
        while left:
            part = data[: min(left, len(data))]
            link.sendall(part)
            left -= len(part)
        link.recv(1)
        if each:
            speeds.append(size_B / (time.perf_counter() - began))
    return speeds


# -- disk


def disk(folder: Path, rounds: int, bulk_B: int) -> list[Figure]:
    """fsync of one page, and the speed of writing with a sync at the end."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".orrery-calibrate-") as place:
            syncs = [_sync_s(Path(place) / "page") for _ in range(max(rounds * 4, 8))]
            writes = [_write_Bps(Path(place) / "bulk", bulk_B) for _ in range(rounds)]
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise PlatformLacks(f"{folder}: the disk cannot be measured: {why}") from None
    return [
        figure("fsync_s", "s", f"append 4 KiB and fsync in {folder}", syncs),
        figure("write_Bps", "B/s", f"{bulk_B >> 20} MiB written and synced", writes),
    ]


def _sync_s(path: Path) -> float:
    with open(path, "ab", buffering=0) as file:
        file.write(bytes(4096))
        began = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def _write_Bps(path: Path, size_B: int) -> float:
    data = os.urandom(1 << 20)  # noise, so that a file system that compresses gains nothing
    began = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size_B >> 20):
            file.write(data)
        os.fsync(file.fileno())
    return size_B / (time.perf_counter() - began)


# -- processor and memory


def processor(rounds: int, side: int, copy_B: int) -> list[Figure]:
    """fp32 flop/s of one core in a matrix product; bytes a second of a copy (read and write).

    Measured in a process of its own, because NumPy's threads are fixed when it is imported.
    """
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join(path for path in sys.path if path)
    words = [sys.executable, "-m", "orrery.cli.measure", str(rounds), str(side), str(copy_B)]
    try:
        done = subprocess.run(
            words, env={**os.environ, **one, "PYTHONPATH": paths}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=300, check=True,
        )  # fmt: skip
        flops, moved = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as failure:
        raise PlatformLacks(f"the processor cannot be measured: {failure}") from None
    return [
        figure("core_flops", "flop/s", f"numpy fp32 {side}x{side} product on one core", flops),
        figure("memory_Bps", "B/s", f"copy of {copy_B >> 20} MiB by one core", moved),
    ]


def _work(rounds: int, side: int, copy_B: int) -> tuple[list[float], list[float]]:
    import numpy as np

    a = np.linspace(0.0, 1.0, side * side, dtype=np.float32).reshape(side, side)
    b = a.T.copy()
    out = np.empty_like(a)
    source, target = np.ones(copy_B // 8), np.empty(copy_B // 8)
    flops = _rates(lambda: np.matmul(a, b, out=out), 2.0 * side**3, rounds)
    moved = _rates(lambda: np.copyto(target, source), 2.0 * copy_B, rounds)
    return flops, moved


def _rates(work: Callable[[], object], amount: float, rounds: int) -> list[float]:
    work()
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        rates.append(amount / max(time.perf_counter() - began, 1e-9))
    return rates


def memory_B() -> int | None:
    """The memory of this machine, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


if __name__ == "__main__":
    print(json.dumps(_work(*map(int, sys.argv[1:4]))))
