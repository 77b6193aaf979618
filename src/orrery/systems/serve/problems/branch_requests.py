"""Requests whose answers fork into branches, what policies see of them, where they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from orrery.base.errors import PartError, UsageError
from orrery.base.rand import Stream
from orrery.inputs import Gamma, azure_like
from orrery.inputs.draws import uniforms
from orrery.parts import Policy

Prefill = Sequence[tuple[int, int]]
# More tokens than any model's context holds; a longer answer is a slip of the pen.
MOST_TOKENS = 1 << 24


class Stage(NamedTuple):
    """A piece of an answer: tokens in a row, then branches side by side that join again."""

    serial: int
    branches: tuple[int, ...] = ()


class Forked:
    """A request whose answer is a row of stages; how long they are is hidden from policies.

    id, arrival_s, prompt_tokens   as for any request
    ttft_s, tpot_s                 what its user expects of a serial answer
    deadline_s                     when the answer of a request with branches is due
    most_tokens                    the longest answer that the client takes, in all its branches
    """

    __slots__ = (
        "_stages", "arrival_s", "branchy", "deadline_s", "id", "most_tokens", "prompt_tokens",
        "tpot_s", "ttft_s",
    )  # fmt: skip

    def __init__(
        self, id: int, arrival_s: float, prompt_tokens: int, stages: Sequence[Stage], *,
        ttft_s: float = 2.0, tpot_s: float = 0.05, widths: float = 2.0, most_tokens: int = 0,
    ) -> None:  # fmt: skip
        told = _told(id, prompt_tokens, stages)
        times = {"arrival_s": arrival_s, "ttft_s": ttft_s, "tpot_s": tpot_s, "widths": widths}
        for name, value in times.items():
            least = {"arrival_s": 0.0, "widths": 1.0}.get(name, 1e-12)
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if not (real and math.isfinite(value) and value >= least):
                fix = "0 or more" if not least else "1 or more" if least == 1.0 else "above 0"
                raise UsageError(f"request {id}: {name} = {value!r}; give a number, {fix}")
        if most_tokens and most_tokens < sum(told):
            raise UsageError(
                f"request {id}: most_tokens = {most_tokens}, its answer has {sum(told)}; "
                "give at least that, or 0"
            )
        self.id, self.arrival_s, self.prompt_tokens = id, arrival_s, prompt_tokens
        self._stages = tuple(stages)
        self.ttft_s, self.tpot_s = ttft_s, tpot_s
        self.branchy = any(stage.branches for stage in stages)
        self.deadline_s = arrival_s + ttft_s + tpot_s * depth(stages, widths)
        self.most_tokens = most_tokens or sum(told)

    @property
    def tokens(self) -> int:
        """Tokens of the whole answer; not for policies."""
        return sum(stage.serial + sum(stage.branches) for stage in self._stages)

    def __repr__(self) -> str:
        return f"Forked({self.id}, at {self.arrival_s:.3f} s, {self.prompt_tokens} tokens)"


def _told(id: int, prompt_tokens: int, stages: Sequence[Stage]) -> list[int]:
    """The lengths of all pieces of an answer, if it can be one."""
    told = [each for stage in stages for each in (stage.serial, *stage.branches)]
    odd = [each for each in (prompt_tokens, *told) if type(each) is not int]
    if odd:
        raise UsageError(f"request {id}: a length of {odd[0]!r} tokens; give whole numbers")
    if prompt_tokens < 1 or not stages or stages[0].serial < 1 or min(told) < 0:
        raise UsageError(
            f"request {id}: {prompt_tokens} prompt tokens, stages {tuple(stages)[:3]}; "
            "give a prompt, and a first stage that begins with a token"
        )
    if any(each < 1 for stage in stages for each in stage.branches):
        raise UsageError(f"request {id}: a branch without a token; leave it out")
    if prompt_tokens + sum(told) > MOST_TOKENS:
        raise UsageError(
            f"request {id}: {prompt_tokens + sum(told)} tokens; give at most {MOST_TOKENS}"
        )
    return told


def depth(stages: Sequence[Stage], widths: float) -> float:
    """Tokens in a row that a deadline allows for: `widths` longest branches for each fork."""
    return sum(
        stage.serial + min(widths, len(stage.branches)) * max(stage.branches, default=0)
        for stage in stages
    )


class BranchView:
    """The decodes of a step, as the policy that chooses their widths sees them.

    Every column is an array made when it is asked for: ask once, and keep it for the decision.

    now_s      the time
    ids        the requests that decode, in order of admission
    open       unfinished branches of each; 1 for one in a serial stage
    forked     whether it is in a parallel stage
    context    tokens that every branch of it reads: prompt, answer so far
    own        tokens that its open branches have made so far, on average
    pace_s     seconds a token that its user expects
    lead_s     how far ahead of that pace it is; negative: late
    due_s      when its answer is due (never, for a serial one)
    waited     steps since it forked
    phase      tokens made in this parallel stage, and branches of it that have ended
    prefill    the prompt chunk of the step: (new tokens, cached tokens)
    """

    def __init__(
        self, now_s: float, rows: Sequence[Any], prefill: tuple[tuple[int, int], ...],
        seconds: Callable[[Prefill, int, int], float],
    ) -> None:  # fmt: skip
        self.now_s, self.prefill, self._rows = now_s, prefill, rows
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._rows)

    def profile(self, sequences: int, kv_tokens: int, prompts: bool = True) -> float:
        """Seconds of the step with so many decodes, as the operator measured them.

        Without `prompts` it is the step less its prompt chunk.
        """
        return self._seconds(self.prefill if prompts else (), sequences, kv_tokens)

    @property
    def ids(self) -> list[int]:
        return [row.request.id for row in self._rows]

    @property
    def open(self) -> np.ndarray:
        return np.array([len(row.open) or 1 for row in self._rows], np.int64)

    @property
    def forked(self) -> np.ndarray:
        return np.array([bool(row.open) for row in self._rows], bool)

    @property
    def context(self) -> np.ndarray:
        return np.array([row.context for row in self._rows], np.int64)

    @property
    def own(self) -> np.ndarray:
        return np.array([row.own_tokens / len(row.open) if row.open else 0.0
                         for row in self._rows])  # fmt: skip

    @property
    def pace_s(self) -> np.ndarray:
        return np.array([row.request.tpot_s for row in self._rows])

    @property
    def lead_s(self) -> np.ndarray:
        return np.array([row.due_s for row in self._rows]) - self.now_s

    @property
    def due_s(self) -> np.ndarray:
        return np.array([
            row.request.deadline_s if row.request.branchy else np.inf for row in self._rows
        ])  # fmt: skip

    @property
    def waited(self) -> np.ndarray:
        return np.array([row.waited for row in self._rows], np.int64)

    @property
    def phase(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self._rows
        return (np.array([row.phase_tokens for row in rows], np.int64),
                np.array([row.ended for row in rows], np.int64))  # fmt: skip


class BranchPolicy(Policy):
    """Decides how many branches of each request a decode step carries.

    `widths(view)` gives one number a request, from 1 to its open branches: its first branch is
    always served. `observe` is told what a step was made of and what it took.
    """

    def widths(self, view: BranchView) -> Sequence[int] | np.ndarray:
        raise PartError(f"{type(self).__name__} has no widths(view); write what it decides")

    def observe(self, prefill: int, sequences: int, kv_tokens: int, seconds: float) -> None:
        """What a step took."""


def make_requests(
    count: int, seed: int, *, rate_per_s: float, burst: float, branchy: float,
    branches: tuple[int, int], lengths: tuple[int, int], before: tuple[int, int],
    after: tuple[int, int], ttft_s: float, tpot_s: float, widths: float, most_prompt: int,
) -> list[Forked]:  # fmt: skip
    """Serial chats with Azure's lengths, and among them requests with branches."""
    chats = azure_like("conv", count, seed=seed)
    arrival_s = Gamma(rate_per_s=rate_per_s, cv=burst).times(count, seed)
    forks = uniforms(Stream(seed, "branches", "which"), count) < branchy
    draws, found = Stream(seed, "branches", "shapes"), []
    for at in range(count):
        prompt = min(int(chats.input_tokens[at]), most_prompt)
        stages = [Stage(int(chats.output_tokens[at]))]
        if forks[at]:
            each = tuple(draws.randint(*lengths) for _ in range(draws.randint(*branches)))
            stages = [Stage(draws.randint(*before), each), Stage(draws.randint(*after))]
        most = sum(stage.serial + len(stage.branches) * lengths[1] for stage in stages)
        found.append(Forked(at, float(arrival_s[at]), prompt, stages, ttft_s=ttft_s,
                            tpot_s=tpot_s, widths=widths, most_tokens=most))  # fmt: skip
    return found


__all__ = ["BranchPolicy", "BranchView", "Forked", "Stage", "depth", "make_requests"]
