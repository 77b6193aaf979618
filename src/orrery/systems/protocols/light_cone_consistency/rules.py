"""The rules that a trace with views is held to, each with a witness of a few events."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

from orrery.systems.protocols.light_cone_consistency.cone import topological
from orrery.systems.protocols.light_cone_consistency.traces import Look, Trace, Witness


class Rules:
    """One trace, indexed: places in logs, dependencies, the longest look at each log."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.n = len(trace.writes)
        self.place = [{w: at for at, w in enumerate(log)} for log in trace.logs]
        self.seen_to = [0] * len(trace.logs)
        for look in trace.looks:
            self.seen_to[look.log] = max(self.seen_to[look.log], look.length)
        self.of_session: dict[int, list[int]] = {}
        self.before: list[int] = []  # the session's write before each
        for w, write in enumerate(trace.writes):
            line = self.of_session.setdefault(write.session, [])
            self.before.append(line[-1] if line else -1)
            line.append(w)
        self.by_session: dict[int, list[Look]] = {}
        self.by_log: dict[int, list[Look]] = {}
        for look in trace.looks:
            self.by_log.setdefault(look.log, []).append(look)
            self.by_session.setdefault(look.session, []).append(look)
        self.stale_s = 0.0
        self._reach: dict[tuple[int, int], list[int]] = {}

    def broken(self) -> dict[str, Witness]:
        """Every rule that fails, by name, with its witness."""
        rules: dict[str, Callable[[], Witness | None]] = {
            "own": self._own, "grow": self._grow, "session": partial(self._closed, "session"),
            "reads": partial(self._closed, "reads"), "shared": self._shared,
            "append": self._append, "one log": self._one_log, "real time": self._real_time,
            "settled": self._settled, "returns": self._returns,
        }  # fmt: skip
        for kind in ("session", "reads", "causality"):
            rules[f"refines {kind}"] = partial(self._refines, kind)
        found = {name: rule() for name, rule in rules.items()}
        return {name: witness for name, witness in found.items() if witness is not None}

    # -- saying what happened

    def _write(self, w: int) -> str:
        write = self.trace.writes[w]
        return f"write {w} to {write.key!r} by session {write.session}"

    def _link(self, d: int, w: int) -> tuple[str, ...]:
        """Write d, how write w came to depend on it, and write w."""
        session = self.trace.writes[w].session
        if self.trace.writes[d].session == session:
            return self._write(d), self._write(w)
        at = w
        while at >= 0 and d not in self.trace.writes[at].reads:
            at = self.before[at]
        how = f"session {session} reads write {d}" if at >= 0 else f"write {d} is in w's past"
        return self._write(d), how, self._write(w)

    def _look(self, look: Look) -> str:
        return f"session {look.session} sees {look.length} entries of log {look.log}"

    def _shown(self, log: int) -> list[int]:
        """The entries of a log that anybody saw, in the order in which they are shown."""
        seen = list(self.trace.logs[log][: self.seen_to[log]])
        return sorted(seen, key=self.trace.ranks.__getitem__) if self.trace.ranks else seen

    # -- closure

    def _closed(self, kind: str) -> Witness | None:
        """Every view holds what its writes depend on. Each log is read once."""
        for log, entries in enumerate(self.trace.logs):
            place = self.place[log]
            absent = len(entries)
            needs: list[tuple[int, int]] = []  # for each write the latest place it needs, and what
            for w, write in enumerate(self.trace.writes):
                before = self.before[w]
                if kind == "session":
                    needs.append((place.get(before, absent) if before >= 0 else -1, before))
                    continue
                # What a session read before an earlier write it had also read before this one.
                need = needs[before] if before >= 0 else (-1, -1)
                for d in write.reads:
                    need = max(need, (place.get(d, absent), d))
                needs.append(need)
            reach, worst = [], (-1, -1, -1)
            for w in entries[: self.seen_to[log]]:
                worst = max(worst, (needs[w][0], w, needs[w][1]))
                reach.append(worst)
            for look in self.by_log.get(log, ()):
                if look.length and reach[look.length - 1][0] >= look.length:
                    _, w, d = reach[look.length - 1]
                    text = f"a view holds write {w} and lacks write {d}, on which it depends"
                    return Witness(text, (*self._link(d, w), self._look(look)))
        return None

    def _own(self) -> Witness | None:
        """Every view holds its session's own earlier writes."""
        for session, looks in self.by_session.items():
            mine = self.of_session.get(session, [])
            last: dict[int, list[tuple[int, int]]] = {}
            for look in looks:
                if look.log not in last:
                    place, worst, made = self.place[look.log], (-1, -1), []
                    for w in mine:
                        worst = max(worst, (place.get(w, math.inf), w))  # type: ignore[assignment]
                        made.append(worst)
                    last[look.log] = made
                count = min(look.own, len(mine))
                if count and last[look.log][count - 1][0] >= look.length:
                    w = last[look.log][count - 1][1]
                    text = f"session {session} does not see its own write {w}"
                    return Witness(text, (self._write(w), self._look(look)))
        return None

    def _grow(self) -> Witness | None:
        """No session loses sight of what it saw."""
        for session, looks in self.by_session.items():
            for old, new in itertools.pairwise(looks):
                if old.log == new.log:
                    lost = old.length > new.length
                    missing = self.trace.logs[old.log][new.length] if lost else -1
                else:
                    missing = self._lost(old, new)
                if missing >= 0:
                    text = f"session {session} saw write {missing}, and later did not"
                    return Witness(text, (self._write(missing), self._look(old), self._look(new)))
        return None

    def _lost(self, old: Look, new: Look) -> int:
        """An entry of the old view that the new one lacks, or -1; the reach of a log is kept."""
        pair = (old.log, new.log)
        if pair not in self._reach:
            place, far, made = self.place[new.log], -1, []
            for w in self.trace.logs[old.log]:
                far = max(far, place.get(w, self.n))
                made.append(far)
            self._reach[pair] = made
        if not old.length or self._reach[pair][old.length - 1] < new.length:
            return -1
        place = self.place[new.log]
        seen = self.trace.logs[old.log][: old.length]
        return next(w for w in seen if place.get(w, self.n) >= new.length)

    # -- order

    def _refines(self, kind: str) -> Witness | None:
        """No view shows a write before one on which it depends, also across a hole."""
        for log in range(len(self.trace.logs)):
            shown = self._shown(log)
            place = {w: at for at, w in enumerate(shown)}
            top = max(shown, default=-1)
            # For each write the latest place of what it depends on; an absent one passes on its
            # own, because a dependency reaches across a hole.
            latest: list[tuple[int, int]] = []
            for w in range(top + 1):
                before, found = self.before[w], (-1, -1)
                if before >= 0 and kind == "reads":
                    found = latest[before]  # the session's earlier reads count for this write too
                elif before >= 0:
                    found = (place[before], before) if before in place else latest[before]
                for d in self.trace.writes[w].reads if kind != "session" else ():
                    found = max(found, (place[d], d) if d in place else latest[d])
                latest.append(found)
                at = place.get(w)
                if at is not None and found[0] > at:
                    d = found[1]
                    text = f"log {log} shows write {w} before write {d}, on which it depends"
                    shown_to = max(self.by_log[log], key=lambda look: look.length)
                    return Witness(text, (*self._link(d, w), self._look(shown_to)))
        return None

    def _shared(self) -> Witness | None:
        """One order of all writes agrees with what every log shows."""
        if self.trace.ranks:
            return None
        before: list[list[int]] = [[] for _ in range(self.n)]
        for log in range(len(self.trace.logs)):
            shown = self._shown(log)
            for one, two in itertools.pairwise(shown):
                before[two].append(one)
        if topological(before) is not None:
            return None
        return self._opposed() or Witness("the logs' orders form a ring", ())

    def _opposed(self) -> Witness | None:
        """Two writes that two logs show in opposite orders."""
        for one in range(len(self.trace.logs)):
            for two in range(one):
                place = {w: at for at, w in enumerate(self._shown(two))}
                line = [w for w in self._shown(one) if w in place]
                for a, b in itertools.pairwise(line):
                    if place[a] > place[b]:
                        text = f"log {one} shows write {a} before write {b}, log {two} after it"
                        return Witness(text, (self._write(a), self._write(b)))
        return None

    def _append(self) -> Witness | None:
        """A session's later view shows its earlier one first, unchanged."""
        same: dict[tuple[int, int], int] = {}
        for session, looks in self.by_session.items():
            for old, new in itertools.pairwise(looks):
                logs = self.trace.logs
                if self.trace.ranks:
                    bad = self._inserted(old, new)
                elif old.log == new.log:
                    bad = old.length > new.length
                else:
                    pair = (old.log, new.log)
                    if pair not in same:
                        same[pair] = _common(logs[old.log], logs[new.log])
                    bad = old.length > new.length or same[pair] < old.length
                if bad:
                    text = f"session {session}'s later view does not begin with its earlier one"
                    return Witness(text, (self._look(old), self._look(new)))
        return None

    def _inserted(self, old: Look, new: Look) -> bool:
        ranks, logs = self.trace.ranks, self.trace.logs
        if old.log == new.log and old.length <= new.length:
            added = logs[new.log][old.length : new.length]
            if not added or not old.length:
                return False
            return bool(min(ranks[w] for w in added) < self._top(old.log, old.length))
        first = sorted(logs[old.log][: old.length], key=ranks.__getitem__)
        then = sorted(logs[new.log][: new.length], key=ranks.__getitem__)
        return then[: len(first)] != first

    def _top(self, log: int, length: int) -> Any:
        """The highest rank among the first entries of a log, from a running list."""
        pair = (-1, log)
        if pair not in self._reach:
            made: list[Any] = []
            for w in self.trace.logs[log]:
                rank = self.trace.ranks[w]
                made.append(rank if not made else max(made[-1], rank))
            self._reach[pair] = made
        return self._reach[pair][length - 1]

    def _one_log(self) -> Witness | None:
        """All views are prefixes of one order."""
        if self.trace.ranks:
            return self._append() or self._prefixes_by_rank()
        longest = max(range(len(self.seen_to)), key=self.seen_to.__getitem__, default=-1)
        for log in range(len(self.trace.logs)):
            common = _common(self.trace.logs[log], self.trace.logs[longest])
            if common < self.seen_to[log]:
                a, b = self.trace.logs[log][common], self.trace.logs[longest][common]
                text = f"log {log} has write {a} at place {common}, log {longest} write {b}"
                return Witness(text, (self._write(a), self._write(b)))
        return None

    def _prefixes_by_rank(self) -> Witness | None:
        order = sorted(range(self.n), key=self.trace.ranks.__getitem__)
        spot = {w: at for at, w in enumerate(order)}
        for look in self.trace.looks:
            if look.length:
                entries = self.trace.logs[look.log][: look.length]
                if max(spot[w] for w in entries) >= look.length:
                    return Witness("a view lacks a write of lower rank", (self._look(look),))
        return None

    # -- time and values

    def _real_time(self) -> Witness | None:
        """Every view holds the writes that had returned, and no order turns real time round."""
        writes, found = self.trace.writes, None
        for log, entries in enumerate(self.trace.logs):
            place = self.place[log]
            rest = [(math.inf, -1)] * (len(entries) + 1)
            absent = [(w.ret_s, i) for i, w in enumerate(writes) if i not in place]
            rest[len(entries)] = min(absent, default=(math.inf, -1))
            for at in range(len(entries) - 1, -1, -1):
                rest[at] = min(rest[at + 1], (writes[entries[at]].ret_s, entries[at]))
            for look in self.by_log.get(log, ()):
                ret_s, w = rest[look.length]
                if look.call_s - ret_s > self.stale_s:
                    self.stale_s = look.call_s - ret_s
                    text = f"write {w} had returned and was not seen {self.stale_s:g} s later"
                    found = Witness(text, (self._write(w), self._look(look)))
            shown, latest = self._shown(log), (-math.inf, -1)
            for w in shown:
                if writes[w].ret_s < latest[0] and found is None:
                    text = f"write {w} returned before write {latest[1]} began, and is shown after"
                    found = Witness(text, (self._write(w), self._write(latest[1])))
                latest = max(latest, (writes[w].call_s, w))
        return found

    def _settled(self) -> Witness | None:
        for look in self.trace.looks:
            if look.settled and look.length < self.n:
                w = next(w for w in range(self.n)
                         if self.place[look.log].get(w, self.n) >= look.length)  # fmt: skip
                text = f"write {w} was not seen after all writes were delivered"
                return Witness(text, (self._write(w), self._look(look)))
        return None

    def _returns(self) -> Witness | None:
        """Each read gave the last write of its key in its view."""
        kept: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
        for log, entries in enumerate(self.trace.logs):
            for at, w in enumerate(entries):
                places, tops = kept.setdefault((log, self.trace.writes[w].key), ([], []))
                last = w
                if tops and self.trace.ranks and self.trace.ranks[tops[-1]] > self.trace.ranks[w]:
                    last = tops[-1]
                places.append(at)
                tops.append(last)
        for look in self.trace.looks:
            if look.key:
                places, tops = kept.get((look.log, look.key), ([], []))
                at = bisect_left(places, look.length) - 1
                due = tops[at] if at >= 0 else -1
                if due != look.got:
                    text = f"a read of {look.key!r} gave write {look.got}; its view ends in {due}"
                    events = [self._write(w) for w in (due, look.got) if w >= 0]
                    return Witness(text, (*events, self._look(look)))
        return None


def _common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """How many first entries two logs share."""
    for at, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return at
    return min(len(one), len(two))
