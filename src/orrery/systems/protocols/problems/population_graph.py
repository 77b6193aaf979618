"""Exact check of a population protocol on one word: the whole configuration graph.

Under fairness a run ends in a bottom strongly connected component, so a word is decided iff from
every reachable configuration one can reach a *settled* one: a configuration from which all that is
reachable has one and the same consensus. Both halves are reachability, which NumPy does level by
level, so no components are needed until a counterexample is to be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from orrery.base.errors import UsageError
from orrery.check.graphs import components, path
from orrery.systems.protocols.problems.population_tables import Ints, Label, Protocol

Configuration = tuple[Label, ...]


class Lasso(msgspec.Struct, frozen=True, kw_only=True):
    """A fair run that never settles: a way in, and a ring that can go on for ever.

    `says` lists the outputs along the ring (None: the agents differ). A ring of one configuration
    is a run that stands still without a consensus, or with the wrong one.
    """

    prefix: list[Configuration]
    ring: list[Configuration]
    says: list[bool | None]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one word.

    `answer`: "yes" or "no" (every fair run settles to it), "split" (fair runs settle to both),
    "unstable" (a fair run never settles; see `lasso`) or "undecided" (over the budget).
    """

    word: str
    answer: str
    configurations: int
    lasso: Lasso | None = None


class Graph:
    """All configurations that a word can reach, as packed integers, with their steps.

    O(configurations x pairs) time; `complete` is False where the budget ended the search.
    """

    def __init__(self, protocol: Protocol, start: Ints, most: int) -> None:
        self.protocol, self.n = protocol, len(start)
        self.bits = 62 // self.n
        if self.bits < 1:
            raise UsageError(f"{self.n} agents are too many to explore; give at most 62")
        # States get numbers of this exploration, which are smaller than the protocol's own.
        self.local = np.full(0, -1, dtype=np.int64)
        self.known: list[int] = []
        self.me, self.other = _pairs(protocol, self.n)
        self.codes, self.src, self.dst, self.complete = self._search(start, most)

    def _number(self, states: Ints) -> Ints:
        """The numbers that states have in this exploration."""
        if len(self.local) < len(self.protocol.labels):
            more = np.full(len(self.protocol.labels) - len(self.local), -1, dtype=np.int64)
            self.local = np.concatenate([self.local, more])
        numbers = self.local[states]
        if (numbers < 0).any():
            for state in np.unique(states[numbers < 0]).tolist():
                self.local[state] = len(self.known)
                self.known.append(state)
            if len(self.known) > 1 << self.bits:
                raise UsageError(
                    f"{self.protocol.name}: {len(self.known)} local states on {self.n} agents do "
                    "not fit in 62 bits; give a shorter word or a smaller formula"
                )
            numbers = self.local[states]
        return numbers

    def _search(self, start: Ints, most: int) -> tuple[Ints, Ints, Ints, bool]:
        shifts = np.arange(self.n) * self.bits
        codes = np.array([(self._number(start) << shifts).sum()], dtype=np.int64)
        self.first = int(codes[0])
        front = codes
        src: list[Ints] = []
        dst: list[Ints] = []
        complete = True
        while len(front):
            if len(codes) > most:
                complete = False
                break
            made, came = self._steps(front)
            src.append(came)
            dst.append(made)
            fresh = np.unique(made)
            place = np.searchsorted(codes, fresh)
            place[place == len(codes)] = 0
            front = fresh[codes[place] != fresh]
            codes = np.sort(np.concatenate([codes, front]), kind="stable")
        joined = [np.concatenate(each) if each else codes[:0] for each in (src, dst)]
        if not complete:
            return codes, codes[:0], codes[:0], False
        return codes, *(np.searchsorted(codes, each) for each in joined), True

    def _steps(self, front: Ints) -> tuple[Ints, Ints]:
        """Every step from these configurations that changes something: (to, from)."""
        mask = (1 << self.bits) - 1
        known = np.array(self.known, dtype=np.int64)
        at_me, at_other = self.me * self.bits, self.other * self.bits
        wide = front[:, None]
        p, q = (wide >> at_me) & mask, (wide >> at_other) & mask
        side = np.broadcast_to((self.other > self.me).astype(np.int64), p.shape)
        old_p, old_q = known[p], known[q]
        u, v = self.protocol.meet(side, old_p, old_q)
        moved = (u != old_p) | (v != old_q)
        new_p, new_q = self._number(u[moved]), self._number(v[moved])
        came = np.broadcast_to(wide, p.shape)[moved]
        columns = np.broadcast_to(np.arange(len(self.me)), p.shape)[moved]
        made = came + ((new_p - p[moved]) << at_me[columns])
        made += (new_q - q[moved]) << at_other[columns]
        return made, came

    # -- asking

    def says(self) -> Ints:
        """How many agents say yes, in each configuration."""
        mask = (1 << self.bits) - 1
        known = np.array(self.known, dtype=np.int64)
        yes = np.zeros(len(self.codes), dtype=np.int64)
        said = self.protocol.says[known]
        for agent in range(self.n):
            yes += said[(self.codes >> (agent * self.bits)) & mask]
        return yes

    def configuration(self, place: int) -> Configuration:
        """One configuration by labels."""
        code, mask = int(self.codes[place]), (1 << self.bits) - 1
        return tuple(
            self.protocol.labels[self.known[(code >> (agent * self.bits)) & mask]]
            for agent in range(self.n)
        )

    def back(self, goal: np.ndarray) -> np.ndarray:
        """Which configurations can reach the goal (a mask). O(configurations + steps)."""
        if not hasattr(self, "_order"):
            self._order = np.argsort(self.dst, kind="stable")
            ends = np.searchsorted(self.dst[self._order], np.arange(len(self.codes) + 1))
            self._ends, self._came = ends, self.src[self._order]
        reached = goal.copy()
        front = np.flatnonzero(goal)
        while len(front):
            first, count = self._ends[front], self._ends[front + 1] - self._ends[front]
            total = int(count.sum())
            hop = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
            came = self._came[hop + np.arange(total)]
            front = np.unique(came[~reached[came]])
            reached[front] = True
        return reached

    def ahead(self, place: int) -> dict[int, list[int]]:
        """The part of the graph that one configuration reaches, as lists."""
        order = np.argsort(self.src, kind="stable")
        ends = np.searchsorted(self.src[order], np.arange(len(self.codes) + 1))
        to = self.dst[order]
        found: dict[int, list[int]] = {}
        todo = [place]
        while todo:
            at = todo.pop()
            if at not in found:
                found[at] = np.unique(to[ends[at] : ends[at + 1]]).tolist()
                todo += found[at]
        return found


