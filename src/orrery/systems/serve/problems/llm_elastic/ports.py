"""What a policy of an elastic pool sees and decides: roles, places, who may use a gap.

An instance has a role: which of the phases encode (E), prefill (P) and decode (D) it takes. Roles
are words such as "P", "PD" or "EPD"; a change of role needs no restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orrery.base.errors import PartError
from orrery.models.ports import ReplicaView, Scheduler
from orrery.models.requests import Request, Target
from orrery.parts import Node, Policy

if TYPE_CHECKING:
    from orrery.systems.serve.problems.llm_elastic.device import DeviceWork

PHASES = "EPD"
ROLES = ("E", "P", "D", "EP", "PD", "ED", "EPD")
ONLINE, OFFLINE = 0, 1  # priorities


class Job(Request):
    """A request to the pool: also how many of its prompt's tokens are of images.

    `priority` is ONLINE or OFFLINE; an offline job has no target and may wait for ever.
    """

    __slots__ = ("image_tokens",)

    def __init__(self, *args: Any, image_tokens: int = 0, **more: Any) -> None:
        super().__init__(*args, **more)
        self.image_tokens = image_tokens

    @property
    def online(self) -> bool:
        return self.priority == ONLINE


class InstanceView(ReplicaView):
    """An instance as the service sees it: a replica's figures, and

    role             the phases that it takes
    encode_s         seconds of images that wait to be encoded here
    decodes          requests that decode here or are about to
    offline_waiting  offline jobs in its queue; `offline` also those in its batch
    """

    __slots__ = ("decodes", "encode_s", "offline", "offline_waiting", "role")

    def __init__(self, index: int, total_blocks: int, block_tokens: int, role: str = "") -> None:
        super().__init__(index, total_blocks, block_tokens)
        self.role = role
        self.encode_s, self.decodes, self.offline, self.offline_waiting = 0.0, 0, 0, 0


class PoolView:
    """All instances that are alive as far as the service knows, and what came and was made so far.

    prompt_tokens    of online jobs that came since the beginning
    made_tokens      that were made for online jobs since the beginning
    encode_s         seconds of encoding that came since the beginning
    """

    __slots__ = ("encode_s", "instances", "made_tokens", "now_s", "prompt_tokens")

    def __init__(
        self, now_s: float, instances: Sequence[InstanceView], prompt_tokens: int = 0,
        made_tokens: int = 0, encode_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.now_s, self.instances = now_s, instances
        self.prompt_tokens, self.made_tokens, self.encode_s = prompt_tokens, made_tokens, encode_s

    def __len__(self) -> int:
        return len(self.instances)

    def able(self, phase: str) -> list[InstanceView]:
        """The instances whose role has a phase."""
        return [each for each in self.instances if phase in each.role]


class Profile(NamedTuple):
    """What profiling told a policy before the run.

    seconds      of a step: prompt chunks (new, cached), decodes, their context
    encode_s     of so many image tokens
    move_s       to send the cache of so many tokens to another instance
    load_s       to load the cache of so many tokens from host memory
    instances, blocks, block_tokens, target
    rehearse     serves a sample of the workload with a policy on a pool like this; its goodput
    """

    seconds: Callable[[Sequence[tuple[int, int]], int, int], float]
    encode_s: Callable[[int], float]
    move_s: Callable[[int], float]
    load_s: Callable[[int], float]
    instances: int
    blocks: int
    block_tokens: int
    target: Target
    rehearse: Callable[[Any], float] | None = None


class Placement(NamedTuple):
    """Where a job goes; `fetch` is an instance to copy cached blocks from first, or -1."""

    instance: int
    fetch: int = -1


class ElasticPolicy(Policy):
    """Decides for a pool of instances; the defaults are a plain service of fused instances.

    `begin` tells what profiling found. `steps` says how the engine turns device work into time,
    `scheduler` what an instance computes next, `roles` who does which phases (asked at the start
    and every `tick_s`), `place` where a job's next phase runs, `wants_offline` whether an
    instance takes one more offline job. `heard` tells which cached blocks an instance got and lost,
    `died` and `revived` who is gone and back, `instance` gives the node of a real instance.
    """

    # Whether decodes leave an instance that gives up decoding, with their cache.
    migrates = False

    def begin(self, profile: Profile) -> None:
        """What profiling told; called once after `start`."""

    def steps(self, device: DeviceWork) -> Any:
        """Step times of its engine on a device."""
        from orrery.systems.serve.problems.llm_elastic.device import Synchronous

        return Synchronous(device)

    def scheduler(self, profile: Profile) -> Scheduler:
        """A new scheduler for an instance."""
        from orrery.systems.serve.problems.llm_elastic.paced import Paced

        made = Paced()
        made.profile = profile
        return made

    def roles(self, view: PoolView) -> list[str]:
        """The role of each instance of the view, in its order."""
        return ["EPD"] * len(view)

    def place(self, job: Job, phase: str, view: PoolView) -> Placement:
        """Where a phase of a job runs; later phases that the same role has run there too."""
        able = view.able(phase)
        if not able:
            return Placement(-1)
        return Placement(min(able, key=least_loaded).index)

    def wants_offline(self, instance: InstanceView, view: PoolView) -> bool:
        """Whether an instance takes one more job from the offline backlog now."""
        return False

    def heard(self, instance: int, got: Sequence[int], lost: Sequence[int]) -> None:
        """An instance reports which blocks (by key) it has since the last report, and has not."""

    def died(self, instance: int) -> None:
        """An instance is gone, with all that it had."""

    def revived(self, instance: int) -> None:
        """An instance is back, empty."""

    def instance(self) -> Node:
        """The node of a real instance."""
        from orrery.systems.serve.problems.llm_elastic.node import InstanceNode

        return InstanceNode()


def least_loaded(view: InstanceView) -> tuple[float, int]:
    """What is to be computed at an instance, in tokens; the smallest is the least loaded."""
    return (view.prefill_tokens + view.decodes * 16.0 + view.encode_s * 1e3, view.index)


def check_roles(part: Any, roles: Sequence[str], view: PoolView) -> None:
    """Refuse roles that leave a phase to nobody, or that are none."""
    name = f"{type(part).__name__}.roles"
    if len(roles) != len(view):
        raise PartError(f"{name} gave {len(roles)} roles for {len(view)} instances; give one each")
    for role in roles:
        if role not in ROLES:
            raise PartError(f"{name} gave {role!r}; give one of {', '.join(ROLES)}")
    for phase in PHASES:
        if len(view) and not any(phase in role for role in roles):
            raise PartError(f"{name} leaves nobody to do phase {phase}; give it to an instance")


def roles_fault(roles: Any, view: PoolView) -> str:
    """What is wrong with an answer; empty when it may be carried out."""
    try:
        check_roles(None, list(roles), view)
    except (PartError, TypeError) as error:
        return str(error)
    return ""


__all__ = [
    "OFFLINE", "ONLINE", "PHASES", "ROLES", "ElasticPolicy", "InstanceView", "Job", "Placement",
    "PoolView", "Profile", "check_roles", "least_loaded", "roles_fault",
]  # fmt: skip
