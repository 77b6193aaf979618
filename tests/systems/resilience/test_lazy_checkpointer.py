"""`LazyCheckpointer`: DataStates in an ordinary PyTorch loop, on real files."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="pip install 'orrery[torch]'")

from orrery.base.errors import UsageError  # noqa: E402
from orrery.systems.resilience.datastates_llm import (  # noqa: E402
    CheckpointStore,
    LazyCheckpointer,
)
from orrery.systems.resilience.problems.shards import StorageFull, WrongShape  # noqa: E402


def build(width=64, half=False):
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 4)
    )
    module = module.to(torch.bfloat16) if half else module
    return module, torch.optim.AdamW(module.parameters(), 1e-2)


def step(module, optimiser, iteration):
    rows = torch.randn(8, 16, generator=torch.Generator().manual_seed(iteration))
    module(rows.to(next(module.parameters()).dtype)).square().mean().backward()
    optimiser.step()
    optimiser.zero_grad()


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def copied(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("buffer_B", [4_000, 1 << 20])
def test_a_restored_run_ends_as_one_that_was_never_interrupted(tmp_path, half, buffer_B):
    calm, its_optimiser = build(half=half)
    for iteration in range(9):
        step(calm, its_optimiser, iteration)
    module, optimiser = build(half=half)
    store = CheckpointStore(tmp_path)
    with LazyCheckpointer(module, optimiser, store, buffer_B=buffer_B, piece_B=1_000) as keeper:
        for iteration in range(5):
            step(module, optimiser, iteration)
            keeper.save(iteration + 1, {"lesson": iteration})
        keeper.wait()
        assert 0 < keeper.ring.high_B <= buffer_B
    module, optimiser = build(half=half)
    with LazyCheckpointer(module, optimiser, store) as keeper:
        first = keeper.restore()
        assert first == 5 and keeper.small(5) == {"lesson": 4} and keeper.damaged == []
        for iteration in range(first, 9):
            step(module, optimiser, iteration)
    assert same(module, calm)
    assert optimiser.state_dict()["param_groups"] == its_optimiser.state_dict()["param_groups"]


class SlowCopier(LazyCheckpointer):
    def _copy_piece(self, slot, source, ready):
        time.sleep(0.003)
        super()._copy_piece(slot, source, ready)


@pytest.mark.works_when("datastates-llm", 2)
@pytest.mark.parametrize("waits", [True, False])
def test_the_optimiser_waits_for_a_slow_copier_by_itself(tmp_path, waits):
    module, optimiser = build()
    keeper = SlowCopier(module, optimiser, CheckpointStore(tmp_path, keep=9), piece_B=1_000,
                        clock=time.perf_counter)  # fmt: skip
    if not waits:
        keeper._hook.remove()  # planted: the update begins early
    states = {}
    for iteration in range(1, 5):
        step(module, optimiser, iteration)
        keeper.before_update()  # only one copy at a time, also in the planted case
        states[iteration] = copied(module)
        keeper.save(iteration)
    keeper.close()
    whole = []
    for iteration, state in states.items():
        other, its_optimiser = build()
        with LazyCheckpointer(other, its_optimiser, keeper.store) as reader:
            reader.restore(iteration)
        found = other.state_dict()
        whole.append(all(torch.equal(found[name], state[name]) for name in state))
    if waits:
        assert all(whole) and keeper.waited_s > 0.05
    else:
        assert not all(whole)


class FullNow(CheckpointStore):
    full = False

    def write(self, file, view):
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(file, view)


def test_a_full_disk_is_told_and_training_goes_on(tmp_path):
    module, optimiser = build()
    store = FullNow(tmp_path)
    keeper = LazyCheckpointer(module, optimiser, store, buffer_B=4_000, piece_B=1_000)
    for iteration in range(1, 5):
        step(module, optimiser, iteration)
        keeper.before_update()
        for _, flush in keeper._flushes:
            flush.exception()  # let the last save end before the disk changes
        store.full = iteration == 3
        keeper.save(iteration)
    with pytest.raises(StorageFull, match="iteration 3"):
        keeper.wait()
    keeper.wait()  # told once
    assert store.complete() == [4, 2] and not list(tmp_path.rglob("*.part"))
    keeper.close()


def test_another_model_is_refused_by_the_name_of_its_tensor(tmp_path):
    module, optimiser = build(64)
    with LazyCheckpointer(module, optimiser, CheckpointStore(tmp_path)) as keeper:
        keeper.save(1)
    other, its_optimiser = build(32)
    keeper = LazyCheckpointer(other, its_optimiser, CheckpointStore(tmp_path))
    with pytest.raises(WrongShape, match=r"0\.bias.*\[64\].*\[32\]"):
        keeper.restore()
    keeper.close()
    module_only, _ = build(64)
    with LazyCheckpointer(module_only, None, CheckpointStore(tmp_path)) as keeper:
        assert keeper.restore() == 1


def test_what_a_former_life_left_is_dropped_before_training_goes_on(tmp_path):
    stores = [CheckpointStore(tmp_path, rank=rank, size=2) for rank in range(2)]
    keepers = [LazyCheckpointer(*build(), store) for store in stores]
    for keeper in keepers:
        keeper.save(1)
        keeper.wait()
    keepers[0].save(2)  # rank 1 died before its save
    keepers[0].wait()
    assert [keeper.restore() for keeper in keepers] == [1, 1]
    assert not (tmp_path / "it000000002").exists()
    for keeper in keepers:
        keeper.close()


def test_nothing_stays_behind(tmp_path):
    before = set(threading.enumerate())
    module, optimiser = build()
    for _ in range(2):
        with LazyCheckpointer(module, optimiser, CheckpointStore(tmp_path)) as keeper:
            step(module, optimiser, 0)
            keeper.save(1)
    assert set(threading.enumerate()) <= before
    assert not optimiser._optimizer_step_pre_hooks and not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("knobs", [{"buffer_B": 0}, {"piece_B": -1}, {"piece_B": 1.5}])
def test_bad_input_is_named(tmp_path, knobs):
    with pytest.raises(UsageError, match=next(iter(knobs))):
        LazyCheckpointer(*build(), CheckpointStore(tmp_path), **knobs)
    keeper = LazyCheckpointer(*build(), CheckpointStore(tmp_path))
    with pytest.raises(UsageError, match="small state"):
        keeper.save(1, {"f": object()})
    keeper.close()


@pytest.mark.slow
@pytest.mark.works_when("datastates-llm", 3)
def test_200_MB_at_every_iteration():
    from bench.datastates import measure

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = measure(steps=5)
    finally:
        torch.set_num_threads(threads)
    ways = found["ways"]
    ours = ways.pop("ours")
    assert found["state_B"] >= 200e6
    assert ours["forward_backward_s"] >= 5 * found["copy_s"]
    assert ours["waited_s"] <= 0.1 * ways["torch.save"]["waited_s"]
    rivals = ("torch.save", "asynchronous copy")
    assert all(ours["time_s"] < ways[name]["time_s"] for name in rivals)
    assert ours["time_s"] <= 1.3 * ways["none"]["time_s"]
    for slow in found["throttled"].values():
        assert slow["waited_s"] == pytest.approx(slow["formula_s"], rel=0.25)
