"""The problem `llm_phases`: how do prefill and decode share a fixed number of accelerators?

Computing a prompt needs arithmetic, making tokens one by one needs memory bandwidth, and each of
the two disturbs the other. They may take turns, with prompts whole or in chunks; they may have
accelerators of their own, with caches that move; or they may run at once on shares of each device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from orrery.base.errors import KnobError, PartError, UsageError
from orrery.base.rand import Stream
from orrery.base.violation import Violation
from orrery.models.specs import spec
from orrery.models.weights import Layout
from orrery.parts import (
    Count,
    Driver,
    Fraction,
    Metric,
    NonNegative,
    Outcome,
    Positive,
    Problem,
    Whole,
)
from orrery.systems.serve.problems.clocked import play_out
from orrery.systems.serve.problems.llm_phases import loads
from orrery.systems.serve.problems.llm_phases.audit import (
    METRICS,
    faults_of,
    figures,
    slow_switches,
)
from orrery.systems.serve.problems.llm_phases.costs import ShareCosts, reach, slowdown
from orrery.systems.serve.problems.llm_phases.engine import (
    Change,
    Engine,
    MixedEngine,
    Note,
    SplitEngine,
)
from orrery.systems.serve.problems.llm_phases.ports import (
    Asked,
    Decoded,
    EngineView,
    PhasePolicy,
    Place,
    Prefilled,
    Site,
    SplitView,
    why_illegal,
)
from orrery.systems.serve.problems.llm_phases.session import Answer, Link, Log, Session, Transfer
from orrery.world import World, worlds

__all__ = [
    "Answer", "Asked", "Change", "Decoded", "EngineView", "LLMPhases", "Link", "Log", "Note",
    "PhasePolicy", "Place", "Prefilled", "Session", "ShareCosts", "Site", "SplitView", "Transfer",
    "faults_of", "figures", "reach", "slow_switches", "slowdown", "why_illegal",
]  # fmt: skip

_COSTS: dict[tuple[Any, ...], ShareCosts] = {}
# Shares of the multiprocessors for which workers stay resident.
GRID = tuple(round(0.05 * n, 2) for n in range(1, 20))


class LLMPhases(Problem):
    """Share a fixed number of accelerators between the prompts and the answers of one model.

    The policy (`PhasePolicy`) says which engines there are, where a prompt is computed and where it
    decodes, and on split engines which share of the multiprocessors prefill has. No prefix is
    shared between requests.

    The machines: `model` on `devices` accelerators of the world (0: all); `tp`, devices of an
    engine unless the policy says otherwise; `tables`, measured op tables ("auto": those that are
    installed, else rooflines; empty: rooflines); `memory_share` of a device for weights and cache;
    `saturates` off: bandwidth is in proportion to a share of the multiprocessors; `slots`, requests
    that decode at once; `prompt_tokens`, whole prompts that go into one step.
    The load: lengths of `workload` (azure-conv, azure-code, mooncake, reasoning, …; from `data`, a
    folder with the traces themselves, or from `trace`, any file), Poisson arrivals at `rate_per_s`;
    after `turn_s`, if it is not 0, lengths of `then` at `then_per_s`. `most_prompt`, longer prompts
    are cut.
    The targets: to the first token, `ttft_factor` x the prompt alone on the engine of `tp` devices,
    but at least `ttft_s`; between two tokens, `gap_s`, or if that is 0, `gap_factor` x a decode
    step of 32 sequences with 4,096 tokens (the strict target of Sarathi-Serve is 5 x).
    `goal`: if it is not 0, the highest rate is sought at which this share of requests attains both
    targets, within `within`; the run that is measured is the one at that rate.

    >>> problem = LLMPhases(tables="")
    >>> 0.05 < problem.pace_s() < 0.2
    True
    """

    model: str = "Llama-3.1-70B"
    devices: Whole = 8
    tp: Count = 4
    tables: str = "auto"
    memory_share: Fraction = 0.9
    saturates: bool = True
    slots: Count = 256
    prompt_tokens: Count = 2048
    block_tokens: Count = 16
    workload: str = "azure-conv"
    trace: str = ""
    data: str = ""
    requests: Count = 400
    rate_per_s: Positive = 8.0
    then: str = ""
    turn_s: NonNegative = 0.0
    then_per_s: NonNegative = 0.0
    most_prompt: Count = 120_000
    ttft_s: Positive = 0.25
    ttft_factor: Positive = 5.0
    gap_s: NonNegative = 0.0
    gap_factor: Positive = 5.0
    goal: Fraction = 0.0
    within: Positive = 0.03

    trial: ClassVar[Mapping[str, Any]] = {"requests": 100}
    port: ClassVar[type] = PhasePolicy
    metrics: ClassVar[Mapping[str, Metric]] = METRICS
    engines: ClassVar[tuple[str, ...]] = ("virtual",)

    def world(self) -> World:
        return worlds.get("h100_pod:1")

    def axes(self, by: str) -> Mapping[str, Sequence[float]]:
        return {"rate_per_s": [self.rate_per_s * factor for factor in (0.25, 0.5, 2)],
                "gap_factor": [self.gap_factor * factor for factor in (0.5, 2)]}  # fmt: skip

    # -- the machines

    def nodes(self, world: World) -> list[int]:
        """The node of each accelerator, in order; all accelerators are alike."""
        found = [
            node for node in range(world.size) for _ in world.machine_of(node).accelerators
        ]  # fmt: skip
        wanted = self.devices or len(found)
        if not found or wanted > len(found):
            raise UsageError(
                f"LLMPhases.devices = {wanted}: {world.title or 'the world'} has {len(found)} "
                "accelerators; take fewer, or a world such as h100_pod:8"
            )
        return found[:wanted]

    def costs(self, tp: int, world: World | None = None) -> ShareCosts:
        """What steps take on an engine of so many devices."""
        place = world or self.world()
        device = place.machine_of(self.nodes(place)[0]).accelerators[0]
        key = (self.model, device, tp, self.tables, self.saturates)
        if key not in _COSTS:
            # Tables take seconds to read; costs hold no state but counters.
            _COSTS[key] = ShareCosts(self.model, device, tp, self.tables, self.saturates)
        return _COSTS[key]

    def site(self, world: World | None = None) -> Site:
        """What there is to be shared out."""
        place, shape = world or self.world(), spec(self.model)
        nodes = self.nodes(place)
        device, room = place.machine_of(nodes[0]).accelerators[0], {}
        for tp in range(1, len(nodes) + 1):
            if shape.heads % tp or max(shape.kv_heads, tp) % min(shape.kv_heads, tp):
                continue
            fits = shape.kv_tokens_that_fit(device.memory_B, Layout(tp=tp), share=self.memory_share)
            if fits >= 64 * self.block_tokens:
                room[tp] = fits // self.block_tokens * self.block_tokens
        if self.tp not in room:
            fix = f"give one of {sorted(room)}" if room else "take a smaller model"
            problem = f"{self.tp} of {len(nodes)} x {device.name} do not hold {self.model}"
            raise KnobError("LLMPhases.tp", problem, fix)
        return Site(len(nodes), self.tp, room)

    def pace_s(self, world: World | None = None) -> float:
        """Seconds between two tokens that users expect."""
        if self.gap_s:
            return self.gap_s
        costs = self.costs(self.tp, world)
        return self.gap_factor * costs.decode(32, 32 * 4096)[0]

    # -- the load

    def load(self, seed: int, rate_per_s: float, world: World | None = None) -> list[Any]:
        """(request, length of its answer) for a seed, in order of arrival."""
        first, then = self._lengths(seed)
        count = len(first[0])
        arrival = loads.arrivals(count, rate_per_s, seed)
        prompt, output = first
        if self.turn_s:
            early = arrival < self.turn_s
            left = count - int(early.sum())
            later = loads.arrivals(left, self.then_per_s or rate_per_s, seed + 1)
            arrival = np.concatenate([arrival[early], self.turn_s + later])
            prompt = np.concatenate([first[0][early], then[0][:left]])
            output = np.concatenate([first[1][early], then[1][:left]])
        prompt = np.minimum(prompt, self.most_prompt)
        gap_s, alone = self.pace_s(world), self._alone(world)
        rows = zip(arrival.tolist(), prompt.tolist(), output.tolist(), strict=True)
        return [
            (Asked(number, at_s, tokens, max(self.ttft_s, alone(tokens)), gap_s), made)
            for number, (at_s, tokens, made) in enumerate(rows)
        ]  # fmt: skip

    def _lengths(self, seed: int) -> tuple[Any, Any]:
        key = (self.workload, self.trace, self.data, self.then, self.requests, seed)
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        if key not in kept:
            if bool(self.turn_s) != bool(self.then):
                fix = "give both, or neither"
                raise KnobError("LLMPhases.turn_s", f"{self.turn_s} with then={self.then!r}", fix)
            source = (self.trace, self.requests, seed, self.data)
            first = loads.lengths(self.workload, *source)
            then = loads.lengths(self.then, *source) if self.then else None
            kept[key] = (first, then)
        return kept[key]  # type: ignore[no-any-return]

    def _alone(self, world: World | None) -> Any:
        """Seconds that a prompt may take, by its length: a curve through a few lengths."""
        costs = self.costs(self.tp, world)
        before = costs.steps.extrapolated
        at = np.unique(np.geomspace(16, max(self.most_prompt, 32), 24).astype(int))
        took = np.array([costs.prefill([(int(tokens), 0)])[0] for tokens in at])
        costs.steps.extrapolated = before
        return lambda tokens: self.ttft_factor * float(np.interp(tokens, at, took))

    # -- the run

    def session(
        self, part: PhasePolicy, seed: int, world: World | None = None,
        rate_per_s: float | None = None, notes: bool = False,
    ) -> Session:  # fmt: skip
        """Everything that a run needs but a clock."""
        place = world or self.world()
        policy = part.with_knobs()
        policy.start()
        site, kept = self.site(place), [] if notes else None
        places = policy.places(site)
        wrong = why_illegal(places, site)
        if wrong:
            raise PartError(f"{type(part).__name__}.places: {wrong}")
        gap_s = self.pace_s(place)
        engines = [
            self._engine(number, each, site, policy, gap_s, kept, place)
            for number, each in enumerate(places)
        ]
        return Session(
            policy, self.load(seed, rate_per_s or self.rate_per_s, place), engines,
            links=self._links(places, place), kv_B=spec(self.model).kv_bytes_per_token(),
            notes=kept,
        )  # fmt: skip

    def _engine(
        self, number: int, place: Place, site: Site, policy: PhasePolicy, gap_s: float,
        notes: list[Note] | None, world: World,
    ) -> Engine:  # fmt: skip
        blocks = site.room[place.devices] // self.block_tokens
        common = (number, place, self.costs(place.devices, world), blocks, self.block_tokens,
                  self.slots, self.prompt_tokens, notes)  # fmt: skip
        if place.role == "mixed":
            return MixedEngine(*common)
        watcher = policy.watcher() if place.role == "split" else None
        return SplitEngine(*common, policy=watcher, grid=GRID, gap_s=gap_s)

    def _links(self, places: Sequence[Place], world: World) -> dict[tuple[int, int], Link]:
        """Between prefill and decode engines: inside a machine the accelerators' links, between
        machines the network, whose cards the accelerators of a machine share."""
        nodes, at, first = self.nodes(world), [], 0
        for place in places:
            at.append(nodes[first])
            first += place.devices
        wiring, found = world.wiring(), {}
        for a, one in enumerate(places):
            for b, other in enumerate(places):
                if one.role != "prefill" or other.role != "decode":
                    continue
                machine = world.machine_of(at[a])
                device, many = machine.accelerators[0], min(one.devices, other.devices)
                if at[a] == at[b]:
                    rate_Bps = (device.link_Bps or machine.memory_Bps) * many
                    found[a, b] = Link(0.0, rate_Bps)
                    continue
                path = wiring.bulk_path(at[a], at[b])
                slowest = min(float(wiring.capacity_Bps[link]) for link in path)
                part = min(many / len(machine.accelerators), 1.0)
                found[a, b] = Link(wiring.latency(at[a], at[b]), slowest * part)
        return found

    def play(
        self, part: PhasePolicy, seed: int, world: World | None = None,
        rate_per_s: float | None = None, notes: bool = False,
    ) -> Log:  # fmt: skip
        """Everything to the end, without an engine's clock."""
        return self.session(part, seed, world, rate_per_s, notes).play()

    def capacity(
        self, part: PhasePolicy, seed: int, world: World | None = None, goal: float = 0.9,
        start_per_s: float | None = None,
    ) -> tuple[float, Log]:  # fmt: skip
        """The highest rate at which `goal` of the requests attain their targets, and that run.

        Doubling from the start rate, then halving of the interval on a scale of ratios.
        """
        kept: dict[float, Log] = {}

        def holds(rate: float) -> bool:
            log = kept[rate] = self.play(part, seed, world, rate)
            return sum(each.met for each in log.answers) >= goal * len(log.requests)

        low = high = start_per_s or self.rate_per_s
        if holds(low):
            while holds(high := high * 2) and high < 1e6:
                low = high
        else:
            while not holds(low := low / 2):
                high = low
                if low < 1e-3:
                    return 0.0, kept[low]
        while high / low > 1 + self.within:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low, kept[low]

    async def drive(self, driver: Driver) -> Log:
        world, seed = self.__dict__.get("place"), driver.rng.getrandbits(32)
        if self.goal:
            rate, log = self.capacity(driver.part, seed, world, self.goal)
            return log._replace(capacity_per_s=rate)
        run = self.session(driver.part, seed, world)
        await play_out(driver, run)
        return run.log()

    def host(self, part: Any, world: World) -> Mapping[str, Any]:
        self.site(world)
        self.__dict__["place"] = world
        return {}

    # -- the verdict

    def check(self, outcome: Outcome) -> list[Violation]:
        log = outcome.driven
        return faults_of(log) if isinstance(log, Log) else []

    def measure(self, outcome: Outcome) -> dict[str, float]:
        log = outcome.driven
        if not isinstance(log, Log):
            return {}
        shares = [each.after for each in log.changes]
        return figures(log) | {
            "target_gap_s": self.pace_s(outcome.world),
            "share_mean": float(np.mean(shares)) if shares else 0.0,
            "measured_tables": float(self.costs(self.tp, outcome.world).measured),
        }  # fmt: skip

    def views(self, rng: Stream) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """A history for the laws: sites, engines with room and without, a split that is watched."""
        site = Site(8, 4, {2: 41_216, 4: 513_056, 8: 1_456_752})
        yield "places", (site,), lambda answer: not why_illegal(answer, site)
        share = 0.5
        for turn in range(24):
            engines = [] if turn % 8 == 0 else some_engines(rng, turn)
            asked = Asked(turn, 0.5 * turn, 1 + rng.below(4000), 1.0, 0.1)
            takers = [each.index for each in engines if each.role != "decode"] or [-1]
            yield "route", (asked, engines), lambda answer, may=takers: answer in may
            targets = [each.index for each in engines if each.role == "decode"]
            yield (
                "hand_over",
                (asked, engines),
                lambda answer, may=targets: answer == -1 or answer in may,
            )
            view = some_view(rng, turn, share)
            yield "share", (view,), lambda answer: answer in GRID


