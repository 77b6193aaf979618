"""The playground: moments, edits, branches, and tests that replay them."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys

import pytest

from orrery import World, run
from orrery.base.errors import OrreryError, UsageError
from orrery.lab import discover, edits, playback, playground, saved_test
from orrery.lab.discover import ask_problem, load
from orrery.lab.edits import Edit
from orrery.lab.playback import Limits, NotPlayable, TooLong, in_words
from orrery.lab.playground import Playground
from orrery.lab.trials import Rumour
from orrery.parts import Node
from orrery.world import Clog, Crash, Drop, Partition, Pause, Slow, worlds

SMALL = {"clients": 2, "ops": 6}


@functools.cache
def opened():
    """What `Playground.open` finds, looked for once, as reading the catalogue takes a while."""
    found = Playground.open("raft", seed=7, problem_knobs=SMALL)
    return found.part, found.problem, found.setting


def raft(world=None, **options):
    part, problem, setting = opened()
    place = worlds.get(world) if world else None
    return Playground(part, problem=problem, world=place, seed=7, name="raft", setting=setting,
                      **options)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Read the catalogue once for each id: that is most of the work of opening a playground."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discover, "find", functools.cache(discover.find))
        yield


def state(scene, node):
    return next(each for each in scene["nodes"] if each["id"] == node)


@pytest.fixture(scope="module")
def crashed():
    """Raft whose leader crashed at half a second, and the leader."""
    play = raft()
    leader = next(n["id"] for n in play.move(0.5)["nodes"] if n.get("is") == "leader")
    play.crash(leader)
    return play, leader


# -- executing


def test_playing_a_run_gives_the_digest_of_running_it():
    part, problem = load("raft")(), ask_problem("replicated_store", SMALL)
    world = problem.world().with_faults(Crash(node=1, at_s=0.4, until_s=0.7), Slow(
        node=2, at_s=0.2, factor=4.0))  # fmt: skip
    plain = run(part, problem=problem, world=world, seed=3)
    played = playback.play(part, problem=problem, world=world, seed=3)
    assert played.run.digest == plain.digest
    assert played.run.metrics == plain.metrics


def test_slices_do_not_change_a_run(monkeypatch):
    digest = raft().whole().run.digest
    monkeypatch.setattr(playback, "SLICE_EVENTS", 7)
    assert raft().whole().run.digest == digest


def test_a_moment_is_a_prefix_of_the_whole():
    play = raft()
    part = playback.play(play.part, problem=play.problem, world=play.world, seed=7, until_s=0.4)
    whole = play.whole().run.spans
    assert part.run.spans == whole[: len(part.run.spans)]
    assert all(row[1] > 400_000_000 for row in whole[len(part.run.spans) :])


def test_the_scene_tells_what_each_node_is():
    scene = raft().at(0.5)
    roles = sorted(node["is"] for node in scene["nodes"])
    assert roles == ["follower"] * 4 + ["leader"]
    assert {node["in"] for node in scene["nodes"]} == {"term 1"}
    assert scene["violations"] == [] and scene["final_violations"] == []


def test_messages_on_their_way_were_sent_and_have_not_arrived():
    play = raft()
    sent, received, *_ = play.whole().run.spans[100]
    scene = play.at((sent + received) / 2e9)
    assert scene["counts"]["flying"] >= 1
    for message in scene["flying"]:
        assert message["sent_s"] <= scene["at_s"] < message["received_s"]


def test_a_limit_of_events_has_a_name():
    small = Limits(events=20_000)
    assert raft(limits=small).whole().run.ended == "driven"
    with pytest.raises(TooLong, match="more than 20,000 events"):
        Playground.open("raft", problem_knobs={"ops": 400}, limits=small).whole()


def test_a_limit_of_time_has_a_name(monkeypatch):
    monkeypatch.setattr(playback, "SLICE_EVENTS", 50)
    with pytest.raises(TooLong, match="takes more than 0 s"):
        raft(limits=Limits(seconds=0.0)).whole()


def test_a_swarm_and_a_world_too_large_are_refused():
    with pytest.raises(NotPlayable, match="swarm"):
        Playground(Rumour(), world=World.lan(10))
    with pytest.raises(NotPlayable, match="200 nodes, too many"):
        raft(world="lan:200", limits=Limits(nodes=100))


class Faulty(Node):
    """Fails by itself after a while."""

    async def main(self):
        await self.sleep(0.25 + 0.01 * self.id)
        raise ValueError("broken by design")


def test_a_part_that_fails_is_a_finding_and_its_past_can_be_seen():
    play = Playground(Faulty(), world=World.lan(3))
    assert state(play.at(0.2), 0)["state"] == "up"
    found = play.at(1.0)["violations"]
    assert [each["kind"] for each in found] == ["part_failed"]
    assert "broken by design" in found[0]["message"] and found[0]["time_s"] == 0.25


def test_values_in_words_are_short_and_call_nothing():
    class Loud:
        def __repr__(self):
            raise AssertionError("a part's own code was called")

    assert in_words(Loud()) == ""
    assert in_words({3, 1, 2}) == "{1, 2, 3}"
    assert in_words(list(range(100_000))) == "100000 of them"
    assert in_words([]) == "empty" and in_words(b"abc") == "3 bytes"
    assert all(
        len(in_words(v)) < 130 for v in (list(range(300)), "x" * 999, dict.fromkeys(range(99), "y"))
    )


# -- edits


def test_a_crashed_leader_is_followed_by_another(crashed):
    play, leader = crashed
    scene = play.at(1.2)
    assert state(scene, leader)["state"] == "down"
    leaders = [n["id"] for n in scene["nodes"] if n.get("is") == "leader"]
    assert len(leaders) == 1 and leaders != [leader]
    assert scene["counts"]["down"] == 1 and scene["counts"]["lost"] > 0


def test_an_edit_keeps_the_past(crashed):
    play, _ = crashed
    before, after = raft().whole().run.spans, play.whole().run.spans
    past = [row[:2] + row[3:] for row in before if row[1] < 500_000_000]
    assert past == [row[:2] + row[3:] for row in after][: len(past)]
    assert play.of().warning == ""


def test_rewinding_drops_nothing(crashed):
    play, leader = crashed
    assert state(play.rewind(0.3), leader)["state"] == "up"
    assert len(play.of().edits) == 1
    assert state(play.move(0.9), leader)["state"] == "down"


def test_each_pair_of_edits_becomes_one_fault():
    made = edits.compiled([
        Edit(at_s=0.1, action="crash", nodes=(1, 2)), Edit(at_s=0.2, action="cut", nodes=(0, 3)),
        Edit(at_s=0.3, action="restart", nodes=(2,)), Edit(at_s=0.3, action="lag", nodes=(0, 1),
                                                           value=0.01),
        Edit(at_s=0.4, action="heal", nodes=(0, 3)), Edit(at_s=0.5, action="isolate", nodes=(4,)),
        Edit(at_s=0.6, action="slow", nodes=(0,), value=3.0), Edit(at_s=0.7, action="pause",
                                                                   nodes=(0,)),
        Edit(at_s=0.8, action="split", nodes=(3, 0)), Edit(at_s=0.9, action="merge", nodes=(0, 3)),
        Edit(at_s=1.0, action="rejoin", nodes=(4,)), Edit(at_s=1.0, action="hasten", nodes=(0, 1)),
        Edit(at_s=1.0, action="quicken", nodes=(0,)), Edit(at_s=1.0, action="resume", nodes=(0,)),
    ])  # fmt: skip
    assert made == (
        Crash(node=1, at_s=0.1), Crash(node=2, at_s=0.1, until_s=0.3),
        Drop(p=1.0, link=(0, 3), at_s=0.2, until_s=0.4),
        Clog(link=(0, 1), delay_s=0.01, at_s=0.3, until_s=1.0),
        Partition(node=4, at_s=0.5, until_s=1.0), Slow(node=0, factor=3.0, at_s=0.6, until_s=1.0),
        Pause(node=0, at_s=0.7, until_s=1.0), Partition(groups=((0, 3),), at_s=0.8, until_s=0.9),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (Edit(at_s=0.9, action="crash", nodes=(1,)), "since"),
        (Edit(at_s=0.5, action="restart", nodes=(1,)), "moment in which it began"),
        (Edit(at_s=0.9, action="restart", nodes=(2,)), "no crash of yours"),
        (Edit(at_s=0.9, action="heal", nodes=(0, 1)), "no cut of yours"),
    ],
)
def test_an_edit_that_means_nothing_is_refused(second, why):
    with pytest.raises(UsageError, match=why):
        edits.compiled([Edit(at_s=0.5, action="crash", nodes=(1,)), second])


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"action": "crash", "nodes": [9]}, "no node 9"),
        ({"action": "crash", "nodes": [-1]}, "no node -1"),
        ({"action": "crash", "nodes": [True]}, "no node True"),
        ({"action": "crash", "nodes": []}, "list of 1 to"),
        ({"action": "crash", "nodes": [1, 1]}, "named twice"),
        ({"action": "crash", "nodes": "1"}, "list of 1 to"),
        ({"action": "crush", "nodes": [1]}, "crash"),
        ({"action": None, "nodes": [1]}, "unknown"),
        ({"action": "cut", "nodes": [1]}, "two ends"),
        ({"action": "cut", "nodes": [1, 2, 3]}, "two ends"),
        ({"action": "crash", "nodes": [1], "value": 3.0}, "takes no value"),
        ({"action": "slow", "nodes": [1], "value": 0.5}, "a factor"),
        ({"action": "slow", "nodes": [1], "value": math.nan}, "a factor"),
        ({"action": "lag", "nodes": [1, 2], "value": -1.0}, "a delay"),
        ({"action": "split", "nodes": [0, 1, 2, 3, 4]}, "parted from nobody"),
        ({"action": "crash", "nodes": [1], "at_s": -0.1}, "number of seconds"),
        ({"action": "crash", "nodes": [1], "at_s": math.nan}, "number of seconds"),
        ({"action": "crash", "nodes": [1], "at_s": "0.5"}, "number of seconds"),
        ({"action": "crash", "nodes": [1], "branch": "b9"}, "no branch"),
    ],
)
def test_a_wrong_edit_names_what_is_wrong_and_changes_nothing(crashed, call, why):
    play, _ = crashed
    before = play.tree()
    with pytest.raises(UsageError, match=why):
        play.edit(call.pop("action"), call.pop("nodes"), **call)
    assert play.tree() == before


def test_taking_a_crash_out_takes_its_restart_too():
    play = raft()
    digest = play.whole().run.digest
    play.edit("crash", [0], at_s=0.3)
    play.edit("restart", [0], at_s=0.6)
    assert len(play.of().edits) == 2
    play.take_out(0)
    assert play.of().edits == [] and play.whole().run.digest == digest
    with pytest.raises(UsageError, match="has 0 edits"):
        play.take_out(0)


def test_an_edit_that_changes_what_came_before_it_says_so():
    play = raft()
    end = play.whole().run.seconds
    play.edit("crash", [0], at_s=round(end - 0.2, 3))  # the clients wait for the last fault
    assert "changed what happened before it" in play.of().warning


# -- stepping and stories


def test_stepping_goes_from_event_to_event(crashed):
    play, leader = crashed
    first = play.next_event(0.5)
    assert first["time_s"] > 0.5
    mine = play.next_event(0.5, node=0)
    assert mine["node"] == 0 and mine["time_s"] >= first["time_s"]
    assert play.next_event(first["time_s"], back=True)["time_s"] <= 0.5
    assert play.next_event(1e6) is None
    assert play.next_event(0.45, node=leader, back=False)["time_s"] <= 0.5
    for wrong in (-1, 99, True, "1"):
        with pytest.raises(UsageError, match="nodes 0 to 4"):
            play.next_event(0.1, node=wrong)


def test_a_story_tells_the_latest_first(crashed):
    play, leader = crashed
    told = play.story(leader, 0.6)
    assert told["state"] == "down" and told["past"][0]["words"] == "crashes"
    times = [each["time_s"] for each in told["past"]]
    assert times == sorted(times, reverse=True) and told["fields"] == {}
    assert play.story(leader, 0.4)["fields"]["mode"] == "leader"
    with pytest.raises(UsageError, match="nodes 0 to 4"):
        play.story(7, 0.1)


# -- branches


def test_a_fork_has_the_past_and_another_future():
    play = raft()
    play.edit("crash", [0], at_s=0.3)
    play.edit("restart", [0], at_s=0.8)
    made = play.fork(0.5)
    assert (made.parent, made.from_s, len(made.edits)) == ("main", 0.5, 1)
    assert len(play.of("main").edits) == 2
    assert state(play.at(1.0, "main"), 0)["state"] == "up"
    assert state(play.at(1.0, made.id), 0)["state"] == "down"
    found = play.difference("main", made.id)
    # The two are alike until the one starts again; its first words come a little later.
    assert 0.8 <= found["first"]["time_s"] < 0.9
    assert found["metrics"] and found["words"].startswith("Alike until")


def test_a_branch_equals_itself_and_an_edit_makes_it_differ():
    play = raft()
    play.fork(0.2)
    assert play.difference("main", "b1")["first"] is None
    assert play.difference("main", "b1")["metrics"] == []
    play.edit("cut", [0, 1], at_s=0.4, branch="b1")
    found = play.difference("main", "b1")
    assert found["first"]["time_s"] >= 0.4 and found["first"]["a"] != found["first"]["b"]


def test_branches_are_a_tree_and_can_be_removed():
    play = raft()
    play.fork(0.2)
    play.fork(0.4)
    assert [(each["id"], each["parent"]) for each in play.tree()] == [
        ("main", ""), ("b1", "main"), ("b2", "b1")]  # fmt: skip
    play.remove("b1")
    assert play.of("b2").parent == "main"
    with pytest.raises(UsageError, match="first branch stays"):
        play.remove("main")
    with pytest.raises(UsageError, match="no branch"):
        play.switch("b1")


def test_branches_edits_and_memory_are_bounded(monkeypatch):
    monkeypatch.setattr(playground, "MOST_BRANCHES", 3)
    monkeypatch.setattr(playground, "MOST_EDITS", 1)
    monkeypatch.setattr(playground, "MOST_KEPT", 2)
    play = raft()
    play.fork(0.1)
    play.fork(0.2)
    with pytest.raises(UsageError, match="3 branches already"):
        play.fork(0.3)
    play.edit("pause", [0], at_s=0.3)
    with pytest.raises(UsageError, match="at most 1 edits"):
        play.edit("resume", [0], at_s=0.4)
    for at_s in (0.1, 0.2, 0.3, 0.4):
        play.at(at_s)
    assert len(play._kept) == 2


def test_an_execution_is_kept_and_used_again(crashed):
    play, _ = crashed
    assert play.whole() is play.whole()
    play.at(0.7)
    kept = list(play._kept)
    play.at(0.7)
    assert sorted(map(str, play._kept)) == sorted(map(str, kept))


def test_titles_cannot_end_a_docstring():
    play = raft()
    for title in ('"""', "a\nb", "x" * 81, "\\", 7):
        with pytest.raises(UsageError, match="title"):
            play.fork(0.1, title=title)


