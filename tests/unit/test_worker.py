"""`Worker`: ranks, groups, tags, lost ranks, monitors, and the second example of the design."""

from __future__ import annotations

import numpy as np
import pytest

from orrery import Monitor, Node, Worker, World, cost, run
from orrery.base.errors import DeadlineExceeded, KnobError, PartError
from orrery.base.rand import Stream
from orrery.parts.collectives import Collective, Ring
from orrery.parts.worker import RankLost, Task
from orrery.systems.collectives import Tree
from orrery.world import Crash, Group


def emitted(made, name):
    return {r.node: r.values[name] for r in made.records if name in r.values}


class LeastSquares(Task):
    """Find the weights that made the data; each rank has its own rows."""

    rows: int = 40
    columns: int = 5

    def start_weights(self):
        return np.zeros(self.columns)

    def share(self, rank, size, rng):
        return Rows(self, rank)


class Rows:
    def __init__(self, task, rank):
        rng = Stream(5, rank, "rows").numpy()
        self.x = rng.standard_normal((task.rows, task.columns))
        self.y = self.x @ np.arange(task.columns)

    @cost(flops=lambda self, weights: 4 * self.x.size, bytes=lambda self, weights: self.x.nbytes)
    def grad(self, weights):
        return self.x.T @ (self.x @ weights - self.y) / len(self.y)

    def loss(self, weights):
        return float(np.mean((self.x @ weights - self.y) ** 2))


class LocalSGD(Worker):
    """Average the parameters every `every` steps (Stich, 2019)."""

    every: int = 8

    async def main(self):
        for step in self.steps():
            grad = await self.compute(self.task.grad, self.weights)
            self.weights -= self.rate * grad
            if step % self.every == 0:
                self.weights = await self.mean(self.weights)
        self.emit(weights=self.weights, loss=self.task.loss(self.weights))


def test_the_second_example_of_the_design_learns():
    made = run(LocalSGD(training=LeastSquares(steps=80)), world=World.lan(4), seed=7)
    weights = emitted(made, "weights")
    assert len(weights) == 4
    assert all(w.tobytes() == weights[0].tobytes() for w in weights.values())
    assert max(emitted(made, "loss").values()) < 1e-3
    assert made.seconds > 10 * 2 * 3 * 0.0005 * 0.9  # ten averages of six latencies, and compute


def test_one_rank_equals_the_sequential_reference():
    task = LeastSquares(steps=20)
    made = run(LocalSGD(training=task), world=World.lan(1))
    share, weights = task.share(0, 1, None), task.start_weights()
    for _ in range(20):
        weights = weights - task.rate * share.grad(weights)
    assert emitted(made, "weights")[0].tobytes() == weights.tobytes()
    assert made.extra["transfer_bytes"] == 0


def test_a_worker_without_a_task_says_what_to_give():
    with pytest.raises(PartError, match="nothing to learn; give training="):
        run(LocalSGD(), world=World.lan(2))
    with pytest.raises(KnobError, match=r"LocalSGD\.training"):
        LocalSGD(training=5)


@pytest.mark.parametrize(
    "knobs", [{"collective": 3}, {"patience_s": 0}, {"on_lost": "shrug"}, {"patience": 1}]
)
def test_bad_knobs_are_named(knobs):
    with pytest.raises(KnobError, match=rf"Worker\.{next(iter(knobs))}"):
        Worker(**knobs)


def test_arrays_of_any_kind():
    class Kinds(Worker):
        async def main(self):
            r = self.rank
            self.emit(
                flat=await self.mean(np.float16(r)),
                cube=await self.sum(np.full((2, 3, 4), r, np.int8)),
                truth=await self.sum([r == 0, True, False]),
                empty=await self.max(np.empty((0, 3))),
                whole=await self.mean(np.array([1, 2]) * r),
                nan=await self.min([np.nan if r == 1 else 1.0, 2.0 - r]),
                view=await self.sum(np.arange(12).reshape(3, 4).T[::2]),
                rows=await self.reduce_scatter(np.ones((5, 2)) * r),
                own=await self.all_gather(np.arange(r)),
            )

    made = run(Kinds(), world=World.lan(3))
    assert len(made.records) == 3
    for record in made.records:
        got = record.values
        assert got["flat"] == 1.0 and got["flat"].shape == () and got["flat"].dtype == np.float16
        assert got["cube"].shape == (2, 3, 4) and got["cube"].dtype == np.int8
        assert (got["cube"] == 3).all()
        assert got["truth"].tolist() == [1, 3, 0]
        assert got["empty"].shape == (0, 3)
        assert got["whole"].tolist() == [1.0, 2.0]
        assert np.isnan(got["nan"][0]) and got["nan"][1] == 0.0
        assert (got["view"] == 3 * np.arange(12).reshape(3, 4).T[::2]).all()
        assert got["rows"].shape == ((2, 2) if record.node < 2 else (1, 2))
        assert [len(each) for each in got["own"]] == [0, 1, 2]


