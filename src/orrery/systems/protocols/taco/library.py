"""The library: classic fault-tolerant algorithms as .ta files, with the verdicts that are known."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from orrery.base.errors import UsageError, did_you_mean
from orrery.systems.protocols.taco.answer import SAFE, UNKNOWN, UNSAFE
from orrery.systems.protocols.taco.automaton import Automaton
from orrery.systems.protocols.taco.parser import parse

# What each property's verdict must be. Safe ones are theorems of the papers that the files name;
# unsafe ones are either published weaknesses or say that something useful can happen at all.
EXPECTED: dict[str, dict[str, str]] = {
    "aba": {"unforgeability": SAFE, "may_accept": UNSAFE},
    "benor": {"agreement": SAFE, "lock0": SAFE, "validity1": SAFE, "no_toss": UNSAFE},
    "bosco": {"agreement": SAFE, "one_step0": SAFE, "unanimous": UNSAFE},
    "bracha_two": {"agreement": SAFE, "may_accept": UNSAFE},
    "bv_broadcast": {"justification0": SAFE, "justification1": SAFE, "one_value": UNSAFE},
    "cbc": {"agreement": SAFE, "validity0": SAFE, "validity1": SAFE, "one_outcome": UNSAFE},
    "cf1s": {"agreement": SAFE, "one_step0": SAFE, "may_decide": UNSAFE},
    "floodmin": {
        "validity0": SAFE, "validity1": SAFE, "clean_agreement": SAFE, "agreement": UNSAFE,
    },
    "floodmin2": {"validity0": SAFE, "agreement": SAFE, "may_decide": UNSAFE},
    "frb": {"unforgeability": SAFE, "bounded_crashes": SAFE, "may_deliver": UNSAFE},
    "naive_voting": {"agreement": UNSAFE, "honest_agreement": SAFE, "validity0": SAFE},
    "nbac": {"commit_validity": SAFE, "abort_validity": SAFE, "agreement": UNSAFE},
    "strb": {"unforgeability": SAFE, "may_accept": UNSAFE},
}  # fmt: skip
# Automata with resets or decrements: the checkers are semi-decisions here, and may stay undecided.
EXTENDED: dict[str, dict[str, str]] = {
    "lock_reset": {"mutual_exclusion": UNKNOWN, "may_enter": UNSAFE},
    "rounds_reset": {"validity": SAFE, "may_return": UNSAFE},
    "semaphore": {"mutual_exclusion": SAFE, "may_enter": UNSAFE},
    "tickets": {"no_debt": SAFE, "may_run_out": UNSAFE},
}
# The four smallest, which every test run takes.
SMALLEST = ("strb", "naive_voting", "frb", "aba")


def names() -> list[str]:
    """Every automaton of the library."""
    return sorted((*EXPECTED, *EXTENDED))


def text_of(name: str) -> str:
    """The .ta file of a library automaton."""
    if name not in names():
        raise UsageError(f"the library has no automaton {name!r}; {did_you_mean(name, names())}")
    folder = resources.files("orrery.systems.protocols.taco") / "automata"
    return (folder / f"{name}.ta").read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def automaton(name: str) -> Automaton:
    """A library automaton.

    >>> automaton("strb").locations
    ('V0', 'V1', 'SE', 'AC')
    """
    return parse(text_of(name), f"{name}.ta")


def expected(name: str) -> dict[str, str]:
    """The known verdict of each property of a library automaton."""
    return EXPECTED.get(name) or EXTENDED[name]
