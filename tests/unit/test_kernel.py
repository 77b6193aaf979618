"""What the kernel promises to a node, asked of both kernels."""

from __future__ import annotations

import gc
import weakref

import pytest

from orrery import Node, World, rpc, run
from orrery.base.errors import DeadlineExceeded, PartError, Refused
from orrery.world import Crash, Pause

QUIET = World.lan(3, latency_s=0.001, jitter=0.0, bandwidth_Bps=1e15)


def records(run_, name):
    return [r.values[name] for r in run_.records if name in r.values]


def times(run_, name):
    return [round(r.time_s, 9) for r in run_.records if name in r.values]


class Base(Node):
    """Node 0 runs the `script` of a test; the others only answer."""

    def start(self):
        self.got = []

    @rpc
    def double(self, x: int) -> int:
        return 2 * x

    @rpc
    async def slow(self, x: int, s: float = 0.5) -> int:
        await self.sleep(s)
        return x

    @rpc
    def refuse(self) -> None:
        raise Refused("not today")

    @rpc
    async def note(self, what: str, sender: int) -> None:
        self.emit(note=what, sender=sender)

    async def main(self):
        if self.id == 0:
            await self.script()

    async def script(self):
        pass


def play(script, kernel, world=QUIET, **options):
    part = type("Script", (Base,), {"script": script, "__doc__": "A script."})()
    return run(part, world=world, kernel=kernel, **options)


def test_sleep_takes_exactly_its_time(kernel):
    async def script(self):
        await self.sleep(0.25)
        self.emit(now=self.now)
        await self.sleep(0)
        self.emit(now=self.now)

    assert records(play(script, kernel), "now") == [0.25, 0.25]


def test_ask_takes_two_latencies_and_gives_the_value(kernel):
    async def script(self):
        self.emit(value=await self.ask(1, Base.double, 21))

    done = play(script, kernel)
    assert records(done, "value") == [42]
    assert times(done, "value") == [0.002]


def test_arguments_by_name_and_default(kernel):
    async def script(self):
        self.emit(value=await self.ask(1, Base.slow, x=7))
        self.emit(value=await self.ask(1, Base.slow, 8, s=0.1))

    done = play(script, kernel)
    assert records(done, "value") == [7, 8]
    assert times(done, "value") == [0.502, 0.604]


def test_the_sender_is_filled_in_by_the_engine(kernel):
    async def script(self):
        self.tell(2, Base.note, "hello")

    done = play(script, kernel)
    assert records(done, "sender") == [0]


def test_a_refusal_reaches_the_caller_and_nobody_else(kernel):
    async def script(self):
        try:
            await self.ask(1, Base.refuse)
        except Refused as no:
            self.emit(no=str(no))
        self.emit(value=await self.ask(1, Base.double, 1))

    done = play(script, kernel)
    assert records(done, "no") == ["not today"] and records(done, "value") == [2]


def test_a_refusal_to_a_tell_ends_the_run(kernel):
    async def script(self):
        self.tell(1, Base.refuse)

    with pytest.raises(PartError, match="node 1 failed at 0.001"):
        play(script, kernel)


def test_a_deadline_ends_a_wait_and_only_then(kernel):
    async def script(self):
        try:
            async with self.deadline(0.1):
                await self.ask(1, Base.slow, 1)
        except DeadlineExceeded as late:
            self.emit(late=str(late), at=self.now)
        async with self.deadline(10.0):
            self.emit(value=await self.ask(1, Base.slow, 2))

    done = play(script, kernel)
    assert records(done, "late") == ["deadline of 0.1 s exceeded"]
    assert records(done, "at") == [0.1]
    assert records(done, "value") == [2]


def test_the_inner_or_the_outer_deadline_whichever_is_first(kernel):
    async def script(self):
        try:
            async with self.deadline(0.1):
                try:
                    async with self.deadline(0.2):
                        await self.sleep(1)
                except DeadlineExceeded:
                    self.emit(who="inner")
        except DeadlineExceeded:
            self.emit(who="outer")
        try:
            async with self.deadline(0.2):
                try:
                    async with self.deadline(0.1):
                        await self.sleep(1)
                except DeadlineExceeded:
                    self.emit(who="inner")
                await self.sleep(0.05)
                self.emit(who="goes on")
        except DeadlineExceeded:
            self.emit(who="outer")

    assert records(play(script, kernel), "who") == ["outer", "inner", "goes on"]