def some_engines(rng: Stream, turn: int) -> list[EngineView]:
    """Made-up engines of one kind or of two."""
    roles = ("prefill", "decode", "decode") if turn % 2 else ("split", "split", "mixed")
    return [
        EngineView(index, role, 2, rng.below(5), rng.below(9000), rng.below(50), rng.below(90_000),
                   rng.below(100_000), 200_000)
        for index, role in enumerate(roles)
    ]  # fmt: skip


def some_view(rng: Stream, turn: int, share: float) -> SplitView:
    """A made-up second of a split engine; every fifth has nothing in it."""
    view = SplitView(1.0 + turn, float(turn), share, GRID, 0.06)
    if turn % 5 == 0:
        return view
    view.waiting, view.running = rng.below(6), rng.below(60)
    view.waiting_tokens, view.kv_tokens = 900 * view.waiting, 1200 * view.running
    view.arrived = [100 + rng.below(4000) for _ in range(rng.below(12))]
    view.targets = [max(0.25, 3e-4 * tokens) for tokens in view.arrived]
    view.ended = [1 + rng.below(400) for _ in range(rng.below(12))]
    view.firsts = [(rng.uniform(0.02, 2.0), 0.5) for _ in range(rng.below(12))]
    view.prefills = [
        Prefilled(share, 1, tokens, tokens * 6e-5 / share + 0.01) for tokens in view.arrived
    ]
    view.decodes = [
        Decoded(1 - share, view.running, view.kv_tokens, 0.02 + 1e-7 * view.kv_tokens)
        for _ in range(rng.below(20)) if view.running
    ]  # fmt: skip
    return view
