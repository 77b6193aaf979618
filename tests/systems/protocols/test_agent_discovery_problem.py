"""The problem `agent_discovery`: records, the interface of a directory, its judge, bad input."""

from __future__ import annotations

import pytest

from orrery import run
from orrery.base.errors import KnobError, PartError, Refused, WorldError
from orrery.systems.protocols.agent_discovery_dhts import AgentDirectory, ChordDirectory
from orrery.systems.protocols.baselines.chord import Chord
from orrery.systems.protocols.problems.agent_discovery import AgentDiscovery
from orrery.systems.protocols.problems.capability_records import genuine, sign
from orrery.systems.protocols.problems.directory_node import DirectoryNode
from orrery.systems.protocols.problems.discovery_world import discovery_world

OVERLAYS = ("chord", "pastry", "kademlia")


@pytest.mark.parametrize("scheme", ["keyed", "ed25519"])
def test_a_record_that_was_touched_is_not_genuine(scheme):
    if scheme == "ed25519":
        pytest.importorskip("cryptography")
    record = sign(scheme, key=77, agent=5, expires_ms=9000, body=b"translate")
    assert genuine(scheme, record, 77)
    assert not genuine(scheme, record, 78)
    for lie in ({"agent": 6}, {"expires_ms": 9001}, {"body": b"x"}, {"token": b""}, {"agent": -1}):
        assert not genuine(scheme, record._replace(**lie), 77)
    assert not genuine(scheme, record._replace(key=78), 78)


def test_real_signatures_serve_as_well():
    pytest.importorskip("cryptography")
    made = run(AgentDirectory(signature="ed25519"), problem=AgentDiscovery(nodes=12), seed=1)
    assert made.violations == [] and made.metrics["success_rate"] == 1.0


def test_several_agents_may_offer_one_capability():
    made = run(AgentDirectory(), problem=AgentDiscovery(sharing=3), seed=1)
    assert made.violations == []
    assert all(len(agents) == 3 for _, agents in made.decisions)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_cold_start_becomes_dependable(overlay):
    problem = AgentDiscovery(nodes=48, early=True, lookups=400, span_s=15.0, ttl_s=20.0)
    made = run(AgentDirectory(overlay=overlay, warm=False), problem=problem, seed=2)
    assert made.violations == []
    assert 1.0 < made.metrics["startup_s"] < 12.0


def test_bad_publications_are_refused_with_the_reason():
    class Asking(AgentDiscovery):
        """Asks one node for publications that make no sense."""

        async def drive(self, driver):
            for key, ttl_s in ((-1, 5.0), (1 << 63, 5.0), (1, 0.0), (1, float("nan")), (1, 1e9)):
                with pytest.raises(Refused) as said:
                    await driver.ask(0, DirectoryNode.publish, key, ttl_s)
                driver.emit(said=str(said.value))

    made = run(AgentDirectory(), problem=Asking(), seed=1)
    said = [r.values["said"] for r in made.records if "said" in r.values]
    assert len(said) == 5
    assert all(text.startswith("publish: ") and "give" in text for text in said)


@pytest.mark.parametrize(
    ("cls", "knobs"),
    [
        (AgentDirectory, {"overlay": "tapestry"}),
        (AgentDirectory, {"period_s": 0.0}),
        (AgentDirectory, {"replicas": 0}),
        (AgentDirectory, {"signature": "none"}),
        (AgentDirectory, {"overlays": "chord"}),
        (AgentDiscovery, {"nodes": 0}),
        (AgentDiscovery, {"ttl_s": float("nan")}),
        (AgentDiscovery, {"session_s": -1.0}),
        (AgentDiscovery, {"lookups": "many"}),
    ],
)
def test_bad_knobs_are_named(cls, knobs):
    with pytest.raises(KnobError, match=rf"{cls.__name__}\.{next(iter(knobs))}"):
        cls(**knobs)


def test_bad_worlds_and_parts_are_named():
    for nodes in (0, -1, 1.5, True, 2_000_000):
        with pytest.raises(WorldError, match=r"discovery_world\.nodes"):
            discovery_world(nodes)
    with pytest.raises(WorldError, match=r"discovery_world\.session_s"):
        discovery_world(5, session_s=float("nan"))
    with pytest.raises(PartError, match="inherit from DirectoryNode"):
        run(Chord(), problem=AgentDiscovery())
    with pytest.raises(PartError, match="one part for all nodes"):
        run({"cloud": ChordDirectory()}, problem=AgentDiscovery())
    with pytest.raises(KnobError, match=r"AgentDiscovery\.sharing"):
        run(AgentDirectory(), problem=AgentDiscovery(sharing=30))


def test_a_directory_that_loses_offers_or_answers_nobody_is_noticed():
    class Forgetful(ChordDirectory):
        """Takes every offer and keeps none."""

        def _store(self, record):
            return True

    made = run(Forgetful(), problem=AgentDiscovery(), seed=1)
    assert {v.kind for v in made.violations} == {"not_found"}
    assert made.metrics["success_rate"] == 0.0


def test_leaving_and_joining_are_part_of_the_interface():
    class Leaving(AgentDiscovery):
        """Has a few nodes leave in good order and join again, then asks."""

        async def drive(self, driver):
            await driver.sleep(1.0)
            for node in (3, 7, 11):
                await driver.ask(node, DirectoryNode.leave)
            await driver.sleep(2.0)
            for node in (3, 7, 11):
                await driver.ask(node, DirectoryNode.join, 0)
            await super().drive(driver)

    for overlay in OVERLAYS:
        made = run(AgentDirectory(overlay=overlay), problem=Leaving(join_s=5.0), seed=1)
        assert made.violations == [], overlay
        assert made.metrics["success_rate"] == 1.0


def test_refresh_publishes_at_once():
    class Refreshing(AgentDiscovery):
        """Publishes with a long timer, lets the record end, and asks for a refresh."""

        async def drive(self, driver):
            await driver.sleep(1.0)
            assert await driver.ask(5, DirectoryNode.publish, 99, 2.0) > 1
            for wait_s, want in ((0.5, 1), (2.0, 0)):
                await driver.sleep(wait_s)
                driver.emit(want=want, had=len(await driver.ask(9, DirectoryNode.discover, 99)))
            assert await driver.ask(5, DirectoryNode.refresh)
            await driver.sleep(0.5)
            driver.emit(want=1, had=len(await driver.ask(9, DirectoryNode.discover, 99)))

    for overlay in OVERLAYS:
        made = run(AgentDirectory(overlay=overlay, refresh_s=1e6), problem=Refreshing(), seed=1)
        seen = [r.values for r in made.records if "want" in r.values]
        assert [v["had"] for v in seen] == [v["want"] for v in seen] == [1, 0, 1], overlay