def test_a_deadline_is_entered_once(kernel):
    async def script(self):
        deadline = self.deadline(1.0)
        async with deadline:
            pass
        async with deadline:
            pass

    with pytest.raises(PartError, match="entered once"):
        play(script, kernel)


class DeadlineInHandler(Base):
    @rpc
    async def patient(self) -> str:
        try:
            async with self.deadline(0.2):
                await self.sleep(1)
        except DeadlineExceeded:
            return f"gave up at {self.now:.3f}"
        return "done"

    async def script(self):
        self.emit(said=await self.ask(1, DeadlineInHandler.patient))


def test_a_deadline_in_a_handler(kernel):
    done = run(DeadlineInHandler(), world=QUIET, kernel=kernel)
    assert records(done, "said") == ["gave up at 0.201"]


def test_first_cancels_the_rest_and_all_keeps_order(kernel):
    async def script(self):
        ended = []

        async def work(s):
            try:
                await self.sleep(s)
                return s
            finally:
                ended.append(s)

        self.emit(first=await self.first(work(0.3), work(0.1), work(0.2)), at=self.now)
        await self.sleep(0)
        self.emit(ended=list(ended))
        self.emit(all=await self.all(work(0.3), work(0.1)), at=self.now)

    done = play(script, kernel)
    assert records(done, "first") == [(1, 0.1)]
    assert records(done, "ended") == [[0.1, 0.3, 0.2]]
    assert records(done, "all") == [[0.3, 0.1]]
    assert records(done, "at") == [0.1, 0.4]


def test_all_passes_the_first_error_on_and_cancels(kernel):
    async def script(self):
        async def bad():
            await self.sleep(0.1)
            raise ValueError("broken")

        try:
            await self.all(bad(), self.sleep(5))
        except ValueError as error:
            self.emit(error=str(error), at=self.now)

    done = play(script, kernel)
    assert records(done, "at") == [0.1] and done.seconds == pytest.approx(0.1)


def test_a_queue_gives_in_order_and_loses_nothing_to_a_cancelled_getter(kernel):
    async def script(self):
        queue = self.queue()

        async def get(name):
            self.emit(got=(name, await queue.get()))

        a = self.spawn(get("a"))
        self.spawn(get("b"))
        await self.sleep(0.1)
        queue.put(1)
        a.cancel()  # in the same instant: the item must go to b
        await self.sleep(0.1)
        queue.put(2)
        queue.put(3)
        self.emit(left=len(queue))
        self.emit(got=("self", await queue.get()))

    done = play(script, kernel)
    assert records(done, "got") == [("b", 1), ("self", 2)]
    assert records(done, "left") == [2]


def test_a_lock_is_fair_and_survives_a_cancelled_waiter(kernel):
    async def script(self):
        lock = self.lock()

        async def use(name, s):
            async with lock:
                self.emit(enter=name, at=self.now)
                await self.sleep(s)

        self.spawn(use("a", 0.3))
        await self.sleep(0.1)
        b = self.spawn(use("b", 0.1))
        self.spawn(use("c", 0.1))
        await self.sleep(0.1)
        b.cancel()

    done = play(script, kernel)
    assert records(done, "enter") == ["a", "c"]
    assert records(done, "at") == [0.0, 0.3]


def test_an_event_wakes_all_that_wait_with_its_value(kernel):
    async def script(self):
        event = self.event()

        async def wait(name):
            self.emit(woke=(name, await event.wait()))

        self.spawn(wait(1))
        self.spawn(wait(2))
        await self.sleep(0.1)
        event.set("now")
        self.emit(flag=event.is_set())
        self.emit(woke=(3, await event.wait()))
        event.clear()
        self.emit(flag=event.is_set())

    done = play(script, kernel)
    assert records(done, "woke") == [(3, "now"), (1, "now"), (2, "now")]
    assert records(done, "flag") == [True, False]


def test_many_ended_waits_do_not_pile_up(kernel):
    async def script(self):
        event = self.event()
        for _ in range(500):
            try:
                async with self.deadline(0.001):
                    await event.wait()
            except DeadlineExceeded:
                pass
        event.set()
        self.emit(done=True)

    assert records(play(script, kernel), "done") == [True]


