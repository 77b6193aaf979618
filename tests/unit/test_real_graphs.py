"""Recorded steps: they give the tokens of the plain engine, and write no block but their own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs the extra torch")

import torch
from tests.unit.real_toys import Chaos, Reference, model_of, some_jobs, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from orrery.base.errors import UsageError
from orrery.base.rand import Stream
from orrery.models.real import Continuous, Piece, RealReplica, Transformer
from orrery.models.real.frames import Desk, Frame, Size
from orrery.models.real.graphs import Graphs, can_record, decode_sizes, mixed_sizes
from orrery.models.real.jobs import make_job
from orrery.models.real.paged import PagedCache

MODEL = model_of()
RECORDABLE = ("gqa", "mha", "mqa", "qk_norm", "gpt2", "window", "four_norms")


class Tape(TorchDispatchMode):
    """Writes down operators with their tensors, and runs them again: a CUDA graph on the CPU.

    Whatever the recorded code decided in Python stays decided, as in a graph: only what lies in
    memory may differ from step to step.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


def on_tape(compute):
    """A `Capture` for tests."""
    compute()
    tape = Tape()
    with tape:
        wanted = compute()

    def replay():
        now = {}

        def current(value):
            if isinstance(value, torch.Tensor):
                return now.get(id(value), value)
            if isinstance(value, list | tuple):
                return type(value)(current(each) for each in value)
            return value

        for func, args, kwargs, was in tape.calls:
            made = func(*current(args), **{k: current(v) for k, v in kwargs.items()})
            pairs = [(was, made)] if isinstance(was, torch.Tensor) else zip(was, made, strict=True)
            for old, new in pairs:
                if isinstance(old, torch.Tensor):
                    now[id(old)] = new
        return current(wanted)

    return replay