# -- opening


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"id": "no-such"}, "no system"),
        ({"id": "os:system"}, "give an id"),
        ({"id": "../raft"}, "give an id"),
        ({"id": ""}, "give an id"),
        ({"id": "raft", "problem": "mine.py:X"}, "give an id"),
        ({"id": "raft", "problem": "broadcast"}, "does not fit"),
        ({"id": "raft", "world": "/etc/passwd"}, "give a name such as"),
        ({"id": "raft", "world": "x.toml"}, "give a name such as"),
        ({"id": "raft", "world": "lan:99999999999"}, "too large"),
        ({"id": "raft", "world": "moon:3"}, "no world"),
        ({"id": "raft", "seed": -1}, "whole number"),
        ({"id": "raft", "seed": 1.5}, "whole number"),
        ({"id": "raft", "knobs": {"electionS": 1}}, "no such knob"),
        ({"id": "raft", "knobs": {"election_s": "a/b"}}, "one word"),
        ({"id": "raft", "knobs": {"election_s": -1.0}}, "election_s"),
        ({"id": "raft", "knobs": {"election_s": [1]}}, "one word"),
        ({"id": "raft", "problem_knobs": {"ops": 0}}, "ops"),
    ],
)
def test_only_listed_things_with_plain_values_can_be_opened(call, why):
    with pytest.raises(OrreryError, match=why):
        Playground.open(call.pop("id"), **call)