def test_awaiting_a_task_gives_its_value_or_its_error(kernel):
    async def script(self):
        async def good():
            await self.sleep(0.1)
            return 5

        async def bad():
            await self.sleep(0.1)
            raise KeyError("lost")

        task = self.spawn(good())
        self.emit(value=await task, done=task.done)
        self.emit(again=await task)
        try:
            await self.spawn(bad())
        except KeyError:
            self.emit(caught=True)

    done = play(script, kernel)
    assert records(done, "value") == [5] and records(done, "again") == [5]
    assert records(done, "caught") == [True]


def test_an_unhandled_error_names_node_time_seed_and_place(kernel):
    async def script(self):
        await self.sleep(0.5)
        raise ZeroDivisionError("by zero")

    with pytest.raises(PartError) as caught:
        play(script, kernel, seed=11)
    text = str(caught.value)
    assert "node 0" in text and "0.500000000 s" in text and "seed 11" in text
    assert "test_kernel.py" in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_foreign_awaitable_is_named(kernel):
    import asyncio

    async def script(self):
        await asyncio.sleep(1)

    with pytest.raises(PartError, match=r"not of this engine|no running event loop"):
        play(script, kernel)


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_impossible_durations_are_refused(kernel, bad):
    async def script(self):
        for wait in (self.sleep, self.deadline):
            try:
                async with self.deadline(1):
                    if wait == self.sleep:
                        await self.sleep(bad)
                    else:
                        self.deadline(bad)
            except PartError as error:
                self.emit(error=str(error))

    assert all("seconds >= 0" in e for e in records(play(script, kernel), "error"))


@pytest.mark.parametrize("peer", [3, -1, 99, "one", None])
def test_a_peer_that_is_not_there_is_named(kernel, peer):
    async def script(self):
        self.tell(peer, Base.double, 1)

    with pytest.raises(PartError, match=r"there is no node .*ids are 0\.\.2"):
        play(script, kernel)


def test_a_method_that_is_no_rpc_is_named(kernel):
    async def script(self):
        self.tell(1, Base.script)

    with pytest.raises(PartError, match="put @rpc above"):
        play(script, kernel)


class Lossy(Node):
    count: int = 4000

    @rpc
    def hear(self, i: int) -> None:
        self.emit(heard=i)

    async def main(self):
        if self.id == 0:
            for i in range(self.count):
                self.tell(1, Lossy.hear, i)


def test_loss_is_the_asked_fraction(kernel):
    done = run(Lossy(), world=World.lan(2, drop=0.3), kernel=kernel, seed=3)
    heard = len(records(done, "heard"))
    assert abs(heard / 4000 - 0.7) < 4 * (0.3 * 0.7 / 4000) ** 0.5


@pytest.mark.parametrize("fifo", [True, False])
def test_jitter_reorders_only_where_order_is_not_promised(kernel, fifo):
    world = World.lan(2, latency_s=0.001, jitter=0.9, bandwidth_Bps=1e15).with_(
        **{"network.fifo": fifo}
    )
    heard = records(run(Lossy(count=500), world=world, kernel=kernel), "heard")
    assert sorted(heard) == list(range(500))
    assert (heard == sorted(heard)) is fifo


def test_the_senders_line_is_a_queue(kernel):
    # 64 + 4 + 8 bytes at 76,000 bytes a second are one millisecond each.
    world = World.lan(2, latency_s=0.5, jitter=0.0, bandwidth_Bps=76_000.0)
    done = run(Lossy(count=3), world=world, kernel=kernel)
    assert times(done, "heard") == [0.501, 0.502, 0.503]


class Rounds(Node):
    @rpc
    def hear(self, who: int) -> None:
        self.emit(heard=(who, self.id))

    async def main(self):
        for _ in range(3):
            for peer in self.peers:
                self.tell(peer, Rounds.hear, self.id)
            await self.sleep(1.0)
            self.emit(round=self.now)


def test_in_rounds_everything_arrives_before_the_next_begins(kernel):
    done = run(Rounds(), world=World.rounds(4), kernel=kernel)
    heard = 0
    for record in done.records:
        if "heard" in record.values:
            heard += 1
        else:
            assert heard == 12 * round(record.time_s)


class Phoenix(Node):
    def start(self):
        self.born = self.now

    @rpc
    def ping(self) -> float:
        return self.born

    async def main(self):
        self.emit(born=self.born, life=self.incarnation)
        try:
            await self.sleep(10)
        finally:
            self.emit(last_words=True)  # a dead node is not heard
            for peer in self.peers:
                self.tell(peer, Phoenix.ping)


