"""Workload-adaptive roles: how many instances prefill, and how many decode, as the load changes."""

from __future__ import annotations

from collections.abc import Sequence

from orrery.systems.serve.problems.llm_elastic.ports import InstanceView, PoolView, Profile

CHUNK = 2048  # prompt tokens of the step by which prefill is profiled


class RoleKeeper:
    """Keeps the number of prefill instances near what the measured load asks for.

    Both sides are measured in instances. Prefill: prompt tokens that came a second (a moving
    average over `memory_s`) and those that wait (to be done within the target for the first token),
    times the profiled seconds of a token. Decode: the requests that decode, over as many as one
    instance carries within the target of a token and its cache. The split in proportion to the two
    is the goal. It is followed as soon as it lies `slack` of an instance off the present split; at
    most `moves` instances change at a time.
    """

    def __init__(
        self, profile: Profile, front: str, back: str, *, memory_s: float, slack: float, moves: int
    ) -> None:
        self.profile, self.front, self.back = profile, front, back
        self.memory_s, self.slack, self.moves = memory_s, slack, moves
        self.token_s = profile.seconds(((CHUNK, 0),), 0, 0) / CHUNK
        self.rate = self.encode = 0.0  # prompt tokens and seconds of encoding, a second
        self.context = self.lacked = 0.0
        self.last: tuple[float, int, float] | None = None

    def seats(self, context: float) -> float:
        """Requests of this context that one instance decodes within its target."""
        profile = self.profile
        most = max(profile.blocks * profile.block_tokens / max(context, 1.0), 1.0)
        low, high = 1, max(int(min(most, 1024)), 1)
        while high - low > 1:
            middle = (low + high) // 2
            if profile.seconds((), middle, int(middle * context)) <= profile.target.tpot_s:
                low = middle
            else:
                high = middle
        return float(low)

    def observe(self, view: PoolView) -> None:
        """Take in what came since the last look."""
        now = (view.now_s, view.prompt_tokens, view.encode_s)
        if self.last is not None and view.now_s > self.last[0]:
            gone_s = view.now_s - self.last[0]
            share = min(gone_s / self.memory_s, 1.0)
            self.rate += share * ((view.prompt_tokens - self.last[1]) / gone_s - self.rate)
            self.encode += share * ((view.encode_s - self.last[2]) / gone_s - self.encode)
        self.last = now

    def needs(self, view: PoolView) -> tuple[float, float]:
        """(prefill, decode) instances that the load asks for now."""
        waiting = sum(each.prefill_tokens for each in view.instances)
        images_s = sum(each.encode_s for each in view.instances)
        within_s = max(self.profile.target.ttft_s, 1.0)
        front = (self.rate + waiting / within_s) * self.token_s
        if "E" in self.front:
            front += self.encode + images_s / within_s
        decodes = sum(each.decodes for each in view.able("D"))
        kv = sum(each.kv_tokens for each in view.able("D"))
        if decodes:
            self.context = max(kv / decodes, 1.0)
        back = decodes / self.seats(self.context) if self.context else 0.0
        return front, back

    def split(self, view: PoolView) -> list[str]:
        """The role of each instance, in the order of the view."""
        self.observe(view)
        count = len(view)
        roles = [each.role for each in view.instances]
        if count == 1:
            return [self.front + self.back]
        known = [role in (self.front, self.back) for role in roles]
        have = sum(role == self.front for role in roles)
        if not all(known) or not 0 < have < count:
            return self.deal(view.instances, count // 2 or 1)
        front, back = self.needs(view)
        if not front + back > 0:
            return roles
        goal = count * front / (front + back)
        off = goal - have
        # One look may be a burst: the same side must lack an instance twice in a row.
        again, self.lacked = self.lacked * off > 0, off if abs(off) > self.slack else 0.0
        if not self.lacked or not again:
            return roles
        wanted = min(max(round(goal), 1), count - 1)
        step = max(min(wanted - have, self.moves), -self.moves)
        return self.moved(view.instances, roles, step)

    def deal(self, instances: Sequence[InstanceView], front: int) -> list[str]:
        """The first so many prefill, the others decode."""
        return [self.front if at < front else self.back for at in range(len(instances))]

    def moved(
        self, instances: Sequence[InstanceView], roles: list[str], step: int
    ) -> list[str]:  # fmt: skip
        """The roles after so many instances change to prefill, or (below 0) to decode."""
        made = list(roles)
        old, new = (self.back, self.front) if step > 0 else (self.front, self.back)
        able = [at for at, role in enumerate(roles) if role == old]
        # The one with the least to finish in its old role goes first.
        able.sort(key=lambda at: (instances[at].decodes if step > 0
                                  else instances[at].prefill_tokens, at))  # fmt: skip
        for at in able[: abs(step)]:
            made[at] = new
        return made


__all__ = ["RoleKeeper"]