def test_float16_overflows_to_infinity_without_a_warning():
    class Big(Worker):
        async def main(self):
            self.emit(total=await self.sum(np.full(3, 60000, np.float16)))

    assert np.isinf(emitted(run(Big(), world=World.lan(2)), "total")[0]).all()


def test_results_share_no_memory_with_inputs():
    class Careful(Worker):
        async def main(self):
            x = np.ones(6)
            for call in (self.sum, self.mean, self.broadcast, self.scan, self.scatter):
                (await call(x))[...] = 9.0
            for blocks in (await self.all_gather(x), await self.all_to_all(x)):
                for block in blocks:
                    block[...] = 9.0
            self.emit(x=x)

    for size in (1, 2):
        for collective in (Ring(), Tree(), Collective()):
            made = run(Careful(collective=collective), world=World.lan(size))
            assert all((x == 1).all() for x in emitted(made, "x").values())


def test_groups_have_their_own_ranks_and_collectives():
    class Grid(Worker):
        async def main(self):
            row = self.group([r for r in range(self.size) if r // 3 == self.rank // 3])
            column = self.group([r for r in range(self.size) if r % 3 == self.rank % 3])
            both = await self.all(row.sum([self.rank]), column.sum([self.rank]))
            back = self.group(range(self.size - 1, -1, -1))
            pair = column.group([1, 0])
            self.emit(row=int(both[0][0]), column=int(both[1][0]), place=(row.rank, column.rank),
                      scan=int((await back.scan([1]))[0]), pair=pair.rank)  # fmt: skip

    made = run(Grid(), world=World.lan(6))
    assert emitted(made, "row") == {0: 3, 1: 3, 2: 3, 3: 12, 4: 12, 5: 12}
    assert emitted(made, "column") == {0: 3, 1: 5, 2: 7, 3: 3, 4: 5, 5: 7}
    assert emitted(made, "place")[4] == (1, 1)
    assert emitted(made, "scan") == {node: 6 - node for node in range(6)}
    assert emitted(made, "pair")[0] == 1 and emitted(made, "pair")[3] == 0


def test_a_role_is_a_group_and_a_part_over_many_groups_is_one():
    class Other(Node):
        pass

    class Who(Worker):
        async def main(self):
            self.emit(who=(self.rank, self.size), total=int((await self.sum([1]))[0]))

    world = World(groups=(Group(name="boss", count=1), Group(name="worker", count=3)))
    made = run({"boss": Other(), "worker": Who()}, world=world)
    assert emitted(made, "who") == {1: (0, 3), 2: (1, 3), 3: (2, 3)}
    mixed = run(Who(), world=world)
    assert emitted(mixed, "total") == dict.fromkeys(range(4), 4)


def test_tags_run_side_by_side_and_one_tag_does_not():
    class Twice(Worker):
        async def main(self):
            x = np.full(1000, float(self.rank))
            got = await self.all(*(self.sum(x * i, tag=f"t{i}") for i in range(4)))
            self.emit(got=[float(each[0]) for each in got])

    made = run(Twice(), world=World.lan(3))
    assert emitted(made, "got") == {rank: [0.0, 3.0, 6.0, 9.0] for rank in range(3)}

    class Clash(Worker):
        async def main(self):
            await self.all(self.sum([1]), self.sum([2]))

    with pytest.raises(PartError, match="runs under this tag already; give tag="):
        run(Clash(), world=World.lan(2))


def test_send_and_recv_keep_the_order_though_transfers_overtake():
    class Pair(Worker):
        async def main(self):
            if self.rank == 0:
                # The first is large, so the small ones after it would arrive before it.
                await self.all(*(self.send(1, np.full(n, n)) for n in (10**6, 1, 2, 3)))
            else:
                self.emit(sizes=[len(await self.recv(0)) for _ in range(4)])

    made = run(Pair(), world=World.lan(2))
    assert emitted(made, "sizes") == {1: [10**6, 1, 2, 3]}


def test_a_long_run_keeps_few_inboxes():
    from orrery.engines.virtual.engine import Engine

    class Long(Worker):
        async def main(self):
            for _ in range(100):
                await self.sum(np.ones(4))

    engine = Engine({"node": Long()}, world=World.lan(4), part=Long())
    engine.run()
    assert len(engine.flows._inboxes) <= 4 * 8


class Lossy(Worker):
    async def main(self):
        try:
            for _ in range(1000):
                await self.sum(np.ones(50_000))
        except RankLost as lost:
            self.emit(rank=lost.rank, at_s=self.now, says=str(lost))
            with pytest.raises(RankLost):
                await self.sum([1])  # the group stays lost
            rest = await self.survivors("after")
            self.emit(total=int((await rest.sum([1]))[0]))


@pytest.mark.parametrize("collective", [Ring(), Tree(), Collective()])
def test_a_lost_rank_raises_and_the_survivors_go_on(collective):
    world = World.lan(5).with_faults(Crash(node=2, at_s=0.05))
    made = run(Lossy(patience_s=0.5, collective=collective), world=world)
    assert emitted(made, "total") == dict.fromkeys([0, 1, 3, 4], 4)
    assert all(0.5 <= at_s < 2.0 for at_s in emitted(made, "at_s").values())
    assert "patience_s = 0.5" in emitted(made, "says")[3]


def test_a_lost_rank_stops_the_others_where_that_is_declared():
    world = World.lan(3).with_faults(Crash(node=2, at_s=0.05))
    made = run(Lossy(patience_s=0.5, on_lost="stop"), world=world)
    assert sorted(emitted(made, "lost")) == [0, 1]
    assert emitted(made, "total") == {}


def test_a_restarted_rank_is_a_stranger_to_its_old_group():
    class Naive(Worker):
        async def main(self):
            try:
                for number in range(20):
                    total = await self.sum(np.full(1000, float(self.incarnation)))
                    self.emit(number=number, total=float(total[0]))
                    await self.sleep(0.01)
            except RankLost:
                self.emit(gone=True)

    world = World.lan(3).with_faults(Crash(node=1, at_s=0.05, until_s=0.06))
    made = run(Naive(patience_s=0.3), world=world)
    # Nobody took an array of the second life for one of the first.
    assert {r.values["total"] for r in made.records if "total" in r.values} == {0.0}
    assert set(emitted(made, "gone")) == {0, 1, 2}


def test_a_collective_that_was_cut_off_is_not_mixed_with_the_next():
    class Hasty(Worker):
        async def main(self):
            try:
                async with self.deadline(0.001):
                    await self.sum(np.ones(10**6))
            except DeadlineExceeded:
                self.emit(late=True)
            self.emit(other=float((await self.sum([2.0], tag="other"))[0]))
            await self.sum([1.0])

    with pytest.raises(PartError, match="all_reduce was cut off under this tag"):
        run(Hasty(), world=World.lan(2))


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda w: w.sum([object()]), "no array of numbers"),
        (lambda w: w.all_reduce([1], "sun"), 'did you mean "sum"'),
        (lambda w: w.broadcast([1], root=2), "no such rank; ranks are 0..1"),
        (lambda w: w.gather([1], root="a"), "is not a rank"),
        (lambda w: w.scatter([[1]]), "a list of 2 arrays"),
        (lambda w: w.all_to_all(7), "a list of 2 arrays"),
        (lambda w: w.reduce_scatter(3.0), "cannot be cut"),
        (lambda w: w.send(-1, [1]), "no such rank"),
        (lambda w: w.sum(np.ones(1 + w.rank)), "ranks disagree"),
        (lambda w: w.sum(np.ones(2, "f4" if w.rank else "f8")), "ranks disagree"),
    ],
)  # fmt: skip
def test_bad_calls_are_named(call, says):
    class Bad(Worker):
        async def main(self):
            self.emit(got=await call(self))

    with pytest.raises(PartError, match=says):
        run(Bad(), world=World.lan(2))


