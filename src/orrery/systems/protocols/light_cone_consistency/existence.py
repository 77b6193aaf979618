"""Whether views exist that explain a history under a configuration.

- `sort` orders: the smallest views that C allows are computed (a least fixpoint: more visible
  writes can only forbid more), each read then says which writes its own must follow in the order,
  and an order exists exactly when these demands have no ring. O(n) mask operations.
- `local log`: for each observer the demands are closed until nothing new follows (Bouajjani,
  Enea, Guerraoui, Hamza, POPL 2017, for causal memory). Polynomial; a few passes in practice.
- `shared log`: NP-complete (Gibbons and Korach, 1997), so a search that remembers its states and
  gives up after `budget` of them; a history that is not even causal is refuted before.
"""

from __future__ import annotations

from typing import Any

from orrery.systems.protocols.light_cone_consistency.cone import INITIAL, Cone, bits, has_ring
from orrery.systems.protocols.light_cone_consistency.coordinates import Config, Order


def explains(cone: Cone, config: Config, budget: int) -> bool | None:
    """Whether some views of the configuration give these answers; None when a bound was reached."""
    maps = cone.maps()
    if maps is None:
        return None
    if config.order.form == "log" and config.order.scope == "shared":
        weaker = Config(config.closure, Order("local", "log", config.order.refines))
        for source in maps:
            order = cone.topological(source)
            if order is not None and _local_logs(cone, source, order, weaker):
                # The search goes by values, so one look is enough for all maps together.
                return _one_log(cone, config, budget)
        return False
    for source in maps:
        order = cone.topological(source)
        if order is None:
            continue  # a light cone never holds its own future
        if config.order.scope == "local":
            found = _local_logs(cone, source, order, config)
        else:
            found = _sorted_views(cone, source, order, config)
        if found:
            return True
    return False


# -- views sorted by one order


def _sorted_views(cone: Cone, source: dict[int, int], order: list[int], config: Config) -> bool:
    wanted, closed = config.order.kept, config.effective
    before = dict.fromkeys(bits(cone.writes), 0)
    cause = [0] * cone.n  # what must be visible with a write, itself included
    seen = [0] * cone.n  # what its session must hold visible after this operation
    read = [0] * cone.n  # what its session had read, with all that this drags along
    last = [0] * cone.n  # the session's last write, for the order
    heard = [0] * cone.n  # the writes read by the session since its last write, for the order
    for at in order:
        prev = cone.session_before[at]
        had = seen[prev] if prev >= 0 else 0
        known = read[prev] if prev >= 0 else 0
        mine = last[prev] if prev >= 0 else 0
        news = heard[prev] if prev >= 0 else 0
        if not cone.is_read[at]:
            drags = 1 << at
            if "session" in closed:
                drags |= cause[mine.bit_length() - 1] if mine else 0
            if "reads" in closed:
                drags |= known
            cause[at] = drags
            if "session" in wanted:
                before[at] |= mine
            if "reads" in wanted:
                before[at] |= news
            seen[at] = had | (drags if "own" in closed else 0)
            read[at], last[at], heard[at] = known, 1 << at, news
            continue
        from_ = source[at]
        view = (cause[from_] if from_ != INITIAL else 0) | had
        rivals = cone.of_key.get(cone.key[at], 0)
        if config.time == "settled" and cone.settled >> at & 1:
            view |= cone.writes
        if from_ == INITIAL:
            if view & rivals:
                return False
        else:
            before[from_] |= view & rivals & ~(1 << from_)
        seen[at] = view if "grow" in closed else had
        read[at] = known | (cause[from_] if from_ != INITIAL else 0)
        last[at] = mine
        heard[at] = news | (1 << from_ if from_ != INITIAL else 0)
    return not has_ring(before)


# -- one log for each observer


def _local_logs(cone: Cone, source: dict[int, int], order: list[int], config: Config) -> bool:
    causal = "reads" in config.order.kept
    base = _write_order(cone, source, order, causal)
    return all(_one_observer(cone, source, base, line) for line in cone.lines.values())


