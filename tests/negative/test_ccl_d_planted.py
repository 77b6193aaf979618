"""CCL-D with something broken in it: each acceptance line must notice."""

from __future__ import annotations

from collections import deque

import pytest

from orrery import run
from orrery.systems.resilience.ccl_d import CCLD, Probe
from orrery.systems.resilience.problems.sick_communication import SickCommunication
from orrery.systems.resilience.problems.watcher import Beat, Report, Watcher

SMALL = {"tp": 2, "pp": 2, "dp": 4, "step_s": 20.0, "after_s": 110.0, "within_s": 20.0}


def metrics(part, **knobs):
    made = run(part, problem=SickCommunication(**SMALL | knobs))
    return made.metrics, made


class Deaf(CCLD):
    """Its ranks have nothing to say of themselves."""

    def beat_of(self, recorder):
        return Beat(1, [])


class Jumpy(CCLD):
    """Blames whoever is silent, though it may be the messages that are lost."""

    tries = 1
    silent_beats = 1

    async def look(self, signs):
        for sign in signs:
            if sign.hint == "silent":
                return Report("stopped", (sign.rank,), "")
        return None


class NeverLearns(Probe):
    """Takes every operation for a usual one."""

    def ended(self, op):
        pass

    def arrived(self, peer, nbytes, took_s):
        pass


class Unlearned(CCLD):
    """Its probe never learns what is usual."""

    def recorder_for(self, rank, clock):
        return NeverLearns(rank, clock, self.ring, learn=4, window=8, confirm=3, far=6.0,
                           share=0.05, quiet_s=20.0)  # fmt: skip


class Endless(Probe):
    """Keeps every operation for ever."""

    def enqueue(self, slot, comm, kind, nbytes, members):
        self.ring = deque(self.ring)  # without a bound
        return super().enqueue(slot, comm, kind, nbytes, members)


def test_without_heart_beats_nothing_but_a_crash_is_found():
    assert metrics(Deaf(), kind="stuck", limit_s=400.0)[0]["right"] == 0.0
    assert metrics(Deaf(), kind="crash")[0]["right"] == 1.0  # the launcher saw that


def test_without_following_victims_are_blamed():
    found = [metrics(CCLD(follow=False), kind="stuck", place=place)[0] for place in range(4)]
    assert sum(each["victims"] for each in found) > 0
    sound = [metrics(CCLD(), kind="stuck", place=place)[0] for place in range(4)]
    assert all(each["right"] == 1.0 and each["victims"] == 0 for each in sound)


@pytest.mark.parametrize("kind", ["slow", "nic"])
def test_without_a_norm_slowness_is_not_seen(kind):
    assert metrics(Unlearned(), kind=kind, limit_s=300.0)[0]["right"] == 0.0


def test_a_watcher_that_takes_lost_messages_for_a_stop_is_caught():
    knobs = {"kind": "none", "calm_s": 900.0, "probe_loss": 0.1}
    found, made = metrics(Jumpy(), **knobs)
    assert found["false_alarms"] > 0 and not made.ok
    assert next(v.kind for v in made.violations) == "false_alarm"
    assert metrics(CCLD(), **knobs)[1].ok


def test_a_ring_that_grows_is_caught():
    probe = Endless(0, lambda: 0.0, 8, learn=4, window=8, confirm=3, far=6.0, share=0.05,
                    quiet_s=1.0)  # fmt: skip
    for _ in range(100):
        probe.end(probe.enqueue("tp", "tp.0", "all_reduce", 64, [0, 1]))
    assert len(probe.ring) == 100 > probe.size


def test_a_tree_that_passes_everything_up_is_not_bounded():
    class Flat(CCLD):
        """Passes every sign up, however many."""

        def gathered(self):
            beat = super().gathered()
            signs = [sign for _, each in self.latest.values() for sign in each.signs]
            return Beat(beat.heard, signs)

    knobs = {"kind": "stuck", "dp": 64, "fan_in": 4, "after_s": 45.0}
    assert metrics(Flat(), **knobs)[0]["inflow_B"] > 2 * metrics(CCLD(), **knobs)[0]["inflow_B"]


def test_the_referee_knows_a_wrong_blame_and_a_wrong_class():
    class Accuser(Watcher):
        """Blames rank 0 of whatever it is told to."""

        async def watch(self):
            await self.sleep(200.0)
            self.say(Report("stuck", (0,), "a guess"))

    found = metrics(Accuser(), kind="stuck", place=0)[0]
    assert found["wrong"] == 1.0 and found["victims"] == 1 and found["right_rank"] == 0
    place = next(place for place in range(99) if SickCommunication(
        **SMALL | {"kind": "skip", "place": place}).cases()[0].ranks == (0,))  # fmt: skip
    found = metrics(Accuser(), kind="skip", place=place)[0]
    assert found["wrong"] == 0 and found["right_rank"] == 1.0 and found["right"] == 0
    assert metrics(Accuser(), kind="none", calm_s=300.0)[0]["false_alarms"] == 1
