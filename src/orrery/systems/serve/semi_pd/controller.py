"""semi-PD: phases on shares of one GPU, over one copy of the weights and one cache."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from msgspec import Meta

from orrery.base.errors import KnobError
from orrery.parts import Fraction, Positive
from orrery.systems.serve.problems.llm_phases import PhasePolicy, Place, Site, SplitView
from orrery.systems.serve.problems.llm_phases.ports import Role
from orrery.systems.serve.semi_pd.forecast import (
    LOAD_SHARPNESS,
    DecodeFit,
    PrefillFit,
    Recent,
    first_attainments,
    fits,
    gap_attainment,
    patience,
)

Share = Annotated[float, Meta(gt=0, lt=1)]
LeastShare = Annotated[float, Meta(ge=0.05, le=0.5)]
# Looks at the engine in one window, and steps that must have been seen before anything is decided.
LOOKS, ENOUGH = 4, 3
# With one phase late by more than this and the other in time, the partition leans to the late one.
LATE = 0.1
# Below this predicted attainment everywhere, targets are out of reach.
HOPELESS = 0.1
# Then, forecasts are of little worth, and changes are no larger than this.
CAREFUL = 0.11
# A batch of this share of the slots, or of the cache, is full.
FULL = 0.95


class SemiPD(PhasePolicy):
    """Runs prefill and decode at once on shares of every device, and moves the line between them.

    "semi-PD: Towards Efficient LLM Serving via Phase-Wise Disaggregated Computation and Unified
    Storage", 2025. Prefill has a share x of the multiprocessors, decode has 1 - x, as two processes
    over one copy of the weights and one paged cache, so no cache moves and no phase waits for the
    other. From a sliding window of measured times the controller fits seconds of prefill = a / x +
    b and of decode = max(traffic, a' / (1 - x)), predicts for each x of the grid which share of
    requests will attain both targets (an M/G/1 queue before prefill, Little's law for the batch
    that decodes), and takes the best. A new x comes into force at the next step of each phase by
    itself: workers for the shares of the grid are resident.

    split        off: one process, whole prompts before all decodes; the mechanism switched off
    adapt        off: the share stays `initial`
    initial      share of prefill at the start
    least        share that each phase always has
    window_s     the sliding window; one change in it at most
    hysteresis   gain in predicted attainment that a change must bring

    A look at the engine costs O(grid x requests in the window), four times a window.

    **Differs from the paper**: only its abstract and public repository were at hand; the fits, the
    queue, the grid of resident workers and the hysteresis are our design. Shares are of a modelled
    device (measured step times, bandwidth by share measured on an H200); the memory that resident
    workers take is not modelled. The two processes over one arena are real, on a CPU, in
    `orrery.models.real.phases`.

    >>> from orrery.systems.serve.problems.llm_phases import Site
    >>> SemiPD().places(Site(8, 4, {4: 500_000}))[0]
    Place(role='split', devices=4, share=0.5, chunk=0)
    """

    split: bool = True
    adapt: bool = True
    initial: Share = 0.5
    least: LeastShare = 0.1
    window_s: Positive = 4.0
    hysteresis: Fraction = 0.02

    def start(self) -> None:
        if not self.least <= self.initial <= 1 - self.least:
            fix = f"give {self.least} to {1 - self.least}"
            raise KnobError("SemiPD.initial", f"{self.initial} leaves a phase too little", fix)
        self.prefill, self.decode = PrefillFit(), DecodeFit()
        self.recent = Recent(self.window_s)
        self.changed_s = -math.inf
        self.predicted: dict[float, float] = {}
        self.loads: dict[float, float] = {}  # the busier phase's part of the time, by share

    def places(self, site: Site) -> list[Place]:
        role: Role = "split" if self.split else "mixed"
        place = Place(role, site.tp, share=self.initial)
        return [place] * (site.devices // site.tp)

    def ask_s(self) -> float:
        return self.window_s / LOOKS if self.split and self.adapt else math.inf

    def share(self, view: SplitView) -> float:
        """Learn from what happened; at most once a window, take a share that promises more."""
        for step in view.prefills:
            self.prefill.learn(step)
        self.decode.learn(view.decodes)
        self.recent.add(view)
        legal = [x for x in view.grid if self.least - 1e-9 <= x <= 1 - self.least + 1e-9]
        if view.share not in legal:
            return min(legal, key=lambda x: abs(x - view.share))
        if view.now_s - self.changed_s < self.window_s:
            return view.share
        if self.prefill.seen < ENOUGH or self.decode.seen < ENOUGH:
            return view.share
        best = self._best(view, legal)
        if best != view.share:
            self.changed_s = view.now_s
        return best

    def _best(self, view: SplitView, legal: list[float]) -> float:
        self.predicted = self.attainment(view, legal)
        late_first, late_gaps = self.recent.late_first(), self.recent.late_gaps()
        here = self.predicted[view.share]
        if max(self.predicted.values()) < HOPELESS:
            # Nothing attains the targets: the share that falls behind least, if it is much better.
            near = [x for x in legal if abs(x - view.share) <= CAREFUL]
            best = min(near, key=lambda x: (self.loads[x], x))
            return best if self.loads[best] < 0.9 * self.loads[view.share] else view.share
        may = [x for x in legal if x == view.share or self._heeds(x, view, late_first, late_gaps)]
        # Of shares that promise as much, the nearest: a change is a risk.
        top = max(self.predicted[x] for x in may)
        near = [x for x in may if self.predicted[x] >= top - self.hysteresis / 4]
        best = min(near, key=lambda x: (abs(x - view.share), x))
        return best if self.predicted[best] >= here + self.hysteresis else view.share

    @staticmethod
    def _heeds(x: float, view: SplitView, late_first: float, late_gaps: float) -> bool:
        """Whether a share does not take from the one phase that is late."""
        if late_first > LATE >= late_gaps:
            # With all slots taken, prompts wait for answers to end, not for prefill.
            full = view.running >= FULL * view.slots or view.kv_tokens >= FULL * view.room_tokens
            return x < view.share if full else x > view.share
        if late_gaps > LATE >= late_first:
            return x < view.share
        return True

    def attainment(self, view: SplitView, shares: list[float]) -> dict[float, float]:
        """The predicted share of requests that attain both targets, by the share of prefill."""
        prompts, targets = self.recent.arrived()
        patient, busy = patience(self.recent.ended()), self.recent.busy()
        # The prompts of the window stand for those to come, at the rate of a longer time.
        seconds = max(len(prompts), 1) / self.recent.rate_per_s
        made_per_s = context = 0.0
        if len(prompts):
            answer = self.recent.answer_tokens()
            made_per_s = len(prompts) / seconds * answer
            context = float(prompts.mean()) + answer / 2
        # Slots and cache bound the batch; what does not fit into it waits with its prompt.
        most = min(float(view.slots), view.room_tokens / max(context, 1.0))
        firsts, busy_prefill = first_attainments(
            self.prefill, prompts, targets, seconds, float(view.waiting_tokens), np.array(shares)
        )
        found, self.loads = {}, {}
        for x, first, prefill in zip(shares, firsts.tolist(), busy_prefill.tolist(), strict=True):
            y = 1.0 - x
            step_s = self.decode.seconds(float(view.kv_tokens), y) if view.running else 0.0
            step_s = max(step_s, self.decode.steady_s(y, made_per_s * context))
            step_s = min(step_s, self.decode.seconds(most * context, y))
            gaps = gap_attainment(step_s, self.decode.spread, view.gap_s, busy, patient)
            decode = self.decode.busy_with(y, made_per_s, context, most)
            self.loads[x] = max(prefill, decode)
            found[x] = first * gaps * fits(decode, 1.0, LOAD_SHARPNESS)
        return found


__all__ = ["SemiPD"]
