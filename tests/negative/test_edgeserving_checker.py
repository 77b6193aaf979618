"""Planted faults that the checker of `dnn_edge_serving` must see, one kind each."""

from __future__ import annotations

import pytest

from orrery import run
from orrery.systems.serve.baselines.edge_edf import EdgeEDF
from orrery.systems.serve.problems.dnn_edge_serving import DNNEdgeServing, faults_of
from orrery.systems.serve.problems.dnn_edge_serving.executor import Executor


class Kept(DNNEdgeServing):
    """The problem, which keeps the log of its last run."""

    logs = []

    def measure(self, outcome):
        self.logs[:] = [outcome.driven]
        return super().measure(outcome)


@pytest.fixture
def log():
    made = run(EdgeEDF(late="drop"), problem=Kept(load=1.1, seconds=0.1, stale=0.1), seed=1)
    assert made.violations == []
    found = Kept.logs[0]
    assert found.dropped and found.rejected and len(found.batches) > 10
    return found


def lose(log):
    log.batches[3] = log.batches[3]._replace(requests=log.batches[3].requests[1:])


def twice(log):
    log.batches[4] = log.batches[4]._replace(requests=log.batches[3].requests)


def drop_answered(log):
    log.dropped.append((log.batches[0].requests[0], "no reason that is true"))


def silent(log):
    log.rejected[0] = (log.rejected[0][0], "")


def invented(log):
    log.dropped.append((10**9, "never asked"))


def overfull(log):
    batch = log.batches[5]
    log.batches[5] = batch._replace(turn=batch.turn._replace(batch=0))


def other_model(log):
    batch = log.batches[5]
    log.batches[5] = batch._replace(turn=batch.turn._replace(model=batch.turn.model + 1))


def too_early(log):
    log.batches[-1] = log.batches[-1]._replace(began_s=-1.0)


def two_at_once(log):
    batch = log.batches[6]
    log.batches[7] = log.batches[7]._replace(
        began_s=batch.began_s, ended_s=max(batch.ended_s, log.batches[7].ended_s)
    )


def wrong_answer(log):
    log.wrong.append("served 3, offline 4")


PLANTED = {
    lose: "lost", twice: "answered_twice", drop_answered: "answered_and_failed",
    silent: "no_reason", invented: "from_nowhere", overfull: "overfull",
    other_model: "wrong_model", too_early: "before_arrival", two_at_once: "shared",
    wrong_answer: "wrong_output",
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_seen(log, plant):
    assert list(faults_of(log)) == []
    plant(log)
    assert PLANTED[plant] in {violation.kind for violation in faults_of(log)}


def test_an_executor_that_forgets_a_request_is_seen(monkeypatch):
    plain = Executor.end

    def forget(self, turn, requests, began_s, now_s, alone):
        plain(self, turn, requests[: max(1, len(requests) - 1)], began_s, now_s, alone)

    monkeypatch.setattr(Executor, "end", forget)
    made = run(EdgeEDF(), problem=DNNEdgeServing(load=0.9, seconds=0.1), seed=1)
    assert {violation.kind for violation in made.violations} == {"lost"}


def test_an_executor_that_admits_what_is_past_would_be_measured(monkeypatch):
    """Admission is in the numbers: with it, what came too late is rejected and never runs."""
    problem = Kept(load=0.3, seconds=0.1, stale=0.3)
    run(EdgeEDF(), problem=problem, seed=1)
    ran = {r for batch in Kept.logs[0].batches for r in batch.requests}
    assert ran.isdisjoint(request for request, _ in Kept.logs[0].rejected)
    assert Kept.logs[0].rejected
