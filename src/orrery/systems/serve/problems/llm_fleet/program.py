"""Stage 2: integer programs over counts of templates, solved by HiGHS (through SciPy).

Two objectives. *Cost*: the cheapest counts that meet every demand, with a charge for each replica
started or stopped. *Goodput*: the most requests a second within supply and budget. The number of
branch-and-bound nodes is bounded, not the time, so that an answer does not depend on the machine.

A program has one row for each offer, two for each model, one for the budget; and one column for
each template, so its size is what stage 1 leaves of the templates.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from orrery.base.errors import PlatformLacks, SpecError
from orrery.systems.serve.problems.llm_fleet.market import Demand, Market
from orrery.systems.serve.problems.llm_fleet.templates import (
    Template,
    check_templates,
    rates,
    usage,
)

# HiGHS takes rows as met within 1e-6; a plan may fall short of a demand by no more.
SLACK = 1e-6


class Effort(msgspec.Struct, frozen=True):
    """How far a solve goes: the relative gap at which it may stop, and nodes at most."""

    gap: float = 0.0
    most_nodes: int = 100_000


class Charges(msgspec.Struct, frozen=True):
    """What a change costs: dollars for each replica started or stopped; a plan lasts so long."""

    switch_usd: float = 0.0
    horizon_h: float = 1.0


class Solution(msgspec.Struct, frozen=True):
    """Counts by template, the objective, its proven bound, and what the solve took."""

    counts: dict[str, int]
    value: float
    bound: float
    nodes: int
    columns: int
    proven: bool

    @property
    def gap(self) -> float:
        """How much better, as a share, an answer could be at most."""
        return abs(self.value - self.bound) / max(abs(self.value), 1e-9)


def solver() -> Any:
    """SciPy's optimisers, or an error that names the extra."""
    try:
        from scipy import optimize
    except ImportError:
        raise PlatformLacks(
            "planning a fleet needs SciPy (its HiGHS solver); pip install 'orrery[plan]'"
        ) from None
    return optimize


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep the solver's prints off stdout, where results go.

    HiGHS writes a line from C when it repairs a solution, whatever its options say. So the file
    descriptor is turned away, and C's own buffer is emptied before it is turned back.
    """
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    sys.stdout.flush()
    away = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(away, 1)
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(away)


class _Rows:
    """Rows of a program, gathered one by one."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[np.ndarray] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, row: np.ndarray, low: float, high: float) -> None:
        full = np.zeros(self.columns)
        full[: len(row)] = row
        self.rows.append(full)
        self.low.append(low)
        self.high.append(high)


