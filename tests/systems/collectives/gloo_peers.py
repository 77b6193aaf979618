"""Gloo under kills: `python gloo_peers.py PEERS ITEMS OPS WAIT_S KILL_S…` prints one JSON line.

Imports torch once, forks the peers, kills one at each time given, and waits at most WAIT_S. A peer
that ends by itself says how many reductions it finished; one that hangs is ended at last.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import sys
import time


def peer(rank: int, size: int, port: int, items: int, ops: int, wait_s: float, pipe: int) -> None:
    """One rank: reduces until it is done or an error stops it."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    done = 0
    said = "finished"
    try:
        limit = datetime.timedelta(seconds=wait_s)
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=limit)
        for _ in range(ops):
            dist.all_reduce(torch.ones(items))
            done += 1
            time.sleep(0.05)
    except RuntimeError as error:
        said = f"aborted: {str(error)[:80]}"
    os.write(pipe, json.dumps({"rank": rank, "done": done, "said": said}).encode() + b"\n")
    os._exit(0)


def main() -> None:
    size, items, ops = (int(word) for word in sys.argv[1:4])
    wait_s = float(sys.argv[4])
    kills_s = [float(word) for word in sys.argv[5:]]
    import torch

    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    read, write = os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            peer(rank, size, port, items, ops, wait_s, write)
        pids.append(pid)
    began, left, killed, hung = time.monotonic(), dict(enumerate(pids)), [], []
    due = list(enumerate(kills_s))
    while left:
        now = time.monotonic() - began
        if due and now >= due[0][1]:
            rank = size - 1 - due.pop(0)[0]
            if rank in left:  # else it ended before its turn came
                killed.append(rank)
                os.kill(left[rank], signal.SIGKILL)
        if now > wait_s + max(kills_s, default=0.0) + 5.0:
            hung = sorted(left)
            for pid in left.values():
                os.kill(pid, signal.SIGKILL)
        for rank, pid in list(left.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del left[rank]
        time.sleep(0.02)
    os.close(write)
    with os.fdopen(read) as lines:
        peers = [json.loads(line) for line in lines]
    print(json.dumps({
        "killed": killed, "hung": [rank for rank in hung if rank not in killed],
        "peers": sorted(peers, key=lambda told: told["rank"]),
        "seconds": time.monotonic() - began,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
