"""Stacks of all ranks dumped when nothing moves, and a vote: who is not where most are."""

from __future__ import annotations

from orrery.parts import Positive
from orrery.systems.resilience.problems.flight import Dump
from orrery.systems.resilience.problems.watcher import Ailment, Report, Watcher


class StackVote(Watcher):
    """When no step ends for `quiet_s`, dumps all stacks and blames the smallest group of them.

    What an engineer does with py-spy and pstack on a job that hangs: most ranks stand in the same
    call, and the odd ones are to blame. It is right where all ranks are in one communicator, and
    misled where a pipeline makes victims stand in many different calls.

    Knobs: `quiet_s` without a step; `look_s`, how often it looks.

    Differs from the paper: there is none; it is the usual craft, as in MegaScale's and others'
    accounts of debugging hangs.

    >>> StackVote().quiet_s
    120.0
    """

    quiet_s: Positive = 120.0
    look_s: Positive = 10.0
    counts_steps = True

    async def watch(self) -> None:
        while True:
            await self.sleep(self.look_s)
            if self.steps and self.clock() - self.stepped_s > self.quiet_s:
                self.say(voted(await self.dumps_of(self.ranks)))


def stack(dump: Dump | None) -> str:
    """Where a rank stands, as the top of its stack would tell."""
    if dump is None:
        return "no answer"
    return f"{dump.open[0].slot}/{dump.open[0].kind}" if dump.open else "computing"


def voted(dumps: dict[int, Dump | None]) -> Report:
    """The ranks of the smallest group of equal stacks.

    >>> voted({0: None})
    Report(ailment='insufficient_data', ranks=(), why='all stacks are alike: no answer')
    """
    groups: dict[str, list[int]] = {}
    for rank, dump in dumps.items():
        groups.setdefault(stack(dump), []).append(rank)
    where = min(groups, key=lambda each: (len(groups[each]), each))
    if len(groups) == 1:
        return Report("insufficient_data", (), f"all stacks are alike: {where}")
    named: dict[str, Ailment] = {"no answer": "stopped", "computing": "stuck"}
    return Report(named.get(where, "unknown"), tuple(sorted(groups[where])), f"stands in {where}")