@pytest.mark.parametrize("ranks, says", [([0, 0], "once"), ([], "once"), ([1], "not in it")])
def test_bad_groups_are_named(ranks, says):
    class Bad(Worker):
        async def main(self):
            if self.rank == 0:
                self.group(ranks)

    with pytest.raises(PartError, match=says):
        run(Bad(), world=World.lan(2))


def test_monitors_see_every_collective_and_can_change_nothing():
    class Watch(Monitor):
        def start(self):
            self.seen = []

        def before_collective(self, time_s, node, kind, tag, data):
            self.seen.append(("before", node, kind, tag, float(np.sum(data))))
            with pytest.raises(ValueError, match="read-only"):
                data[0] = 7.0

        def after_collective(self, time_s, node, kind, tag, data):
            self.seen.append(("after", node, kind, tag, float(np.sum(data))))

        def metrics(self):
            return {"seen": float(len(self.seen))}

    class Sum(Worker):
        async def main(self):
            await self.sum(np.full(2, self.rank + 1.0), tag="g")

    watch = Watch()
    made = run(Sum(), world=World.lan(2), monitors=[watch])
    assert made.metrics["seen"] == 4
    assert ("before", 1, "all_reduce", "g", 4.0) in watch.seen
    assert ("after", 0, "all_reduce", "g", 6.0) in watch.seen
    assert run(Sum(), world=World.lan(2)).digest == made.digest


def test_both_kernels_and_wire_mode_agree():
    part = LocalSGD(training=LeastSquares(steps=16))
    digests = {run(part, world=World.lan(3), kernel=k).digest for k in ("python", "c")}
    assert len(digests) == 1
    wired = run(part, world=World.lan(3), wire=True)
    plain = run(part, world=World.lan(3))
    assert emitted(wired, "loss") == emitted(plain, "loss")