# -- saving


def written(play, tmp_path, branch=None):
    source = play.save_test(branch)
    path = tmp_path / saved_test.file_name(source)
    path.write_text(source)
    return path, source


def passes(path, root):
    """Whether pytest passes on a file, in a process of its own; and what it said."""
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", path]
    done = subprocess.run(call, capture_output=True, text=True, cwd=root, check=False)
    return done.returncode, done.stdout


def executed(source):
    """Run the one test of a file in this process."""
    space: dict = {}
    exec(compile(source, "saved", "exec"), space)
    next(value for name, value in space.items() if name.startswith("test_"))()


@pytest.mark.slow
def test_a_saved_test_is_green_as_written(crashed, tmp_path):
    play, leader = crashed
    path, source = written(play, tmp_path)
    assert (
        path.name == f"test_raft_crash_{leader}.py" and f"Crash(at_s=0.5, node={leader})" in source
    )
    code, said = passes(path, tmp_path)
    assert code == 0, said


def test_a_saved_test_fails_without_its_faults(crashed):
    play, leader = crashed
    assert f"Crash(at_s=0.5, node={leader})" in play.save_test()
    source = play.save_test()
    executed(source)
    without = re.sub(r"^    Crash\(.*\),$", "", source, flags=re.MULTILINE)
    assert without != source
    with pytest.raises(AssertionError, match="world"):
        executed(without)
    # Even when the world's own hash is not asked for, the missing fault is noticed.
    blind = without.replace("assert world.hash == WORLD", "assert world.hash or WORLD")
    with pytest.raises(AssertionError):
        executed(blind)