class Program:
    """The columns and rows that both objectives share."""

    def __init__(
        self, templates: Sequence[Template], market: Market, demand: Demand,
        running: Mapping[str, int] | None = None, charges: Charges = Charges(),
    ) -> None:  # fmt: skip
        check_templates(templates)
        self.templates, self.market, self.demand = templates, market, demand
        self.use = usage(templates, market)
        self.rates = rates(templates)
        self.price = self.use @ market.prices if len(templates) else np.zeros(0)
        self.of = np.array([each.model for each in templates], dtype=object)
        held = running or {}
        for name, count in held.items():
            if type(count) is not int or count < 0:
                raise SpecError(f"running.{name}", f"{count!r} is refused", "give 0 or more")
        self.held = np.array([held.get(each.id, 0) for each in templates], float)
        self.charges = charges if held else Charges(0.0, charges.horizon_h)
        known = {each.id for each in templates}
        # What runs now and is on no list any more must stop; that costs what it costs.
        self.forced = sum(count for name, count in held.items() if name not in known)
        self.charged = self.charges.switch_usd > 0
        self.moves = np.flatnonzero(self.held) if self.charged else np.zeros(0, int)

    # -- parts of a program

    def most(self) -> np.ndarray:
        """More of a template than this is never of use: supply, or all the demand."""
        found = np.full(len(self.templates), np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            fits = np.where(self.use > 0, self.market.caps / np.maximum(self.use, 1e-9), np.inf)
        found = np.minimum(found, np.floor(fits.min(axis=1, initial=np.inf) + 1e-9))
        for need in self.demand:
            mine = self.of == need.model
            fastest = np.maximum(self.rates[mine].max(axis=1, initial=0.0), 1e-12)
            slower = np.where(self.rates[mine] > 0, self.rates[mine], np.inf).min(axis=1)
            slower = np.where(np.isfinite(slower), slower, fastest)
            found[mine] = np.minimum(found[mine], np.ceil(need.rate_per_s / slower + 1e-9))
        wanted = {need.model for need in self.demand if need.rate_per_s > 0}
        found[[model not in wanted for model in self.of]] = 0
        return np.minimum(found, 1e6)

    def _supply(self, rows: _Rows) -> None:
        for column, cap in enumerate(self.market.caps):
            if (self.use[:, column] > 0).any():
                rows.add(self.use[:, column], -np.inf, cap)
        if math.isfinite(self.market.budget_per_h):
            rows.add(self.price, -np.inf, self.market.budget_per_h)

    def _moves(self, rows: _Rows, first: int) -> None:
        """x = held + started - stopped, for what runs now."""
        for at, column in enumerate(self.moves):
            row = np.zeros(rows.columns)
            row[column], row[first + 2 * at], row[first + 2 * at + 1] = 1.0, -1.0, 1.0
            rows.add(row, self.held[column], self.held[column])

    def _costs(self, columns: int, first: int) -> np.ndarray:
        """Dollars over the horizon of each column."""
        costs = np.zeros(columns)
        n = len(self.templates)
        costs[:n] = self.price * self.charges.horizon_h
        if self.charged:
            costs[:n] += np.where(self.held > 0, 0.0, self.charges.switch_usd)
            costs[first : first + 2 * len(self.moves)] = self.charges.switch_usd
        return costs

    # -- the two objectives

    def cheapest(self, effort: Effort = Effort()) -> Solution | None:
        """The least cost that meets every demand; None where supply or budget is too small."""
        n = len(self.templates)
        rows = _Rows(n + 2 * len(self.moves))
        self._supply(rows)
        for need in self.demand:
            if need.rate_per_s <= 0:
                continue
            mine = self.of == need.model
            for side in (0, 1):
                # In shares of the demand, so that the solver's tolerance means the same for all.
                rows.add(self.rates[:, side] * mine / need.rate_per_s, 1.0, np.inf)
        self._moves(rows, n)
        return self._solve(self._costs(rows.columns, n), rows, self.most(), effort)

    def most_served(self, effort: Effort = Effort()) -> Solution:
        """The most requests a second; replicas that add nothing to it are left out again."""
        n, m, k = len(self.templates), len(self.demand), len(self.moves)
        rows = _Rows(n + 2 * k + m)
        self._supply(rows)
        self._moves(rows, n)
        for at, need in enumerate(self.demand):
            mine = self.of == need.model
            for side in (0, 1) if need.rate_per_s > 0 else ():
                row = np.zeros(rows.columns)
                row[:n] = -self.rates[:, side] * mine / need.rate_per_s
                row[n + 2 * k + at] = 1.0
                rows.add(row, -np.inf, 0.0)
        served = np.zeros(rows.columns)
        served[n + 2 * k :] = [need.rate_per_s for need in self.demand]
        tops = np.ones(m)
        found = self._solve(-served, rows, self.most(), effort, tops)
        if found is None or found.value >= 0:
            return Solution({}, 0.0, 0.0, 0, n, True)
        counts = self._trimmed(found.counts)
        value = self.goodput(counts)
        return Solution(counts, value, max(-found.bound, value), found.nodes, n, found.proven)

    def _trimmed(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts without replicas that add nothing to the goodput, the dearest left out first."""
        kept = dict(counts)
        price = {each.id: cost for each, cost in zip(self.templates, self.price, strict=True)}
        value = self.goodput(kept)
        for name in sorted(kept, key=lambda name: (-price[name], name)):
            while kept[name]:
                fewer = {**kept, name: kept[name] - 1}
                if self.goodput(fewer) < value * (1 - 1e-9):
                    break
                kept = fewer
        return {name: count for name, count in kept.items() if count}

    def _solve(
        self, costs: np.ndarray, rows: _Rows, most: np.ndarray, effort: Effort,
        tops: np.ndarray | None = None,
    ) -> Solution | None:  # fmt: skip
        n, columns = len(self.templates), rows.columns
        if not n or not rows.rows:
            wanted = any(need.rate_per_s > 0 for need in self.demand)
            empty = Solution({}, self._forced_usd(), self._forced_usd(), 0, 0, True)
            return None if wanted and tops is None else empty
        high = np.full(columns, np.inf)
        high[:n] = most
        if tops is not None:
            high[columns - len(tops) :] = tops
        whole = np.ones(columns)
        if tops is not None:
            whole[columns - len(tops) :] = 0
        opt = solver()
        with _silent():
            found = opt.milp(
                costs, integrality=whole, bounds=opt.Bounds(0, high),
                constraints=opt.LinearConstraint(np.array(rows.rows), rows.low, rows.high),
                options={"mip_rel_gap": effort.gap, "node_limit": effort.most_nodes},
            )  # fmt: skip
        if found.x is None and found.status == 1:
            # It is not known whether there is a plan, so none may be called impossible.
            problem = f"{effort.most_nodes} nodes gave no plan at all"
            raise SpecError("most_nodes", problem, "allow more nodes")
        if found.x is None:
            return None
        chosen = np.round(found.x[:n]).astype(int)
        counts = {self.templates[i].id: int(chosen[i]) for i in np.flatnonzero(chosen)}
        nodes = int(found.mip_node_count or 0)
        forced = self._forced_usd() if tops is None else 0.0
        bound = found.mip_dual_bound
        bound = found.fun if bound is None or not math.isfinite(bound) else bound
        return Solution(
            counts, float(found.fun) + forced, float(bound) + forced, nodes, n, found.status == 0
        )

    def _forced_usd(self) -> float:
        return self.charges.switch_usd * self.forced if self.charged else 0.0

    # -- what counts amount to

    def served(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Requests a second of each model that counts serve, at most what is asked for."""
        chosen = np.array([counts.get(each.id, 0) for each in self.templates], float)
        found = {}
        for need in self.demand:
            total = (chosen * (self.of == need.model)) @ self.rates if len(chosen) else np.zeros(2)
            found[need.model] = float(min(need.rate_per_s, total.min()))
        return found

    def goodput(self, counts: Mapping[str, int]) -> float:
        """Requests a second that counts serve."""
        return sum(self.served(counts).values())

    def cost_per_h(self, counts: Mapping[str, int]) -> float:
        """Dollars an hour of counts."""
        return float(sum(self.price[i] * counts.get(t.id, 0) for i, t in enumerate(self.templates)))


# -- what limits a fleet


def relaxed_goodput(program: Program) -> float:
    """The most that fractions of replicas would serve."""
    n, m = len(program.templates), len(program.demand)
    if not n or not m:
        return 0.0
    rows = _Rows(n + m)
    program._supply(rows)
    for at, need in enumerate(program.demand):
        for side in (0, 1):
            row = np.zeros(n + m)
            row[:n] = -program.rates[:, side] * (program.of == need.model)
            row[n + at] = 1.0
            rows.add(row, -np.inf, 0.0)
    high = np.concatenate([np.full(n, np.inf), [need.rate_per_s for need in program.demand]])
    found = solver().linprog(
        np.concatenate([np.zeros(n), -np.ones(m)]), A_ub=np.array(rows.rows), b_ub=rows.high,
        bounds=np.stack([np.zeros(n + m), high], axis=1), method="highs",
    )  # fmt: skip
    return float(-found.fun) if found.status == 0 else 0.0


def binding(
    templates: Sequence[Template], market: Market, demand: Demand
) -> tuple[tuple[str, float], ...]:
    """What limits the goodput: (offer or "budget", requests a second more if it were doubled).

    Judged on fractions of replicas, so that the rounding of a plan does not hide a limit; the
    tightest first.
    """
    base = relaxed_goodput(Program(templates, market, demand))
    found = []
    for offer in market.offers:
        wider = market.changed(available={offer.name: 2 * offer.available + 8})
        found.append((offer.name, relaxed_goodput(Program(templates, wider, demand)) - base))
    if math.isfinite(market.budget_per_h):
        wider = market.changed(budget_per_h=2 * market.budget_per_h + 1)
        found.append(("budget", relaxed_goodput(Program(templates, wider, demand)) - base))
    named = [(name, round(more, 6)) for name, more in found if more > 1e-6 * max(base, 1.0)]
    return tuple(sorted(named, key=lambda each: (-each[1], each[0])))


__all__ = [
    "SLACK", "Charges", "Effort", "Program", "Solution", "binding", "relaxed_goodput", "solver",
]  # fmt: skip
