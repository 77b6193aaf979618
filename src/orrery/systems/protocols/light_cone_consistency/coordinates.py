"""The coordinates: closure C, order O, timeliness R, return value F; and the named models.

A *view* is a set of writes shown in an order. C says which writes have to be there: the observer's
`own`, what it saw before (`grow`), the earlier writes of a writer's session (`session`), and what
that session had read (`reads`). O says how the order comes about: its `scope` (a new order for
`each` view, one for each observer: `local`, one for all: `shared`), its `form` (`sort`: the view is
sorted by it; `log`: the view is a prefix of it) and which dependencies it `refines`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from orrery.base.errors import SpecError, did_you_mean

CLOSURES = ("own", "grow", "session", "reads")
SCOPES = ("each", "local", "shared")
REFINEMENTS: dict[str, frozenset[str]] = {
    "nothing": frozenset(),
    "session": frozenset({"session"}),
    "reads": frozenset({"reads"}),
    "causality": frozenset({"session", "reads"}),
}
TIMES = ("never", "settled", "real_time")

ALL = frozenset(CLOSURES)


class Order(msgspec.Struct, frozen=True, order=True):
    """O: how the writes of a view are ordered.

    >>> str(Order("shared", "log", "causality"))
    'shared log refining causality'
    """

    scope: Literal["each", "local", "shared"] = "each"
    form: Literal["sort", "log"] = "sort"
    refines: Literal["nothing", "session", "reads", "causality"] = "nothing"

    @property
    def kept(self) -> frozenset[str]:
        """The dependencies that the order never inverts."""
        return REFINEMENTS[self.refines]

    @property
    def supplies(self) -> frozenset[str]:
        """The closure that comes with the order: a prefix holds all that its members follow."""
        return self.kept if self.form == "log" else frozenset()

    def implies(self, other: Order) -> bool:
        """Whether what this order shows could have been shown by the other one."""
        wide = SCOPES.index(self.scope) >= SCOPES.index(other.scope)
        form = self.form == other.form or other.form == "sort"
        return wide and form and other.kept <= self.kept

    def __str__(self) -> str:
        return f"{self.scope} {self.form} refining {self.refines}"


class Config(msgspec.Struct, frozen=True):
    """One point of the table: (C, O, R, F)."""

    closure: frozenset[str] = frozenset()
    order: Order = Order()
    time: Literal["never", "settled", "real_time"] = "never"
    returns: Literal["register"] = "register"

    @property
    def effective(self) -> frozenset[str]:
        """C together with the closure that O supplies."""
        return self.closure | self.order.supplies

    def implies(self, other: Config) -> bool:
        """Whether every execution of this configuration is one of the other."""
        time = self.time == other.time or other.time == "never"
        return time and other.effective <= self.effective and self.order.implies(other.order)

    def __str__(self) -> str:
        inside = ",".join(name for name in CLOSURES if name in self.closure) or "none"
        text = f"C({inside}) O({self.order})"
        return text if self.time == "never" else f"{text} R({self.time})"


def _config(closure: str, order: Order, time: Literal["never", "settled", "real_time"] = "never",
            ) -> Config:  # fmt: skip
    return Config(frozenset(closure.split()), order, time)


_LOG = Order("shared", "log", "causality")
NAMED: dict[str, Config] = {
    "linearizable": Config(ALL, _LOG, "real_time"),
    "sequential": Config(ALL, _LOG),
    "causal_convergence": Config(ALL, Order("shared", "sort", "causality")),
    "causal": Config(ALL, Order("local", "log", "causality")),
    "pram": _config("own grow session", Order("local", "log", "session")),
    "read_your_writes": _config("own", Order("shared")),
    "monotonic_reads": _config("grow", Order("shared")),
    "monotonic_writes": _config("session", Order("shared", "sort", "session")),
    "writes_follow_reads": _config("reads", Order("shared", "sort", "reads")),
    "eventual": _config("", Order("shared"), "settled"),
}
"""The named models, strongest first where they compare.

`sequential`: all views are prefixes of one log that keeps each session's order. `causal` is causal
memory (Ahamad et al., 1995), `causal_convergence` that of Burckhardt and of Viotti and Vukolic.
The session guarantees take one order of versions for all observers (Terry et al., 1994).
"""


def named(name: str) -> Config:
    """The configuration of a named model, or an error with the nearest name."""
    try:
        return NAMED[name]
    except (KeyError, TypeError):
        fix = did_you_mean(str(name), NAMED)
        raise SpecError("model", f"{name!r} is not in the table", fix) from None


def strongest(held: set[str]) -> tuple[str, ...]:
    """The models of a set that no other of the set implies, in the order of the table."""
    return tuple(
        name
        for name in NAMED
        if name in held
        and not any(o != name and o in held and NAMED[o].implies(NAMED[name]) for o in NAMED)
    )


def next_stronger(held: set[str], failed: set[str]) -> str:
    """The weakest failed model that implies the nearest one that holds, or "" at the top.

    Where nothing in the table stands above the nearest one, the weakest failed model at all.
    """
    best = strongest(held)
    above = {n for n in failed if best and NAMED[n].implies(NAMED[best[0]])}
    return next(iter(_weakest(above) or _weakest(failed)), "")


def _weakest(names: set[str]) -> list[str]:
    """The models of a set that imply no other of the set, in the order of the table."""
    return [
        name
        for name in NAMED
        if name in names
        and not any(o != name and o in names and NAMED[name].implies(NAMED[o]) for o in NAMED)
    ]
