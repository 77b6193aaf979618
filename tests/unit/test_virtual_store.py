"""The modelled object store: atomic conditional puts, time, prices, crashes."""

from __future__ import annotations

from typing import Any

import pytest

from orrery.base.errors import PartError, WorldError
from orrery.engines.virtual.engine import Engine
from orrery.parts import Node
from orrery.world import Crash, Machine, ObjectStore, World

STORE = ObjectStore(
    get_latency_s=0.1, put_latency_s=0.2, bandwidth_Bps=1e6, get_price=1.0, put_price=10.0,
    storage_price_per_GB_month=0.0,
)  # fmt: skip
FREE = Machine(idle_W=0.0, active_W=0.0)


def run(body: Any, nodes: int = 1, store: ObjectStore = STORE, faults: Any = ()) -> Any:
    class Client(Node):
        async def main(self) -> None:
            await body(self)

    world = World.lan(nodes).with_(store=store).replace(machines={"server": FREE})
    engine = Engine({"node": Client()}, world=world.with_faults(*faults), kernel="python")
    return engine.run()


def values(outcome: Any, name: str) -> list[Any]:
    return [value for _, _, value in outcome.emitted(name)]


def test_put_get_list_and_tags() -> None:
    async def body(node: Any) -> None:
        store = node.store
        node.emit(got=await store.get("a/1"))
        tag = await store.put("a/1", b"one")
        await store.put("b", b"")
        await store.put("a/0", bytearray(b"zero"))
        node.emit(got=await store.get("a/1") == (b"one", tag))
        node.emit(got=await store.list("a/"))
        node.emit(got=await store.list())
        node.emit(got=await store.put("a/1", b"two") != tag)

    got = values(run(body), "got")
    assert got == [None, True, ["a/0", "a/1"], ["a/0", "a/1", "b"], True]


def test_time_is_latency_plus_bytes() -> None:
    async def body(node: Any) -> None:
        await node.store.put("a", bytes(500_000))
        node.emit(at=node.now)
        await node.store.get("a")
        node.emit(at=node.now)

    assert values(run(body), "at") == pytest.approx([0.7, 1.3])


def test_one_of_many_conditional_puts_wins() -> None:
    async def body(node: Any) -> None:
        node.emit(won=await node.store.put_if("lock", bytes([node.id]), None))
        held = await node.store.get("lock")
        await node.sleep(1.0)
        node.emit(swapped=await node.store.put_if("lock", bytes([node.id]), held[1]))

    outcome = run(body, nodes=6)
    assert sum(tag is not None for tag in values(outcome, "won")) == 1
    assert sum(tag is not None for tag in values(outcome, "swapped")) == 1


def test_a_put_goes_through_although_its_node_crashed() -> None:
    async def body(node: Any) -> None:
        if node.incarnation:
            node.emit(got=await node.store.get("a"))
        elif node.id == 0:
            await node.store.put("a", b"sent")
            node.emit(done=True)

    crash = Crash(node=0, at_s=0.01, until_s=1.0)
    outcome = run(body, faults=[crash])
    assert values(outcome, "done") == []
    assert values(outcome, "got")[0][0] == b"sent"


def test_requests_and_bytes_are_billed() -> None:
    async def body(node: Any) -> None:
        await node.store.put("a", bytes(1000))
        await node.store.get("a")
        await node.store.get("nothing")
        await node.store.list()

    assert run(body).money == pytest.approx(10.0 + 1.0 + 1.0 + 10.0)
    priced = STORE.replace(get_price=0.0, put_price=0.0, storage_price_per_GB_month=1e9)

    async def hold(node: Any) -> None:
        await node.store.put("a", bytes(1000))
        await node.sleep(3600.0)

    # A thousand bytes for an hour of a month of 730 hours, at a unit a byte-month.
    assert run(hold, store=priced).money == pytest.approx(1000 / 730, rel=1e-3)


def test_a_store_without_conditional_put_says_so() -> None:
    async def body(node: Any) -> None:
        with pytest.raises(WorldError, match=r"store\.conditional_put"):
            await node.store.put_if("a", b"", None)
        node.emit(ok=True)

    assert values(run(body, store=STORE.replace(conditional_put=False)), "ok") == [True]


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.get(""),
        lambda store: store.get(3),
        lambda store: store.put("k" * 1025, b""),
        lambda store: store.put("k", "text"),
        lambda store: store.put_if("k", None, None),
        lambda store: store.list(None),
    ],
)
def test_bad_use_has_a_name(act: Any) -> None:
    async def body(node: Any) -> None:
        with pytest.raises(PartError, match="store"):
            await act(node.store)
        node.emit(keys=await node.store.list())

    assert values(run(body), "keys") == [[]]