def test_a_saved_test_fails_when_the_part_is_broken(crashed, monkeypatch):
    play, _ = crashed
    source = play.save_test()
    monkeypatch.setattr(load("raft"), "is_majority", lambda self, nodes: True)
    with pytest.raises(AssertionError):
        executed(source)


def test_a_saved_test_of_a_violation_must_go_on_finding_it():
    play = Playground.open("raft", seed=7, problem_knobs={"clients": 3, "ops": 10})
    leader = next(n["id"] for n in play.move(0.45)["nodes"] if n.get("is") == "leader")
    play.cut(leader, (leader + 1) % 5)
    assert [v.kind for v in play.whole().run.violations] == ["lagging"]
    source = play.save_test()
    assert '["lagging"]' in source
    executed(source)
    with pytest.raises(AssertionError):
        executed(source.replace('["lagging"]', "[]"))


def test_a_named_world_and_knobs_stand_in_the_test():
    play = Playground.open("raft", world="lan:3", seed=2, knobs={"heartbeat_s": 0.04},
                           problem_knobs=SMALL)  # fmt: skip
    play.edit("isolate", [0], at_s=0.2)
    play.edit("rejoin", [0], at_s=0.5)
    source = play.save_test()
    assert 'worlds.get("lan:3")' in source and "heartbeat_s=0.04" in source
    assert "Partition(at_s=0.2, until_s=0.5, node=0)" in source
    executed(source)


def test_a_world_without_a_name_stands_in_the_test_as_it_is():
    part, problem = load("raft")(), ask_problem("replicated_store", SMALL)
    world = World.lan(3, latency_s=0.002)
    setting = saved_test.setting_of(part, problem, world)
    play = Playground(part, problem=problem, world=world, seed=1, setting=setting)
    play.edit("crash", [1], at_s=0.3)
    play.edit("restart", [1], at_s=0.4)
    source = play.save_test()
    assert "World.from_toml(PLACE)" in source
    executed(source)


def test_a_part_that_is_not_listed_cannot_be_saved():
    with pytest.raises(OrreryError, match="only a listed system"):
        Playground(Faulty(), world=World.lan(2)).save_test()


def test_many_nodes_in_one_edit_fit_the_page():
    play = Playground.open("push-gossip", world="lan:80", seed=1, problem_knobs={"values": 2})
    play.edit("split", list(range(0, 80, 2)), at_s=0.1)
    play.edit("merge", list(range(0, 80, 2)), at_s=0.3)
    source = play.save_test()
    assert all(len(line) <= 100 for line in source.splitlines())
    executed(source)