def _pairs(protocol: Protocol, n: int) -> tuple[Ints, Ints]:
    """Who may meet whom; in an ordered two-way protocol the earlier agent is always the first."""
    line, by_place = protocol.order == "+1", bool(protocol.order) and not protocol.one_way
    pairs = [(i, j) for i in range(n) for j in range(i + 1 if by_place else 0, n)
             if i != j and (not line or abs(i - j) == 1)]  # fmt: skip
    both = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
    return both[:, 0], both[:, 1]


def decide(protocol: Protocol, word: str, *, most: int = 2_000_000) -> Decision:
    """What a protocol decides of one word, by its whole configuration graph.

    `most` bounds the configurations; beyond it the word is "undecided", never right.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"most={most!r}: give a whole number of configurations >= 1")
    graph = Graph(protocol, protocol.start(word), most)
    size = len(graph.codes)
    if not graph.complete:
        return Decision(word=word, answer="undecided", configurations=size)
    yes = graph.says()
    settled = {}
    for name, full in (("yes", graph.n), ("no", 0)):
        settled[name] = ~graph.back(yes != full)
        if graph.back(settled[name]).all():
            return Decision(word=word, answer=name, configurations=size)
    lost = ~graph.back(settled["yes"] | settled["no"])
    if not lost.any():
        return Decision(word=word, answer="split", configurations=size)
    lasso = _lasso(graph, int(np.flatnonzero(lost)[0]), yes)
    return Decision(word=word, answer="unstable", configurations=size, lasso=lasso)


def _lasso(graph: Graph, place: int, yes: Ints) -> Lasso:
    """A way from the start into a bottom component without consensus, and a ring within it."""
    ahead = graph.ahead(place)
    part = components(ahead)
    leaving = {part[at] for at, to in ahead.items() for each in to if part[each] != part[at]}
    bottom = {at for at in ahead if part[at] not in leaving}
    home = min(bottom)
    members = {at for at in bottom if part[at] == part[home]}
    # The ring passes through two different outputs where the component has them.
    said = {at: graph.n * (yes[at] == graph.n) if yes[at] in (0, graph.n) else -1 for at in members}
    other = min((at for at in members if said[at] != said[home]), default=home)
    inside = {at: [to for to in ahead[at] if to in members] for at in members}
    start = int(np.searchsorted(graph.codes, graph.first))
    way = path(graph.ahead(start), start, home) or [home]
    there = path(inside, home, other) or [home]
    again = path(inside, other, home) or [home]
    if home == other:
        around = [each for each in inside[home] if each != home][:1]
        again = [home, *(path(inside, around[0], home) or [])] if around else [home]
        there = [home]
    ring = [*there, *again[1:]]
    if len(ring) > 1:
        ring.pop()  # it closes on its first configuration
    words: list[bool | None] = [
        True if yes[at] == graph.n else False if yes[at] == 0 else None for at in ring
    ]
    return Lasso(prefix=[graph.configuration(at) for at in way],
                 ring=[graph.configuration(at) for at in ring], says=words)  # fmt: skip


def decides(
    protocol: Protocol, words: Iterable[str], truth: Iterable[bool], *, most: int = 2_000_000
) -> tuple[Decision | None, int]:
    """The first word on which a protocol is not right (None: all are), and the words looked at."""
    count = 0
    for word, right in zip(words, truth, strict=True):
        found = decide(protocol, word, most=most)
        count += 1
        if found.answer != ("yes" if right else "no"):
            return found, count
    return None, count


def stays(protocol: Protocol, states: Ints, most: int) -> bool:
    """Whether all that is reachable has the consensus of these states; False if over `most`."""
    want = protocol.consensus(states)
    me, other = _pairs(protocol, len(states))
    side = (other > me).astype(np.int64)
    seen = {states.tobytes()}
    todo = deque([states])
    while todo:
        now = todo.popleft()
        p, q = now[me], now[other]
        u, v = protocol.meet(side, p, q)
        for k in np.flatnonzero((u != p) | (v != q)).tolist():
            after = now.copy()
            after[me[k]], after[other[k]] = u[k], v[k]
            mark = after.tobytes()
            if mark in seen:
                continue
            if protocol.consensus(after) != want or len(seen) >= most:
                return False
            seen.add(mark)
            todo.append(after)
    return True


def well_specified(protocol: Protocol) -> bool:
    """Refuses: whether a protocol settles on words of *all* lengths is not ours to claim."""
    paper = '"Population Protocols over Ordered Agents" (2026)'
    reasons = {
        "PP[<]": f"the always-stabilises problem is undecidable for PP[<] ({paper})",
        "IO-PP[+1]": f"the always-stabilises problem is undecidable for IO-PP[+1] ({paper})",
        "PP[+1]": f"PP[+1] contains IO-PP[+1], where the problem is undecidable ({paper})",
        "IO-PP[<]": f"for IO-PP[<] the problem is only conditionally decidable ({paper})",
    }
    why = reasons.get(
        protocol.kind,
        "for unordered protocols it is decidable but as hard as Petri net reachability "
        "(Esparza, Ganty, Leroux, Majumdar 2017), which is not built here",
    )
    raise UsageError(
        f"{protocol.name}: no verdict for all lengths: {why}; ask decide(protocol, word) for one "
        "word, or decides(protocol, words, truth) for all words up to a length"
    )
