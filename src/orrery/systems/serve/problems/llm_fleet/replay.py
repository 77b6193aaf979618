"""The replay of a whole plan in virtual time: every replica, the front before them, every request.

The front shares requests out over the roles, in turn and in proportion to their throughput, and
within a role it takes the replica that has the fewest open requests for its throughput. Where a
model has prefill and decode replicas, a request makes its first token on the one, then its KV
travels to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from orrery.models.replica import Replica, drain
from orrery.models.requests import Request, Served
from orrery.models.specs import spec
from orrery.systems.serve.problems.llm_fleet.market import Need
from orrery.systems.serve.problems.llm_fleet.rates import (
    FEWEST,
    SPAN_S,
    WARM,
    in_role,
    replica_of,
    requests_at,
)
from orrery.systems.serve.problems.llm_fleet.strategy import NETWORK_LATENCY_S, NETWORK_Bps
from orrery.systems.serve.problems.llm_fleet.templates import Template


class Fared(msgspec.Struct, frozen=True):
    """How the requests of one model fared: sent, answered, judged, on time; and in how long."""

    model: str
    sent: int
    answered: int
    judged: int
    met: int
    seconds: float
    faults: tuple[str, ...] = ()

    @property
    def attainment(self) -> float:
        """The share of the judged requests that met the target."""
        return self.met / self.judged if self.judged else 1.0


class Turn:
    """Hands out in proportion to weights: the next is who is furthest behind its share."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights, self.given = list(weights), [0] * len(weights)

    def next(self) -> int:
        some = [i for i, weight in enumerate(self.weights) if weight > 0]
        best = min(some, key=lambda i: ((self.given[i] + 1) / self.weights[i], i))
        self.given[best] += 1
        return best


def replicas_of(
    counts: Mapping[str, int], templates: Mapping[str, Template], model: str
) -> Iterator[Template]:
    """The template of each replica of a model."""
    for name, count in counts.items():
        if templates[name].model == model:
            yield from [templates[name]] * count


def replay(
    counts: Mapping[str, int], templates: Mapping[str, Template], need: Need, *, seed: int = 0,
    span_s: float = SPAN_S, most: int = 4000,
) -> Fared:  # fmt: skip
    """Send a model's demand to its replicas, as Poisson arrivals; how the requests fared."""
    if need.rate_per_s <= 0:
        return Fared(need.model, 0, 0, 0, 0, 0.0)
    count = int(min(max(need.rate_per_s * span_s, FEWEST), most))
    requests = requests_at(need.promise.workload, need.rate_per_s, count, seed)
    mine = list(replicas_of(counts, templates, need.model))
    mixed = [each for each in mine if each.strategy and each.strategy.role == "mixed"]
    first = [each for each in mine if each.strategy and each.strategy.role == "prefill"]
    second = [each for each in mine if each.strategy and each.strategy.role == "decode"]
    # Both halves of a split fleet do the same requests, so the scarcer half sets its share.
    split = min(
        sum(each.prompts_per_s for each in first), sum(each.answers_per_s for each in second)
    )
    whole = sum(each.prompts_per_s for each in mixed)
    front = [*mixed, *(first if split else [])]
    if not front:
        return Fared(need.model, count, 0, count, 0, 0.0, ("no replica serves it",))
    replicas = [replica_of(each.strategy, at) for at, each in enumerate(front) if each.strategy]
    speeds = [each.prompts_per_s for each in front]
    groups = [range(len(mixed)), range(len(mixed), len(front))]
    roles = ["mixed"] * len(mixed) + ["prefill"] * (len(front) - len(mixed))
    done = _serve(replicas, roles, speeds, groups, Turn([whole, split]), requests)
    ended = {each.id: (each.ttft_s, each) for each in done}
    faults = [text for each in replicas for text in each.faults()]
    faults += _decode(need, requests, done, len(mixed), second, ended)
    warm, target = int(count * WARM), need.promise.target
    judged = [ended[each.id] for each in requests[warm:] if each.id in ended]
    met = sum(
        ttft_s <= target.ttft_s and _tpot_s(requests[last.id], ttft_s, last) <= target.tpot_s
        for ttft_s, last in judged
    )
    seconds = max((last.last_s for _, last in ended.values()), default=0.0)
    answered = sum(
        last.output_tokens == requests[last.id]._output_tokens for _, last in ended.values()
    )
    return Fared(need.model, count, answered, count - warm, met, seconds, tuple(faults))


def _tpot_s(request: Request, ttft_s: float, last: Served) -> float:
    made = max(request._output_tokens - 1, 1)
    return (last.last_s - request.arrival_s - ttft_s) / made


def _serve(
    replicas: Sequence[Replica], roles: Sequence[str], speeds: Sequence[float],
    groups: Sequence[range], turn: Turn, requests: Sequence[Request],
) -> list[Served]:  # fmt: skip
    """Each request to the group whose turn it is, there to who has least open for its speed."""
    done: list[Served] = []
    for request in requests:
        now_s = request.arrival_s
        for replica in replicas:
            while replica.next_s <= now_s:
                done += replica.advance(replica.next_s)
        group = groups[turn.next()]
        at = min(group, key=lambda i: ((replicas[i].view.outstanding + 1) / speeds[i], i))
        replicas[at].submit(in_role(request, roles[at]), now_s)
    for replica in replicas:
        done += drain(replica, ())
    return done


def _decode(
    need: Need, requests: Sequence[Request], done: Sequence[Served], mixed: int,
    second: Sequence[Template], ended: dict[int, tuple[float, Served]],
) -> list[str]:  # fmt: skip
    """Bring what the prefill replicas began to its end; `ended` tells how it ended."""
    begun = sorted((each for each in done if each.replica >= mixed), key=lambda each: each.last_s)
    if not begun or not second:
        return []
    kv_B = spec(need.model).kv_bytes_per_token()
    moved = []
    for each in begun:
        on_way_s = NETWORK_LATENCY_S + each.prompt_tokens * kv_B / NETWORK_Bps
        request = requests[each.id]
        moved.append(Request(each.id, each.last_s + on_way_s, request.prompt_tokens,
                             request._output_tokens))  # fmt: skip
    moved.sort(key=lambda request: (request.arrival_s, request.id))
    replicas = [replica_of(each.strategy, at) for at, each in enumerate(second) if each.strategy]
    roles, speeds = ["decode"] * len(second), [each.answers_per_s for each in second]
    for last in _serve(replicas, roles, speeds, [range(len(second))], Turn([1.0]), moved):
        ended[last.id] = (ended[last.id][0], last)
    return [text for each in replicas for text in each.faults()]


__all__ = ["Fared", "Turn", "replay", "replicas_of"]
