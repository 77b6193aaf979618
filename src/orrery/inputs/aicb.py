"""Workload text of AICB and SimAI: a training step as rows of compute and collectives.

The first line holds the parallelism ("HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2
ep: 16 pp: 12 vpp: 8 ga: 24 all_gpus: 9216 … pp_comm 50331648"), the second the number of rows. A
row is a layer as one rank sees it: for each of the forward pass, the input gradient and the weight
gradient its compute time in ns, its collective and the bytes of that. In the forward pass and the
input gradient a bare name (ALLREDUCE) means the tensor-parallel group, in the weight gradient the
data-parallel one; _EP and _DP_EP name the expert-parallel group and its complement (facts from
github.com/aliyun/SimAI, MIT).
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import CodecError

PASSES = ("forward", "input_grad", "weight_grad")
GROUPS = ("tp", "dp", "ep", "dp_ep")
_KINDS = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}  # fmt: skip
_SIZES = {
    "model_parallel_NPU_group": "tp", "ep": "ep", "pp": "pp", "vpp": "vpp", "ga": "micro_batches",
    "all_gpus": "gpus", "pp_comm": "pp_comm_B",
}  # fmt: skip
COLUMNS = 12
MOST_NS = 1 << 62


class AicbError(CodecError):
    """A workload text that does not say what it should; names the line and the field."""


class AicbWorkload(msgspec.Struct, frozen=True):
    """A training step: sizes of the parallelism, and a row for each layer.

    `compute_ns` and `size_B` have one column for each pass; `collective` and `group` hold names
    ("" where there is none).
    """

    policy: str
    tp: int
    ep: int
    pp: int
    vpp: int
    micro_batches: int
    gpus: int
    pp_comm_B: int
    name: list[str]
    compute_ns: npt.NDArray[np.int64]
    size_B: npt.NDArray[np.int64]
    collective: list[tuple[str, str, str]]
    group: list[tuple[str, str, str]]
    source: str = ""

    def __len__(self) -> int:
        return len(self.name)

    @property
    def dp(self) -> int:
        """How many data-parallel replicas there are."""
        return self.gpus // (self.tp * self.pp)


def read_aicb(path: str | Path) -> AicbWorkload:
    """A workload file; an error names the line, the field and the fix."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as failure:
        raise AicbError(f"{path}: cannot be read: {failure.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise AicbError(f"{path}: is not text; is it an AICB workload?") from None
    lines = text.splitlines()
    if len(lines) < 2:
        raise AicbError(f"{path}: has {len(lines)} lines; the first two are the header")
    head = _header(lines[0], path)
    count = lines[1].strip()
    if not count.isdigit():
        raise AicbError(f"{path}: line 2 is {count!r:.40}; give the number of rows")
    body = [line for line in lines[2:] if line.strip()]
    if len(body) != int(count):
        raise AicbError(f"{path}: line 2 promises {count} rows, there are {len(body)}; is it cut?")
    rows = [_row(line, number, path) for number, line in enumerate(body, 3)]
    return AicbWorkload(
        **head, name=[row[0] for row in rows],
        compute_ns=np.array([row[1] for row in rows], np.int64).reshape(-1, 3),
        size_B=np.array([row[2] for row in rows], np.int64).reshape(-1, 3),
        collective=[row[3] for row in rows], group=[row[4] for row in rows], source=str(path),
    )  # fmt: skip


def _header(line: str, path: str | Path) -> dict[str, Any]:
    words = line.split()
    if not words:
        raise AicbError(f"{path}: line 1 is empty; it begins with the policy")
    found: dict[str, Any] = {"policy": words[0]}
    for word, value in itertools.pairwise(words):
        name = _SIZES.get(word.rstrip(":"))
        if name is None:
            continue
        if not value.isdigit():
            raise AicbError(f"{path}: line 1: {word} {value!r:.40} is no whole number")
        found[name] = int(value)
    for name in ("tp", "gpus"):
        if found.get(name, 0) < 1:
            raise AicbError(f"{path}: line 1 gives no {name}; write it as AICB does")
    for name in ("ep", "pp", "vpp", "micro_batches"):
        if found.setdefault(name, 1) < 1:
            raise AicbError(f"{path}: line 1: {name} = 0; give at least 1")
    found.setdefault("pp_comm_B", 0)
    whole = found["tp"] * found["pp"]
    if found["gpus"] % whole:
        raise AicbError(
            f"{path}: line 1: {found['gpus']} GPUs are no multiple of tp x pp = {whole}"
        )
    if (found["gpus"] // whole) % found["ep"]:
        raise AicbError(
            f"{path}: line 1: ep = {found['ep']} does not divide dp = {found['gpus'] // whole}"
        )
    return found


Row = tuple[str, list[int], list[int], tuple[str, str, str], tuple[str, str, str]]


def _row(line: str, number: int, path: str | Path) -> Row:
    words = line.split()
    if len(words) != COLUMNS:
        raise AicbError(f"{path}: line {number} has {len(words)} fields; a row has {COLUMNS}")
    compute, size, kinds, groups = [], [], [], []
    for step, phase in enumerate(PASSES):
        time_ns, collective, size_B = words[2 + 3 * step : 5 + 3 * step]
        for what, value in (("compute time", time_ns), ("bytes", size_B)):
            if not re.fullmatch(r"\d{1,18}", value) or int(value) > MOST_NS:
                raise AicbError(
                    f"{path}: line {number}: {phase} {what} {value!r:.40} is no whole number"
                )
        kind, group = _collective(collective, phase, number, path)
        compute.append(int(time_ns))
        size.append(int(size_B))
        kinds.append(kind)
        groups.append(group)
    return words[0], compute, size, (*kinds,), (*groups,)  # type: ignore[return-value]


def _collective(text: str, phase: str, number: int, path: str | Path) -> tuple[str, str]:
    if text == "NONE":
        return "", ""
    name, _, suffix = text.partition("_")
    own = "dp" if phase == "weight_grad" else "tp"
    group = {"": own, "EP": "ep", "DP_EP": "dp_ep", "DP": "dp", "TP": "tp"}.get(suffix)
    if name not in _KINDS or group is None:
        known = ", ".join(_KINDS)
        raise AicbError(f"{path}: line {number}: {phase}: unknown collective {text!r:.40}; "
                        f"known: NONE, {known}, with _EP or _DP_EP")  # fmt: skip
    return _KINDS[name], group
