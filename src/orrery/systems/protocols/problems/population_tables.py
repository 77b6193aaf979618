"""Population protocols as tables: local states, what a meeting does, what an agent would say.

A meeting is an ordered pair (me, other): `me` begins it. In an ordered population the rule also
knows on which side the other stands. Tables are filled when a pair of states first meets, because
most pairs of a compiled protocol never do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orrery.base.errors import UsageError

Ints = npt.NDArray[np.int64]
Label = tuple[Any, ...]
# rule(side, me, other) -> (me, other); side is EARLIER or LATER: where the other stands.
Rule = Callable[[int, Label, Label], tuple[Label, Label]]

EARLIER, LATER = 0, 1
ORDERS = ("", "<", "+1")
# Beyond this the tables would not fit in memory (4 arrays of 4 bytes for each pair of states).
MOST_STATES = 4096


class Protocol:
    """A population protocol: a rule over labels, kept as integer tables that grow as needed.

    `order` is "" (anonymous), "<" (the rule may ask who stands first) or "+1" (only neighbours
    meet). `one_way` promises that only `me` changes: immediate observation; it is checked.
    """

    def __init__(
        self,
        *,
        name: str,
        initial: Mapping[str, Label],
        rule: Rule,
        output: Callable[[Label], bool],
        order: str = "<",
        one_way: bool = True,
    ) -> None:
        if order not in ORDERS:
            raise UsageError(f"order={order!r}: give one of {', '.join(map(repr, ORDERS))}")
        if not initial:
            raise UsageError(f"{name}: the alphabet is empty; give each letter its first state")
        self.name, self.order, self.one_way = name, order, one_way
        self.rule, self.output = rule, output
        self.labels: list[Label] = []
        self.index: dict[Hashable, int] = {}
        self.says: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.tables = np.full((2, 2, 0, 0), -1, dtype=np.int32)
        self.memo: dict[tuple[bool, int, int], tuple[int, int]] = {}
        self.initial = {letter: self.number(label) for letter, label in initial.items()}

    @property
    def alphabet(self) -> str:
        """The letters, in order."""
        return "".join(self.initial)

    @property
    def kind(self) -> str:
        """The class of the protocol, as papers write it: IO-PP[<], PP[+1], PP …"""
        return ("IO-" if self.one_way else "") + "PP" + (f"[{self.order}]" if self.order else "")

    def number(self, label: Label) -> int:
        """The number of a local state; a new one is entered."""
        found = self.index.get(label)
        if found is not None:
            return found
        size = len(self.labels)
        if size >= MOST_STATES:
            raise UsageError(
                f"{self.name}: more than {MOST_STATES} local states; use a smaller formula"
            )
        self.index[label] = size
        self.labels.append(label)
        if size >= len(self.says):
            room = max(16, 2 * size)
            tables = np.full((2, 2, room, room), -1, dtype=np.int32)
            tables[:, :, :size, :size] = self.tables[:, :, :size, :size]
            self.tables = tables
            self.says = np.concatenate([self.says, np.zeros(room - len(self.says), dtype=bool)])
        self.says[size] = self.output(label)
        return size

    def start(self, word: str) -> Ints:
        """The first configuration of a word: agent i begins in the state of letter i."""
        check_word(word, self.alphabet)
        return np.array([self.initial[letter] for letter in word], dtype=np.int64)

    def meet(self, side: Any, me: Ints, other: Ints) -> tuple[Ints, Ints]:
        """What many meetings make of both states, at once. O(meetings) after the first time."""
        fresh = self.tables[0, side, me, other]
        if (fresh < 0).any():
            where = fresh < 0
            sides = np.broadcast_to(np.asarray(side), fresh.shape)[where]
            triples = np.unique(np.stack([sides, me[where], other[where]]), axis=1)
            for s, p, q in triples.T.tolist():
                self._fill(s, p, q)
            fresh = self.tables[0, side, me, other]
        return fresh.astype(np.int64), self.tables[1, side, me, other].astype(np.int64)

    def one(self, side: int, me: Label, other: Label) -> tuple[Label, Label]:
        """One meeting, by labels: what a node does."""
        return self.rule(side, me, other)

    def _fill(self, side: int, p: int, q: int) -> None:
        made, told = self.rule(side, self.labels[p], self.labels[q])
        if self.one_way and told != self.labels[q]:
            raise UsageError(f"{self.name}: a one-way rule changed the agent that was observed")
        numbers = self.number(made), self.number(told)  # may replace the tables by larger ones
        self.tables[0, side, p, q], self.tables[1, side, p, q] = numbers

    def silent(self, states: Ints) -> bool:
        """Whether no meeting can change anything: an exact proof of stability. O(n + kinds^2).

        Two kinds of states can meet with the other earlier iff the first place of the one comes
        before the last place of the other, so positions need not be paired.
        """
        if self.order == "+1":
            return self._silent_line(states)
        kinds, first = np.unique(states, return_index=True)
        last = len(states) - 1 - np.unique(states[::-1], return_index=True)[1]
        me, other = (each.ravel() for each in np.meshgrid(kinds, kinds, indexing="ij"))
        i, j = (each.ravel() for each in np.indices((len(kinds), len(kinds))))
        sides = ((LATER, last[j] > first[i]), (EARLIER, first[j] < last[i]))
        for side, possible in sides[:1] if self.order and not self.one_way else sides:
            p, q = me[possible], other[possible]
            u, v = self.meet(side, p, q)
            if (u != p).any() or (v != q).any():
                return False
        return True

    def _silent_line(self, states: Ints) -> bool:
        left, right = states[:-1], states[1:]
        both = ((LATER, left, right), (EARLIER, right, left))
        for side, p, q in both if self.one_way else both[:1]:
            u, v = self.meet(side, p, q)
            if (u != p).any() or (v != q).any():
                return False
        return True

    def consensus(self, states: Ints) -> bool | None:
        """What all agents say, or None where they differ."""
        said = self.says[states]
        return bool(said[0]) if (said == said[0]).all() else None


def check_word(word: Any, alphabet: Sequence[str]) -> None:
    """Refuse a word that no population can hold."""
    if not isinstance(word, str) or not word:
        raise UsageError(f"word={word!r}: give at least one letter of {''.join(alphabet)!r}")
    for place, letter in enumerate(word):
        if letter not in alphabet:
            fix = f"the alphabet is {''.join(alphabet)!r}"
            raise UsageError(f"word: letter {letter!r} at place {place} is unknown; {fix}")
