"""Runs of a population under a random or an adversarial fair scheduler, for a million agents.

The random scheduler draws one ordered pair after the other. Meetings of different agents commute,
so a batch of pairs is played in layers: in each layer all pairs that are the next one for both of
their agents. The result is exactly that of playing the pairs one by one, and each layer is a few
NumPy calls.
"""

from __future__ import annotations

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.base.rand import Stream, block
from orrery.systems.protocols.problems.population_graph import stays
from orrery.systems.protocols.problems.population_tables import EARLIER, LATER, Ints, Protocol

SCHEDULERS = ("random", "biased")
# How many configurations may be explored to prove that a consensus which never rests will last.
PROOF = 2_000
MOST_AGENTS = 20_000_000
# Below this many agents a plain loop is faster than layers of arrays.
FEW = 2_000


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    `answer` is "yes" or "no" when the last configuration was proved stable, else "undecided".
    `interactions` were played; `settled` is the number after which the outputs last changed.
    """

    answer: str
    interactions: int
    settled: int
    agents: int
    states: Ints

    @property
    def parallel_time(self) -> float:
        """Interactions to the last change of an output, for each agent."""
        return self.settled / self.agents


def pairs_of(words: Ints, n: int, order: str) -> tuple[Ints, Ints]:
    """Ordered pairs of two different agents (neighbours, for +1) from random 64-bit words."""
    high = (words >> np.uint64(32)).astype(np.uint64)
    low = words & np.uint64(0xFFFFFFFF)
    if order == "+1":
        left = ((high * np.uint64(n - 1)) >> np.uint64(32)).astype(np.int64)
        swap = (low >> np.uint64(31)).astype(np.int64)
        return left + swap, left + 1 - swap
    me = ((high * np.uint64(n)) >> np.uint64(32)).astype(np.int64)
    other = ((low * np.uint64(n - 1)) >> np.uint64(32)).astype(np.int64)
    return me, other + (other >= me)


def play(protocol: Protocol, states: Ints, me: Ints, other: Ints) -> int:
    """Play these meetings in this order, in place; gives how many it took to the last new output.

    Equal to a loop over the pairs, in O(pairs x layers); with n / 4 pairs about ten layers.
    """
    if len(states) < FEW:
        return _play_few(protocol, states, me, other)
    at = np.arange(len(me), dtype=np.int32)
    next_of = np.empty(len(states), dtype=np.int32)
    last = 0
    while len(at):
        both = np.empty(2 * len(at), dtype=np.int64)
        both[0::2], both[1::2] = me, other
        # Assigned backwards, so that the first pair of each agent is what stays.
        next_of[both[::-1]] = np.repeat(at, 2)[::-1]
        ready = (next_of[me] == at) & (next_of[other] == at)
        u, v = me[ready], other[ready]
        p, q = states[u], states[v]
        fresh, told = protocol.meet((v > u).astype(np.int64), p, q)
        says = protocol.says
        states[u] = fresh
        turned = says[fresh] != says[p]
        if not protocol.one_way:
            states[v] = told
            turned |= says[told] != says[q]
        if turned.any():
            last = max(last, int(at[ready][turned].max()) + 1)
        rest = ~ready
        me, other, at = me[rest], other[rest], at[rest]
    return last


def _play_few(protocol: Protocol, states: Ints, me: Ints, other: Ints) -> int:
    """The same for few agents, where arrays are slower than a loop over a memo of the table."""
    now, memo, says = states.tolist(), protocol.memo, protocol.says
    last = 0
    for number, (u, v) in enumerate(zip(me.tolist(), other.tolist(), strict=True)):
        key = (v > u, now[u], now[v])
        made = memo.get(key)
        if made is None:
            fresh, told = protocol.meet(*(np.array([each], dtype=np.int64) for each in key))
            made = memo[key] = (int(fresh[0]), int(told[0]))
            says = protocol.says
        if made != key[1:]:
            if says[made[0]] != says[key[1]] or says[made[1]] != says[key[2]]:
                last = number + 1
            now[u], now[v] = made
    states[:] = now
    return last


def play_one_by_one(protocol: Protocol, states: Ints, me: Ints, other: Ints) -> None:
    """The plain loop that `play` must equal; in place."""
    for u, v in zip(me.tolist(), other.tolist(), strict=True):
        side = LATER if v > u else EARLIER
        labels = protocol.labels
        made, told = protocol.one(side, labels[states[u]], labels[states[v]])
        states[u], states[v] = protocol.number(made), protocol.number(told)


def simulate(
    protocol: Protocol,
    word: str | Ints,
    *,
    seed: int = 0,
    budget: int = 10_000_000,
    scheduler: str = "random",
) -> Course:
    """Run a word until its consensus is proved to last, or the budget of interactions is spent.

    The proof is exact: either no meeting can change anything any more, or everything that can
    still be reached (up to 2,000 configurations) has the same consensus. "biased" is an adversary
    that stays fair: for half of the time it lets only one random half of the agents meet, for
    example to keep a stale witness away from those that it misled.
    """
    if scheduler not in SCHEDULERS:
        raise UsageError(f"scheduler={scheduler!r}: give one of {', '.join(SCHEDULERS)}")
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise UsageError(f"budget={budget!r}: give a whole number of interactions >= 1")
    states = protocol.start(word) if isinstance(word, str) else np.array(word, dtype=np.int64)
    n = len(states)
    if not 1 <= n <= MOST_AGENTS:
        raise UsageError(f"{n} agents: give 1 to {MOST_AGENTS:,}")
    key = Stream(seed, "population", scheduler).key
    played = settled = drawn = 0
    size = max(16, n // 4) if n >= FEW else 4 * n
    look = 0  # proofs are tried at growing distances, so that they cost a share of the run
    while True:
        agreed = protocol.consensus(states)
        if agreed is not None and played >= look:
            if n == 1 or protocol.silent(states) or _lasts(protocol, states):
                return Course(answer="yes" if agreed else "no", interactions=played,
                              settled=settled, agents=n, states=states)  # fmt: skip
            look = played + max(size, played // 8)
        if played >= budget or n == 1:
            return Course(answer="undecided", interactions=played, settled=settled, agents=n,
                          states=states)  # fmt: skip
        count = min(size, budget - played)
        me, other = pairs_of(block(key, drawn, count), n, protocol.order)
        if protocol.order and not protocol.one_way:
            me, other = np.minimum(me, other), np.maximum(me, other)
        drawn += count
        if scheduler == "biased" and (drawn // size) % 2:
            me, other = _half(me, other, key, drawn, n)
        last = play(protocol, states, me, other)
        if last:
            settled = played + last
        played += count if scheduler == "random" else max(1, len(me))


def _half(me: Ints, other: Ints, key: int, drawn: int, n: int) -> tuple[Ints, Ints]:
    """Only the pairs inside one random half of the agents, another half each time."""
    group = (block(key ^ drawn, 0, n) & np.uint64(1)).astype(bool)
    kept = group[me] & group[other]
    return me[kept], other[kept]


def _lasts(protocol: Protocol, states: Ints) -> bool:
    """Whether all that is still reachable has today's consensus; False where that is too much."""
    if len(states) > 64:
        return False
    return stays(protocol, states, PROOF)