def plain_attend(frame, q, keys, values, scale, *, window):
    """Attention from what lies in a frame's memory, one program after the other."""
    rows, heads = q.shape[:2]
    size, kv_heads = keys.shape[1:3]
    group, wide = heads // kv_heads, frame.table_width
    there = torch.arange((keys.shape[0] + 1) * size)
    # Which sequence each row belongs to, and at which place of it: from the frame alone.
    row = torch.arange(rows)[:, None]
    inside = (row >= frame.starts) & (row < frame.starts + frame.news)
    seq = inside.long().argmax(1)
    place = row[:, 0] - frame.starts[seq] + frame.lengths[seq] - frame.news[seq]
    at = (seq[:, None] * wide + there // size).clamp(max=len(frame.tables) - 1)
    slots = (frame.tables[at.long()].long() * size + there % size).clamp(
        0, keys.shape[0] * size - 1
    )
    sees = (there <= place[:, None]) & inside.any(1)[:, None]
    if window:
        sees = sees & (there > place[:, None] - window)
    k = keys.flatten(0, 1)[slots].repeat_interleave(group, 2)
    v = values.flatten(0, 1)[slots].repeat_interleave(group, 2)
    score = torch.einsum("thd,tnhd->thn", q, k) * scale
    score = torch.where(sees[:, None], score, torch.full_like(score, -torch.inf))
    made = torch.einsum("thn,tnhd->thd", torch.softmax(score, -1), v)
    # What nobody computes is poison: it must not get into anybody's answer or block.
    return torch.where(inside.any(1)[:, None, None], made, torch.full_like(made, torch.nan))


def seam(**more):
    return {"capture": on_tape, "attend": plain_attend, **more}


def replica_of(model=MODEL, scheduler=None, **more):
    return RealReplica(model, scheduler, block_tokens=4, graphs=seam(), **{"blocks": 24, **more})


def play(replica, jobs, seed=0, audit=None):
    """Answers by id, with the books audited after every step."""
    answers, rng, left = {}, Stream(seed, "graphs", "arrivals"), list(jobs)
    for job in jobs:
        job.on_end = lambda answer: answers.__setitem__(answer.id, answer)
    while left or not replica.idle:
        while left and rng.random() < 0.4:
            replica.submit(left.pop(0))
        replica.step()
        assert replica.faults() == []
        if audit is not None:
            audit(replica)
    return {id: answer.tokens for id, answer in answers.items()}


@pytest.mark.parametrize("name", RECORDABLE)
def test_recorded_steps_give_the_tokens_of_the_reference(name):
    model = model_of(name)
    reference, jobs = Reference(model.spec), some_jobs(1, 5, most=7)
    replica = replica_of(model, Continuous(step_tokens=11, max_sequences=4))
    told = play(replica, jobs)
    for job in jobs:
        wanted = reference.greedy(job.prompt, job.request._output_tokens)
        assert told[job.request.id] == wanted
    assert replica.graphs.replays == replica.steps and replica.graphs.refused == 0


@pytest.mark.parametrize("seed", range(6))
def test_mad_schedules_give_the_tokens_and_the_cache_of_the_plain_engine(seed):
    """Same schedule, same requests: equal tokens, and equal content of every block in use."""
    jobs = [some_jobs(seed, 8) for _ in range(2)]
    knobs = {"blocks": 16, "caching": seed % 3 > 0}
    plain = RealReplica(MODEL, Chaos(seed=seed), block_tokens=4, **knobs)
    fast = RealReplica(
        MODEL, Chaos(seed=seed), block_tokens=4, graphs=seam(step_tokens=24, max_sequences=6),
        **knobs,
    )  # fmt: skip
    wanted = play(plain, jobs[0], seed)
    contents = []

    def keep(replica):
        contents.append(content(replica))

    told = play(fast, jobs[1], seed, keep)
    assert told == wanted
    assert fast.graphs.replays and fast.preemptions == plain.preemptions > 0
    again = RealReplica(MODEL, Chaos(seed=seed), block_tokens=4, **knobs)
    other = []
    play(again, some_jobs(seed, 8), seed, lambda replica: other.append(content(replica)))
    assert len(other) == len(contents)
    for mine, theirs in zip(contents, other, strict=True):
        assert mine.keys() == theirs.keys()
        for id in mine:
            assert torch.allclose(mine[id], theirs[id], atol=1e-11, rtol=0)


def content(replica):
    """Keys and values of every running request, as the cache has them."""
    cache, found = replica.cache, {}
    for seq in replica.running:
        kept = [both[:, seq.table].flatten(1, 2)[:, : seq.computed]
                for both in (cache.keys, cache.values)]  # fmt: skip
        found[seq.request.id] = torch.stack(kept).clone()
    return found


def test_padding_writes_to_the_spare_block_alone():
    """Every block but those written to keeps its content, bit for bit, in steps of every size."""
    cache = MODEL.new_cache(30, 4, spare=True)
    cache.keys.uniform_(-1, 1), cache.values.uniform_(-1, 1)
    graphs = Graphs(MODEL, cache, step_tokens=20, max_sequences=6, **seam())
    rng = Stream(4, "graphs", "blocks")
    for _ in range(40):
        numbers = list(range(30))
        rng.shuffle(numbers)
        pieces, mine = [], set()
        for _ in range(rng.randint(1, 6)):
            start, new = rng.randrange(9), rng.choice((1, 1, 1, 3))
            need = -(-(start + new) // 4)
            table = [numbers.pop() for _ in range(need)]
            tokens = [rng.randrange(97) for _ in range(new)]
            pieces.append(Piece(tokens, start, table, rng.random() < 0.8))
            mine |= {(table[n // 4], n % 4) for n in range(start, start + new)}
        before = cache.keys.clone(), cache.values.clone()
        graphs.step(pieces)
        for was, now in zip(before, (cache.keys, cache.values), strict=True):
            changed = {(b, p) for _, b, p, _, _ in (was != now).nonzero().tolist() if b < 30}
            assert changed == mine
            assert now[:, :30].isfinite().all()


def test_only_sampled_pieces_give_tokens_and_drawing_is_that_of_the_plain_engine():
    cache = MODEL.new_cache(8, 4, spare=True)
    graphs = Graphs(MODEL, cache, step_tokens=9, max_sequences=3, **seam())
    pieces = [Piece([1, 2], 0, [0], sample=False), Piece([3], 0, [1])]
    logits, likeliest = graphs.step(pieces)
    assert logits.shape == (1, 97)
    assert likeliest == MODEL.greedy(pieces[1:], MODEL.new_cache(8, 4))
    assert graphs.step([Piece([1, 2], 0, [0], sample=False)])[1] == []
    told = []
    for graphs in (False, seam()):
        jobs = some_jobs(1, 5, temperature=0.9, top_p=0.8, seed=5)
        replica = RealReplica(MODEL, blocks=40, block_tokens=4, graphs=graphs)
        told.append(play(replica, jobs))
    assert told[0] == told[1]


def test_a_step_beyond_the_largest_size_goes_the_old_way():
    job = make_job(0, list(range(40)), 4, block_tokens=4)
    small = replica_of(scheduler=None, blocks=30)
    small.graphs = Graphs(MODEL, small.cache, step_tokens=8, max_sequences=2, **seam())
    told = play(small, [job])
    assert small.graphs.refused == 1 and small.graphs.replays == 3
    assert told[0] == Reference(MODEL.spec).greedy(range(40), 4)
    assert small.graphs.size_of([Piece([1], 0, [0])] * 3) is None


def test_sizes_cover_every_step_and_are_never_both_kinds():
    for most in (1, 3, 24, 64, 256):
        sizes = decode_sizes(most)
        assert sizes == sorted(set(sizes)) and sizes[-1] == most
        for tokens in (1, 5, 64, 300, 2048, 8192):
            mixed = mixed_sizes(tokens, above=most)
            assert mixed == sorted(set(mixed)) and mixed[0] > most and mixed[-1] >= tokens


def test_all_sizes_are_recorded_once():
    seen = []
    graphs = Graphs(
        MODEL, MODEL.new_cache(8, 4, spare=True), step_tokens=70, max_sequences=4,
        attend=plain_attend, capture=lambda compute: seen.append(1) or on_tape(compute),
    )  # fmt: skip
    graphs.prepare()
    assert len(seen) == len(graphs.decode_sizes) + len(graphs.mixed_sizes) == 5
    graphs.prepare()
    graphs.step([Piece([1], 0, [0])])
    assert len(seen) == 5
    assert graphs.pads == {"decode": [1, 2, 4], "mixed": [64, 70]}


def test_what_cannot_be_recorded_is_named_or_left_alone():
    assert not can_record(MODEL)  # no CUDA
    assert RealReplica(MODEL, blocks=8, block_tokens=4).graphs is None
    with pytest.raises(UsageError, match="spare"):
        Desk(MODEL.new_cache(8, 4), tokens=4, sequences=2, group=2)
    cache = MODEL.new_cache(8, 4, spare=True)
    with pytest.raises(UsageError, match="give 1 or more"):
        Graphs(MODEL, cache, step_tokens=0, max_sequences=2, **seam())
    graphs = Graphs(MODEL, cache, step_tokens=9, max_sequences=3, **seam())
    with pytest.raises(UsageError, match="5 tokens, 1 blocks"):
        graphs.step([Piece([1] * 5, 0, [0])])


def test_a_recording_that_forgot_to_read_memory_is_noticed():
    """The tape can fail: an attention that bakes its lengths in gives other tokens."""

    def baked(frame, *args, window):
        frame.lengths = frame.lengths.detach().clone() * 0 + 1
        return plain_attend(frame, *args, window=window)

    jobs = [make_job(0, [5, 6, 7, 8, 9], 6, block_tokens=4)]
    replica = RealReplica(
        MODEL, blocks=20, block_tokens=4, graphs={"capture": on_tape, "attend": baked}
    )
    assert play(replica, jobs)[0] != Reference(MODEL.spec).greedy(jobs[0].prompt, 6)


def test_a_triton_kernel_that_is_here_agrees_with_the_plain_one():
    """Runs where Triton is, on a GPU or in its interpreter (TRITON_INTERPRET=1)."""
    import os

    from orrery.models.real import kernels

    if not kernels.ready() or not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET")):
        pytest.skip("needs Triton, and a GPU or its interpreter")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for heads, kv_heads, width, window in ((4, 2, 16, 0), (6, 2, 40, 7), (4, 4, 32, 0)):
        rng = Stream(heads, "kernel", "test")
        shape = tiny(heads=heads, kv_heads=kv_heads, head_dim=width, max_context=600)
        cache = PagedCache(shape, 150, 16, device=device, dtype=torch.float32, spare=True)
        cache.keys.normal_(), cache.values.normal_()
        desk = Desk(cache, tokens=200, sequences=8, group=heads // kv_heads)
        for decodes in (True, False):
            numbers, pieces = list(range(150)), []
            for _ in range(4):
                start, new = rng.choice((1, 70, 450)), 1 if decodes else rng.choice((1, 5, 40))
                table = [numbers.pop() for _ in range(-(-(start + new) // 16))]
                pieces.append(Piece([1] * new, start, table))
            size = Size(8, 8, True) if decodes else Size(200, 8, False)
            desk.fill(pieces, size)
            frame, tokens = Frame(desk, size, None), sum(len(p.tokens) for p in pieces)
            q = torch.randn(size.tokens, heads + kv_heads, width, device=device)[:, :heads]
            args = (frame, q, cache.keys[0], cache.values[0], width**-0.5)
            got, want = (f(*args, window=window)[:tokens] for f in (kernels.attend, plain_attend))
            assert torch.allclose(got, want, atol=0.02 if device == "cuda" else 1e-5)


@pytest.mark.slow
def test_many_mad_schedules_never_spoil_a_block():
    """Tokens and every written key and value are those of the plain engine, step by step."""
    small = Transformer.random(tiny(layers=1), seed=5, dtype="fp64", device="cpu")
    # Computing anew instead of replaying a tape is as telling about blocks, and much faster.
    fast_seam = seam(capture=lambda compute: compute, step_tokens=20, max_sequences=4)
    for seed in range(200):
        kept = []
        knobs = {"blocks": 9 + seed % 9, "block_tokens": 4, "caching": seed % 3 > 0}
        for graphs in (False, fast_seam):
            seen = []
            replica = RealReplica(
                small, Chaos(seed=seed, preempts=0.05), graphs=graphs, **knobs
            )  # fmt: skip
            told = play(replica, some_jobs(seed, 4, most=4), seed,
                        lambda r, seen=seen: seen.append(content(r)))  # fmt: skip
            kept.append((told, seen))
        (wanted, plain), (told, fast) = kept
        assert told == wanted and len(plain) == len(fast)
        for mine, theirs in zip(fast, plain, strict=True):
            assert mine.keys() == theirs.keys()
            for id in mine:
                assert torch.allclose(mine[id], theirs[id], atol=1e-11, rtol=0)