def _write_order(cone: Cone, source: dict[int, int], order: list[int], causal: bool) -> list[int]:
    """For each write, the writes directly before it by session, or by causality."""
    base = [0] * cone.n
    carry = [0] * cone.n
    for at in order:
        prev = cone.session_before[at]
        had = carry[prev] if prev >= 0 else 0
        if cone.is_read[at]:
            carry[at] = had | (1 << source[at] if causal and source[at] != INITIAL else 0)
        else:
            base[at], carry[at] = had, 1 << at
    return base


def _one_observer(cone: Cone, source: dict[int, int], base: list[int], line: list[int]) -> bool:
    before = list(base)
    members = cone.writes
    for at in line:
        members |= 1 << at
    for at in bits(members):
        prev = cone.session_before[at]
        if prev >= 0 and members >> prev & 1:
            before[at] |= 1 << prev
        if cone.is_read[at] and source[at] != INITIAL:
            before[at] |= 1 << source[at]
    reads = [at for at in line if cone.is_read[at]]
    while True:
        down = _downward(before, members)
        if down is None:
            return False
        changed = False
        for at in reads:
            from_ = source[at]
            rivals = down[at] & cone.of_key.get(cone.key[at], 0)
            if from_ == INITIAL:
                if rivals:
                    return False
                continue
            new = rivals & ~(1 << from_) & ~down[from_]
            if new:
                before[from_] |= new
                changed = True
        if not changed:
            return True


def _downward(before: list[int], members: int) -> dict[int, int] | None:
    """All that stands before each member, transitively; None when there is a ring."""
    down: dict[int, int] = {}
    for root in bits(members):
        if root in down:
            continue
        path = 1 << root
        stack = [(root, before[root] & members, 0)]
        while stack:
            at, left, sum_ = stack.pop()
            if left & path:
                return None
            pushed = False
            while left:
                low = left & -left
                step = low.bit_length() - 1
                if step in down:
                    sum_ |= low | down[step]
                    left &= ~sum_  # what is below a finished item is finished too
                    if left & path:
                        return None
                    continue
                stack.append((at, left, sum_))
                stack.append((step, before[step] & members, 0))
                path |= low
                pushed = True
                break
            if not pushed:
                if sum_ & path:
                    return None
                down[at] = sum_
                path &= ~(1 << at)
    return down


# -- one log for all


def _one_log(cone: Cone, config: Config, budget: int) -> bool | None:
    must = _before(cone, config.time == "real_time")
    keys = {key: n for n, key in enumerate(dict.fromkeys(cone.key))}
    slot = [keys[key] for key in cone.key]
    everything = (1 << cone.n) - 1
    first: tuple[Any, ...] = (None,) * len(keys)
    stack = [_looks(cone, must, slot, 0, first)]
    seen = {stack[0]}
    while stack:
        done, state = stack.pop()
        if done == everything:
            return True
        for at in bits(cone.writes & ~done):
            if must[at] & ~done:
                continue
            after = (*state[: slot[at]], cone.value[at], *state[slot[at] + 1 :])
            step = _looks(cone, must, slot, done | 1 << at, after)
            if step not in seen:
                if len(seen) >= budget:
                    return None
                seen.add(step)
                stack.append(step)
    return False


def _before(cone: Cone, real_time: bool) -> list[int]:
    """What has to be in the log, or to have looked at it, before each operation."""
    must = [1 << prev if prev >= 0 else 0 for prev in cone.session_before]
    if real_time:
        ended = sorted(range(cone.n), key=cone.ret.__getitem__)
        mask, n = 0, 0
        for at in range(cone.n):  # operations stand in the order of their calls
            while n < cone.n and cone.ret[ended[n]] < cone.call[at]:
                mask |= 1 << ended[n]
                n += 1
            must[at] |= mask
    return must


def _looks(
    cone: Cone, must: list[int], slot: list[int], done: int, state: tuple[Any, ...]
) -> tuple[int, tuple[Any, ...]]:
    """Let every read that is due and right look now: it changes nothing, so waiting cannot help."""
    reads = ~cone.writes & ~done & ((1 << cone.n) - 1)
    moved = True
    while moved:
        moved = False
        for at in bits(reads):
            if not must[at] & ~done and state[slot[at]] == cone.value[at]:
                done |= 1 << at
                reads &= ~(1 << at)
                moved = True
    return done, state
