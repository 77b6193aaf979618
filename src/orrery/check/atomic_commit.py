"""Atomic commitment: the five properties of Bernstein, Hadzilacos and Goodman (1987, chapter 7).

AC1 all that decide decide the same; AC2 nobody reverses a decision; AC3 commit only if all voted
yes; AC4 with no failure and all votes yes, commit; AC5 once failures are repaired, all decide.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from orrery.base.errors import SpecError
from orrery.check.violation import Violation

COMMIT, ABORT = "commit", "abort"


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """What one transaction's participants voted and decided.

    `votes`: True yes, False no, None never voted; its keys are the participants. `decisions`: each
    node's decisions in order. `failed`: something crashed, was cut off or timed out. `healed`: all
    was repaired for long enough, so that AC5 applies.
    """

    votes: Mapping[Hashable, bool | None]
    decisions: Mapping[Hashable, Sequence[str]]
    failed: bool = False
    healed: bool = True


def atomic_commit(transaction: Transaction, name: str = "") -> list[Violation]:
    """The violations of AC1 to AC5 in one transaction. O(votes + decisions)."""
    tx = transaction
    if not tx.votes:
        raise SpecError("votes", "there is no participant", "give every participant's vote")
    said = f"{name}: " if name else ""
    found = []
    first: dict[str, Hashable] = {}
    for node, decisions in tx.decisions.items():
        for decision in decisions:
            if decision not in (COMMIT, ABORT):
                raise SpecError(
                    f"decisions[{node!r}]", f"{decision!r}", f'use "{COMMIT}" or "{ABORT}"'
                )
            first.setdefault(decision, node)
        if len(set(decisions)) > 1:
            text = f"{said}{node!r} decided {decisions[0]} and then the opposite"
            found.append(Violation("reversed", text, {"node": node, "decisions": tuple(decisions)}))
    if len(first) == 2:
        text = f"{said}{first[COMMIT]!r} committed and {first[ABORT]!r} aborted"
        found.append(Violation("split_decision", text, (first[COMMIT], first[ABORT])))
    not_yes = tuple(node for node, vote in tx.votes.items() if vote is not True)
    if COMMIT in first and not_yes:
        text = f"{said}{first[COMMIT]!r} committed although {not_yes[0]!r} did not vote yes"
        found.append(Violation("commit_without_yes", text, (first[COMMIT], *not_yes)))
    if not tx.failed and not not_yes and ABORT in first:
        text = f"{said}{first[ABORT]!r} aborted although all voted yes and nothing failed"
        found.append(Violation("needless_abort", text, (first[ABORT],)))
    if tx.healed:
        for node in tx.votes:
            if not tx.decisions.get(node):
                text = f"{said}{node!r} never decided although all failures were repaired"
                found.append(Violation("undecided", text, (node,)))
    return found


def atomic_commits(transactions: Mapping[Hashable, Transaction]) -> list[Violation]:
    """The violations of many transactions, each named in its messages. O(total)."""
    return [v for name, tx in transactions.items() for v in atomic_commit(tx, str(name))]
