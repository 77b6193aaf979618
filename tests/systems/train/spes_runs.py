"""Runs of SPES that several tests look at, and what must be true of them."""

from __future__ import annotations

from orrery import World, run
from orrery.models.learn import mixture
from orrery.systems.train import DataParallel
from orrery.systems.train.problems.data_parallel import final
from orrery.systems.train.spes import SPES

TINY = {"width": 8, "heads": 1, "layer_count": 1, "context": 4, "symbols": 8}


def trained(part, ranks=2, seed=1, world=None, engine="virtual", more=None, **knobs):
    problem = DataParallel(**{"task": "experts", "more": more or {}, **knobs})
    return run(part, problem=problem, world=world or World.lan(ranks), seed=seed, engine=engine)


def tiny(part, ranks=4, experts=8, **knobs):
    """A run of a model so small that only what is sent and kept matters."""
    more = {**TINY, "experts": experts, **knobs.pop("more", {})}
    return trained(part, ranks, more=more, **{"steps": 12, "batch": 2, **knobs})


def syncs(made):
    """What the nodes said at the end of each round: {round: {node: values}}."""
    found = {}
    for record in made.records:
        if "sync" in record.values:
            found.setdefault(record.values["sync"], {})[record.node] = record.values
    return found


def disagreeing(made, crashed=()):
    """The rounds after which two nodes that live on did not hold the same weights."""
    return [
        number
        for number, rows in syncs(made).items()
        if len({row["mark"] for node, row in rows.items() if node not in crashed}) > 1
    ]


def miscounted(made, problem):
    """Nodes whose optimiser state, uploads or downloads are not what their experts come to."""
    sizes = [sum(p.stop - p.start for p in where) for where in problem.learning().pieces()]
    shared, experts = sizes[0], sizes[1:]
    whole, wrong = shared + sum(experts), []
    for node, values in final(made).items():
        # Without a loss of nodes the owners are the same in all rounds.
        own = shared + sum(experts[e] for e in syncs(made)[0][node]["own"])
        rows = [row[node] for row in syncs(made).values()]
        right = all(row["up_B"] == 4 * own for row in rows)
        right &= all(row["down_B"] == 4 * (whole - own + shared) for row in rows)
        if not right or values["optimiser_B"] != 2 * 4 * own:
            wrong.append(node)
    return sorted(wrong)


class Watched(SPES):
    """Tells at the end of each round which experts have changed since it began."""

    def _settle(self):
        super()._settle()
        self.first = self.weights.copy()

    async def meet(self, mine):
        moved = [
            expert for expert in range(self.experts)
            if mixture.pack(self.weights, self.pieces[expert]).tobytes()
            != mixture.pack(self.first, self.pieces[expert]).tobytes()
        ]  # fmt: skip
        self.emit(round=self.round, moved=moved, own=list(self.of[self.rank]))
        await super().meet(mine)


def thawed(made):
    """(round, node) where an expert of others changed, or none of its own did."""
    return [
        (record.values["round"], record.node)
        for record in made.records
        if "moved" in record.values
        and not (
            record.values["moved"] and set(record.values["moved"]) <= set(record.values["own"])
        )
    ]


def untrained(made, experts):
    """Experts that nobody changed in the last round."""
    last = max(r.values["round"] for r in made.records if "moved" in r.values)
    moved = [r.values["moved"] for r in made.records if r.values.get("round") == last]
    return sorted(set(range(experts)) - {e for row in moved for e in row})