def test_a_crash_ends_the_node_and_only_it(kernel):
    world = QUIET.with_faults(Crash(node=1, at_s=1.0, until_s=2.0))
    done = run(Phoenix(), world=world, kernel=kernel, until_s=5.0)
    assert records(done, "born") == [0.0, 0.0, 0.0, 2.0]
    assert records(done, "life") == [0, 0, 0, 1]
    assert records(done, "last_words") == []
    assert done.messages == 0


class Paused(Node):
    @rpc
    def hear(self, i: int) -> None:
        self.emit(heard=i)

    async def main(self):
        if self.id == 0:
            for i in range(5):
                await self.sleep(1.0)
                self.tell(1, Paused.hear, i)
        else:
            while self.now < 6:
                await self.sleep(0.7)
                self.emit(tick=self.id)


def test_a_paused_node_catches_up_in_order(kernel):
    world = QUIET.with_faults(Pause(node=1, at_s=1.5, until_s=4.2))
    done = run(Paused(), world=world, kernel=kernel)
    assert records(done, "heard") == [0, 1, 2, 3, 4]
    assert times(done, "heard") == [1.001, 4.2, 4.2, 4.2, 5.001]
    ticks = [round(r.time_s, 3) for r in done.records if r.values.get("tick") == 1]
    assert ticks[:4] == [0.7, 1.4, 4.2, 4.9]


class Asker(Node):
    @rpc
    async def never(self) -> None:
        await self.event().wait()

    async def main(self):
        if self.id == 0:
            await self.ask(1, Asker.never)


def test_an_ask_that_can_never_be_answered_is_a_violation(kernel):
    done = run(Asker(), world=QUIET, kernel=kernel)
    assert [v.kind for v in done.violations] == ["unanswered_ask"]
    assert "never" in done.violations[0].message


class Override(Base):
    def double(self, x: int) -> int:
        return 200 * x

    async def script(self):
        self.emit(value=await self.ask(1, Base.double, 1))


def test_a_subclass_answers_with_its_own_method(kernel):
    assert records(run(Override(), world=QUIET, kernel=kernel), "value") == [200]


class Mutator(Node):
    def start(self):
        self.items = [1, 2]

    @rpc
    def take(self, items: list[int]) -> None:
        items.append(3)
        self.emit(took=len(items))

    async def main(self):
        if self.id == 0:
            self.tell(1, Mutator.take, self.items)
            await self.sleep(1)
            self.emit(mine=len(self.items))


def test_wire_mode_ends_aliasing_and_counts_true_bytes(kernel):
    loose = run(Mutator(), world=QUIET, kernel=kernel)
    wired = run(Mutator(), world=QUIET, kernel=kernel, wire=True)
    assert records(loose, "mine") == [3]  # the list was shared
    assert records(wired, "mine") == [2]
    assert wired.bytes == 64 + 4  # header, and ((1, 2),) in MessagePack


def test_nothing_outlives_its_run(kernel):
    class Held:
        pass

    seen = []

    class Keeper(Node):
        def start(self):
            self.held = Held()
            seen.append(weakref.ref(self.held))

        @rpc
        async def hold(self, x: int) -> int:
            await self.sleep(100)
            return x

        async def main(self):
            self.spawn(self.ask(1, Keeper.hold, 3))
            async with self.deadline(50):
                await self.queue().get()

    run(Keeper(), world=QUIET, kernel=kernel, until_s=1.0)
    gc.collect()
    assert seen and not any(ref() for ref in seen)


class Relay(Node):
    @rpc
    def hop(self, left: int) -> None:
        self.emit(hop=left)
        if left:
            self.tell((self.id + 1) % 3, Relay.hop, left - 1)

    async def main(self):
        if self.id == 0:
            self.tell(1, Relay.hop, 4)


def test_in_rounds_an_answer_takes_a_round_of_its_own(kernel):
    done = run(Relay(), world=World.rounds(3), kernel=kernel)
    assert [round(r.time_s) for r in done.records] == [1, 2, 3, 4, 5]


def test_a_start_that_would_never_be_awaited_is_refused_by_name():
    with pytest.raises(PartError, match=r"Late\.start is async.*write `def start`"):

        class Late(Node):
            async def start(self):
                self.state = 1
