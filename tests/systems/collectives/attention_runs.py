"""Worlds and runs that the tests of long attention share."""

from __future__ import annotations

import itertools

from orrery import World, run
from orrery.systems.collectives.problems.long_attention import LongAttention
from orrery.world.hardware import Machine

# One GPU a rank; links so slow that bytes decide, or so fast that flops do.
GPU = Machine(accelerators=("H100-SXM",))
SLOW_BPS, LATENCY_S = 1e9, 2e-6
# One layer of LLaMA2-7B on 4,096 rows a rank; timing only.
LLAMA = {"heads": 32, "head_dim": 128, "dtype": "bf16", "sized": True}


def mesh(n, link_Bps=SLOW_BPS):
    """n ranks with a full-duplex link of its own for each pair."""
    pairs = list(itertools.combinations(range(n), 2))
    return World.graph(pairs, n=n, machine=GPU, latency_s=LATENCY_S, bandwidth_Bps=link_Bps,
                       jitter=0.0)  # fmt: skip


def shared_port(n, port_Bps=SLOW_BPS):
    """n ranks behind one full-duplex port each, on a switch that never blocks."""
    return World.lan(n, machine=GPU, latency_s=LATENCY_S, bandwidth_Bps=port_Bps, jitter=0.0,
                     model="flows")  # fmt: skip


def play(part, world, **knobs):
    """A run without violations."""
    made = run(part, problem=LongAttention(**knobs), world=world)
    assert made.violations == []
    return made


def llama(part, world, **knobs):
    """The metrics of one layer of LLaMA2-7B, forwards, without a mask unless told otherwise."""
    knobs = {"tokens": 4096 * world.size, "causal": False, "backward": False, **LLAMA, **knobs}
    return play(part, world, **knobs).metrics


def real(part, n, **knobs):
    """The same on n operating-system processes."""
    world = World.lan(n)
    return run(part, problem=LongAttention(**knobs), world=world, engine="processes",
               nodes_per_process=1, until_s=60.0)  # fmt: skip


def sent(made, phase="forward", number=0):
    """Bytes by (source, destination) in one pass of one round."""
    return {
        (record.node, peer): size_B
        for record in made.records
        if record.values.get("round") == number
        for peer, size_B in record.values[phase]["sent"]
    }
