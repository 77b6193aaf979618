"""The real replica: any schedule gives the tokens of the sequential reference; nothing is lost."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

from tests.unit.real_toys import Chaos, Reference, model_of, some_jobs

from orrery.base.errors import PartError, UsageError
from orrery.base.rand import Stream
from orrery.check.conservation import exactly_once
from orrery.models.ports import Batch, Scheduler
from orrery.models.real import Continuous, RealReplica
from orrery.models.real.jobs import Job, jobs_of, keys_of, make_job, requests_of
from orrery.models.real.paged import PagedPool
from orrery.models.replica import NEVER, Replica
from orrery.models.requests import Request

MODEL = model_of()


@pytest.fixture(scope="module")
def expected():
    """Greedy continuations by the reference, each computed once."""
    reference, known = Reference(MODEL.spec), {}

    def of(job):
        key = tuple(job.prompt)
        if len(known.get(key, ())) < job.request._output_tokens:
            known[key] = reference.greedy(key, job.request._output_tokens)
        return known[key][: job.request._output_tokens]

    return of


def listen(jobs):
    """Collect answers and streamed tokens."""
    answers, streamed = [], {}
    for job in jobs:
        mine = streamed.setdefault(job.request.id, [])
        job.on_token, job.on_end = mine.append, answers.append
    return answers, streamed


def play(replica, jobs, *, seed=0, cancels=0.0):
    """Submit at random moments, step to the end, and audit the books after every step."""
    rng, left = Stream(seed, "play", "arrivals"), list(jobs)
    while left or not replica.idle:
        while left and rng.random() < 0.4:
            replica.submit(left.pop(0))
        if cancels and rng.random() < cancels:
            replica.cancel(rng.randrange(len(jobs)))
        replica.step()
        assert replica.faults() == []


@pytest.mark.parametrize("seed", range(12))
def test_mad_schedules_give_the_tokens_of_the_reference(seed, expected):
    jobs = some_jobs(seed % 4, 9)
    answers, streamed = listen(jobs)
    replica = RealReplica(MODEL, Chaos(seed=seed), blocks=16, block_tokens=4, caching=seed % 3 > 0)
    play(replica, jobs, seed=seed)
    assert len(answers) == len(jobs)
    for answer in answers:
        job = jobs[answer.id]
        assert answer.tokens == expected(job) == tuple(streamed[answer.id])
        assert answer.reason == "length"
    assert replica.pool.free == 16
    assert replica.preemptions > 0


@pytest.mark.parametrize("budget", [1, 3, 7, 64])
@pytest.mark.parametrize("blocks", [14, 60])
def test_continuous_batching_gives_the_tokens_of_the_reference(budget, blocks, expected):
    jobs = some_jobs(2, 10)
    answers, _ = listen(jobs)
    scheduler = Continuous(step_tokens=budget, max_sequences=6)
    replica = RealReplica(MODEL, scheduler, blocks=blocks, block_tokens=4)
    play(replica, jobs, seed=budget)
    assert [a.tokens for a in sorted(answers, key=lambda a: a.id)] == [expected(j) for j in jobs]
    assert replica.made == sum(job.request._output_tokens for job in jobs)


def test_requests_of_one_step_share_a_prefix_that_is_just_being_computed(expected):
    """The second finds the blocks of the first in the same step, before they hold anything."""
    prompt = [7, 7, 3, 1, 9, 2, 4, 4, 30, 31]
    jobs = [make_job(i, prompt, 6, block_tokens=4) for i in range(2)]
    answers, _ = listen(jobs)
    records = []
    replica = RealReplica(MODEL, blocks=20, block_tokens=4)
    replica.on_step = records.append
    for job in jobs:
        replica.submit(job)
    replica.run()
    assert records[0].prefill == ((10, 0), (2, 8))
    assert [a.tokens for a in answers] == [expected(job) for job in jobs]


def test_a_follow_up_finds_the_blocks_of_the_answer(expected):
    """Keys come from tokens, so a later turn shares what an earlier answer computed."""
    first = make_job(0, [5, 6, 7, 8, 9], 12, block_tokens=4)
    answers, _ = listen([first])
    replica = RealReplica(MODEL, blocks=30, block_tokens=4)
    replica.submit(first)
    replica.run()
    second = make_job(1, [5, 6, 7, 8, 9, *answers[0].tokens, 50], 5, block_tokens=4)
    later, _ = listen([second])
    replica.submit(second)
    replica.run()
    assert later[0].served.hit_tokens == 16
    assert later[0].tokens == expected(second)


def test_an_end_token_stops_an_answer(expected):
    job = make_job(0, [5, 6, 7], 12, block_tokens=4)
    whole = expected(job)
    job.end = whole[4]
    answers, _ = listen([job])
    replica = RealReplica(MODEL, blocks=30, block_tokens=4)
    replica.submit(job)
    replica.run()
    assert answers[0].reason == "stop"
    assert answers[0].tokens == whole[: whole.index(job.end) + 1]
    assert replica.pool.free == 30


def test_draws_do_not_depend_on_the_schedule():
    told = []
    for seed in (1, 2):
        jobs = some_jobs(1, 6, temperature=0.9, top_p=0.8, seed=5)
        answers, _ = listen(jobs)
        play(RealReplica(MODEL, Chaos(seed=seed), blocks=40, block_tokens=4), jobs, seed=seed)
        told.append({a.id: a.tokens for a in answers})
    assert told[0] == told[1]
    jobs = some_jobs(1, 6, temperature=0.9, top_p=0.8, seed=6)
    answers, _ = listen(jobs)
    play(RealReplica(MODEL, blocks=40, block_tokens=4), jobs)
    assert told[0] != {a.id: a.tokens for a in answers}


def test_cancelling_loses_nothing_and_leaks_nothing(expected):
    cancelled = 0
    for seed in range(6):
        jobs = some_jobs(seed, 8)
        answers, _ = listen(jobs)
        replica = RealReplica(MODEL, Chaos(seed=seed), blocks=18, block_tokens=4)
        play(replica, jobs, seed=seed, cancels=0.2)
        ok = [a.id for a in answers if a.ok]
        failed = [a.id for a in answers if not a.ok]
        assert exactly_once([j.request.id for j in jobs], ok, failed) == []
        assert replica.pool.free == 18
        for answer in answers:
            assert expected(jobs[answer.id])[: len(answer.tokens)] == answer.tokens
        cancelled += len(failed)
    assert cancelled


def test_a_model_that_fails_fails_its_requests_by_name_and_the_next_ones_are_served(expected):
    jobs = some_jobs(3, 6)
    answers, _ = listen(jobs)
    replica = RealReplica(MODEL, Continuous(max_sequences=3), blocks=40, block_tokens=4)
    for job in jobs:
        replica.submit(job)
    replica.step()

    class Broken:
        def step(self, pieces, cache):
            raise MemoryError("no room")

    good, replica.model = replica.model, Broken()
    replica.step()
    replica.model = good
    assert {a.reason for a in answers if not a.ok} == {"failed"}
    assert all("no room" in a.why for a in answers if not a.ok)
    play(replica, [], seed=1)
    assert len(answers) == 6
    for answer in answers:
        assert not answer.ok or answer.tokens == expected(jobs[answer.id])


def test_fail_all_reaches_those_on_their_way():
    jobs = some_jobs(3, 4)
    answers, _ = listen(jobs)
    replica = RealReplica(MODEL, Continuous(max_sequences=1), blocks=40, block_tokens=4)
    replica.submit(jobs[0])
    replica.step()
    for job in jobs[1:]:
        replica.submit(job)
    replica.fail_all("going away")
    assert sorted(a.id for a in answers if a.why == "going away") == [
        j.request.id for j in jobs if j.request.id not in [a.id for a in answers if a.ok]
    ]
    assert len(answers) == 4
    assert replica.idle
    assert replica.faults() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda view: Batch([(view.waiting[0], 0)]), "gave 0 tokens"),
        (lambda view: Batch([(view.waiting[0], 99)]), "gave 99 tokens"),
        (lambda view: Batch([(view.waiting[0], 1), (view.waiting[0], 1)]), "named twice"),
        (lambda view: Batch([], [view.waiting[0]]), "does not run"),
        (lambda view: Batch([(STRANGER, 1)]), "not here"),
    ],
)
def test_an_illegal_batch_is_refused_by_name(change, words):
    class Wrong(Scheduler):
        def next_batch(self, view):
            return change(view)

    replica = RealReplica(MODEL, Wrong(), blocks=10, block_tokens=4)
    replica.submit(make_job(0, [1, 2, 3], 2, block_tokens=4))
    with pytest.raises(PartError, match=words):
        replica.step()
    assert replica.faults() == []


STRANGER = RealReplica(MODEL, blocks=4, block_tokens=4)
STRANGER.submit(make_job(77, [1], 1, block_tokens=4))
STRANGER = STRANGER._inbox[0][1]


def test_a_scheduler_that_gives_no_work_is_told_so():
    class Idle(Scheduler):
        def next_batch(self, view):
            return Batch([(s, s.missing) for s in view.waiting])

    replica = RealReplica(MODEL, Idle(), blocks=10, block_tokens=4)
    replica.submit(make_job(0, [1, 2, 3], 2, block_tokens=4))
    replica.step()
    with pytest.raises(PartError, match="gave no work to 1"):
        replica.step()


def test_jobs_that_cannot_be_served_are_refused():
    replica = RealReplica(MODEL, blocks=10, block_tokens=4)
    with pytest.raises(UsageError, match="the cache holds 40"):
        replica.submit(make_job(0, [1] * 30, 11, block_tokens=4))
    with pytest.raises(UsageError, match="context of 192"):
        replica.submit(make_job(0, [1] * 190, 11, block_tokens=4))
    with pytest.raises(UsageError, match="vocabulary"):
        replica.submit(make_job(0, [97], 1, block_tokens=4))
    with pytest.raises(UsageError, match="2 tokens given"):
        Job(Request(0, 0.0, 3, 1), [1, 2])
    with pytest.raises(UsageError, match="temperature=-1"):
        make_job(0, [1], 1, temperature=-1.0)
    with pytest.raises(UsageError, match="at least 1"):
        make_job(0, [], 1)
    assert replica.idle


def test_the_audit_notices_a_leak_a_theft_and_a_double_return():
    def fresh():
        replica = RealReplica(MODEL, blocks=12, block_tokens=4)
        for i in range(2):
            replica.submit(make_job(i, [i + 1] * 5, 9, block_tokens=4))
        replica.step()
        assert replica.faults() == []
        return replica

    leak = fresh()
    leak.running.pop()
    assert any("in use" in fault for fault in leak.faults())
    theft = fresh()
    theft.running[0].table[0] = theft.running[1].table[0]
    assert any("is held as" in fault for fault in theft.faults())
    short = fresh()
    short.running[0].table.pop()
    assert any("1 blocks, 5 tokens" in fault for fault in short.faults())
    twice = fresh()
    seq = twice.running[0]
    twice.pool.give_back(seq.held[1:], seq.table[1:])
    assert twice.faults()


def test_the_pool_never_gives_one_block_to_two():
    """Random holding, filling and releasing, with the numbers kept beside."""
    for seed in range(30):
        rng, pool = Stream(seed, "pool", "test"), PagedPool(12, 4, caching=seed % 4 > 0)
        owned: list[tuple[list[int], list[int]]] = []
        for _ in range(120):
            what = rng.random()
            if what < 0.4 and (got := pool.take_blocks(rng.randint(0, 4))):
                owned.append(([-1] * len(got), got))
            elif what < 0.6 and owned:
                held, numbers = rng.choice(owned)
                at = rng.randrange(len(held))
                if held[at] == -1:
                    held[at] = pool.fill_block(rng.randrange(20), numbers[at])
            elif what < 0.7 and pool.caching:
                key = rng.randrange(20)
                if pool.match([key]):
                    owned.append(([key], pool.hold_blocks([key])))
            elif what < 0.72:
                pool.forget()
            elif owned:
                pool.give_back(*owned.pop(rng.randrange(len(owned))))
            assert pool.faults() == []
            blank = [n for h, ns in owned for k, n in zip(h, ns, strict=True) if k == -1]
            keyed = {n for h, ns in owned for k, n in zip(h, ns, strict=True) if k != -1}
            assert len(set(blank)) == len(blank)
            assert not keyed & set(blank)
            assert len(keyed) + len(blank) == pool.blocks - pool.free


class _OneSecond:
    """Every step of the modelled replica takes a second, and is written down."""

    spread, extrapolated, tp, model = False, 0, 1, MODEL.spec

    def __init__(self):
        self.seen = []

    def seconds(self, prefill, decodes, decode_kv, spread=None):
        self.seen.append((tuple(prefill), decodes, decode_kv))
        return 1.0

    def decode_run(self, decodes, decode_kv, steps, spread=None):
        assert steps == 1
        return self.seconds((), decodes, decode_kv)


class _NeverSteady(Continuous):
    def steady(self, view):
        return False


@pytest.mark.parametrize("blocks", [13, 40])
def test_the_modelled_replica_makes_the_same_steps(blocks):
    """The same scheduler, the same requests, the same moments: equal batches, step by step."""
    scheduler = _NeverSteady(step_tokens=9, max_sequences=5)
    jobs = some_jobs(5, 14, most=14)
    rng = Stream(9, "parity", "moments")
    moments = sorted(rng.sample(range(20), len(jobs)))
    steps, records = _OneSecond(), []
    real = RealReplica(MODEL, scheduler, blocks=blocks, block_tokens=4)
    real.on_step = lambda r: records.append((r.prefill, r.decodes, r.decode_kv))
    second = 0
    while not real.idle or moments[-1] >= second:
        for job, moment in zip(jobs, moments, strict=True):
            if moment == second:
                real.submit(job)
        real.step()
        second += 1
    modelled = Replica(steps, scheduler, blocks=blocks, block_tokens=4, ahead=False)
    # A hair before the whole second, so that the step of that second sees the request.
    for job, moment in zip(jobs, moments, strict=True):
        while modelled.next_s < moment - 0.5:
            modelled.advance(modelled.next_s)
        modelled.submit(job.request, moment - 1e-6 if modelled.next_s < NEVER else float(moment))
    while modelled.next_s < NEVER:
        modelled.advance(modelled.next_s)
    assert records == steps.seen
    assert real.preemptions == modelled.preemptions
    assert (real.preemptions > 0) == (blocks == 13)
    assert real.hit_tokens == modelled.hit_tokens > 0


def test_routers_see_how_it_stands():
    replica = RealReplica(MODEL, Continuous(step_tokens=6), blocks=30, block_tokens=4, index=3)
    jobs = [make_job(i, [i + 1] * 9, 4, block_tokens=4) for i in range(2)]
    for job in jobs:
        replica.submit(job)
    view = replica.view
    assert (view.index, view.waiting, view.free_blocks) == (3, 2, 30)
    replica.step()
    view = replica.view
    assert (view.waiting, view.running, view.outstanding) == (1, 1, 2)
    assert (view.prefill_tokens, view.kv_tokens, view.free_blocks) == (12, 6, 28)
    assert view.cached_tokens(jobs[0].request) == 4 and view.cached_tokens(jobs[1].request) == 0
    replica.run()
    view = replica.view
    assert (view.outstanding, view.kv_tokens, view.free_blocks) == (0, 0, 30)
    assert view.cached_tokens(jobs[0].request) == 8


def test_jobs_of_a_workload_share_what_the_workload_shares():
    requests = [
        Request(0, 0.0, 10, 3, blocks=(1, 2)), Request(1, 0.0, 9, 3, blocks=(1, 5)),
        Request(2, 0.0, 10, 3, blocks=(1, 2)),
    ]  # fmt: skip
    jobs = jobs_of(requests, 97, block_tokens=4, seed=1)
    a, b, c = (job.prompt for job in jobs)
    assert [len(p) for p in (a, b, c)] == [10, 9, 10]
    assert a[:4] == b[:4] and a[4:8] != b[4:8] and a[:8] == c[:8] and a[8:] != c[8:]
    assert keys_of(a, 4) == keys_of(c, 4) != keys_of(b, 4)


def test_requests_of_a_workload():
    workload = pytest.importorskip("orrery.inputs.workload").Workload(
        arrival_s=[0.0, 0.5], input_tokens=[40, 20], output_tokens=[7, 9],
        block_ids=[1, 2, 3, 9], block_starts=[0, 3, 4],
    )  # fmt: skip
    first, second = requests_of(workload)
    assert (first.prompt_tokens, first._output_tokens, first.blocks) == (40, 7, (1, 2))
    assert (second.arrival_s, second.blocks) == (0.5, (9,))


def test_other_threads_may_submit_and_cancel(expected):
    jobs = some_jobs(1, 12)
    answers, _ = listen(jobs)
    replica = RealReplica(MODEL, blocks=40, block_tokens=4)

    def client(mine):
        for job in mine:
            replica.submit(job)
            replica.cancel(1000)  # a stranger: nothing happens

    threads = [threading.Thread(target=client, args=(jobs[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not replica.idle:
        replica.step()
    assert sorted(a.id for a in answers) == list(range(12))
    assert all(a.tokens == expected(jobs[a.id]) for a in answers)
