"""A world as a TOML file: two sites, a clogged link, a crash; then what a transfer sees of it."""

import numpy as np

from orrery import Node, World, run

TOML = """
title = "two sites, ten gigabits inside, one gigabit between"
groups = [
  { name = "node", count = 2, site = "paris" },
  { name = "node", count = 2, site = "tokyo" },
]

[network]
model = "flows"
bandwidth_Bps = 1.25e9
jitter = 0.0

[network.topology]
kind = "wan"
sites = ["paris", "tokyo"]
site_latency_s = [[0.0003, 0.110], [0.110, 0.0003]]
link_Bps = 0.125e9

[[faults]]
kind = "Clog"
node = 2
at_s = 1.0
until_s = 3.0
fraction = 0.02
"""


class Sender(Node):
    """Node 0 sends 10 MB inside the site, to the other one, and again while that is clogged."""

    async def main(self) -> None:
        array = np.zeros(10_000_000, dtype=np.uint8)
        for at_s, peer in ((0.0, 1), (0.5, 2), (1.0, 2)):
            if self.id == 0:
                await self.sleep(max(0.0, at_s - self.now))
                began_s = self.now
                await self.transfer(peer, array)
                self.emit(peer=peer, began_s=began_s, took_s=self.now - began_s)
            elif self.id == peer:
                await self.receive(0)


def main() -> None:
    world = World.from_toml(TOML)
    print(f"{world.title}: {world.size} nodes, hash {world.hash}")
    assert World.from_toml(world.to_toml()) == world  # it can be written down and read back
    for record in run(Sender(), world=world).records:
        peer, began_s, took_s = (record.values[k] for k in ("peer", "began_s", "took_s"))
        place = world.group_of(peer).site
        print(f"{began_s:.1f} s: 10 MB to {place} in {took_s:.3f} s, {10 / took_s:.0f} MB/s")


if __name__ == "__main__":
    main()
