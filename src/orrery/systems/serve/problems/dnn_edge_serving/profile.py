"""Profiles: the seconds T[model][exit][batch] and the accuracy of each exit, as data.

The shipped tables were measured (see `source` in each file); `plain_profile` makes regular ones for
tests and benchmarks. A profile of your own is a JSON file of the same fields.
"""

from __future__ import annotations

import functools
import itertools
import math
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from orrery.base.errors import SpecError, did_you_mean

HERE = "orrery.systems.serve.problems.dnn_edge_serving"
MOST_B = 4 << 20
MOST_CELLS = 1 << 20


class ProfileError(SpecError):
    """A field of a profile is off."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of the networks before serving begins.

    `seconds[m][e][k]` is the time of a batch of `batches[k]` through exit e of model m;
    `accuracy[m][e]` the share of right answers there. `source` says where the figures come from.
    """

    models: tuple[str, ...]
    batches: tuple[int, ...]
    seconds: tuple[tuple[tuple[float, ...], ...], ...]
    accuracy: tuple[tuple[float, ...], ...]
    source: str = ""

    def exits(self, model: int) -> int:
        """How many exits a model has."""
        return len(self.accuracy[model])

    def full_s(self, model: int) -> float:
        """Seconds of one request alone, at full depth."""
        return self.seconds[model][-1][0]

    def work_s(self, model: int) -> float:
        """Seconds of work that a request needs: full depth, at the best batch size."""
        return min(t / b for t, b in zip(self.seconds[model][-1], self.batches, strict=True))

    def place(self, batch: int) -> int:
        """Where a batch size stands in the table."""
        return self.batches.index(batch)

    def arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Seconds [M, E, B] and accuracy [M, E]; where a model has fewer exits, NaN."""
        return _arrays(self)

    def chosen(self, names: tuple[str, ...]) -> Profile:
        """The same table for some of the models, in the given order."""
        for name in names:
            if name not in self.models:
                fix = did_you_mean(name, self.models)
                raise ProfileError("profile.models", f"there is no model {name!r}", fix)
        if not names or len(set(names)) != len(names):
            raise ProfileError("profile.models", f"{names!r} is refused", "name each model once")
        places = [self.models.index(name) for name in names]
        return Profile(
            models=tuple(names), batches=self.batches, source=self.source,
            seconds=tuple(self.seconds[m] for m in places),
            accuracy=tuple(self.accuracy[m] for m in places),
        )  # fmt: skip

    def scaled(self, factors: tuple[float, ...]) -> Profile:
        """The same with each model's seconds multiplied by its factor."""
        times = tuple(
            tuple(tuple(t * f for t in row) for row in rows)
            for rows, f in zip(self.seconds, factors, strict=True)
        )
        return msgspec.structs.replace(self, seconds=times)

    def check(self) -> Profile:
        """The profile itself, once nothing in it contradicts the rest."""
        count = len(self.models)
        if not count or len(set(self.models)) != count:
            raise ProfileError("profile.models", f"{self.models!r}", "name each model once")
        if not self.batches or self.batches[0] != 1 or list(self.batches) != sorted(
            set(self.batches)
        ):  # fmt: skip
            raise ProfileError("profile.batches", f"{self.batches!r}", "ascend from 1")
        for name, rows in (("seconds", self.seconds), ("accuracy", self.accuracy)):
            if len(rows) != count:
                raise ProfileError(f"profile.{name}", f"{len(rows)} rows for {count} models",
                                   "give one row a model")  # fmt: skip
        for m in range(count):
            self._check_model(m)
        if sum(map(len, self.accuracy)) * len(self.batches) > MOST_CELLS:
            raise ProfileError("profile.seconds", "is too large", f"keep to {MOST_CELLS} cells")
        return self

    def _check_model(self, m: int) -> None:
        rows, right = self.seconds[m], self.accuracy[m]
        path = f"profile.seconds.{m}"
        if not right or len(rows) != len(right):
            raise ProfileError(path, f"{len(rows)} exits, {len(right)} accuracies", "make it equal")
        for e, row in enumerate(rows):
            if len(row) != len(self.batches):
                raise ProfileError(f"{path}.{e}", f"{len(row)} times", "one for each batch size")
            if not all(math.isfinite(t) and t > 0 for t in row):
                raise ProfileError(f"{path}.{e}", f"{row!r}", "give seconds > 0")
            if any(b < a for a, b in itertools.pairwise(row)):
                raise ProfileError(f"{path}.{e}", "a larger batch is faster", "sort or smooth it")
        for a, b in itertools.pairwise(rows):
            if any(late <= early for early, late in zip(a, b, strict=True)):
                raise ProfileError(path, "a deeper exit is not slower", "leave that exit out")
        if not all(0 <= each <= 1 for each in right):
            raise ProfileError(f"profile.accuracy.{m}", f"{right!r}", "give shares from 0 to 1")


@functools.lru_cache(maxsize=64)
def _arrays(profile: Profile) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    most = max(map(len, profile.accuracy))
    seconds = np.full((len(profile.models), most, len(profile.batches)), np.nan)
    accuracy = np.full((len(profile.models), most), np.nan)
    for m, rows in enumerate(profile.seconds):
        seconds[m, : len(rows)] = rows
        accuracy[m, : len(rows)] = profile.accuracy[m]
    seconds.flags.writeable = accuracy.flags.writeable = False
    return seconds, accuracy


def read_profile(data: bytes, path: str) -> Profile:
    """A profile from JSON, checked; a fault is a `ProfileError` that names the field."""
    if len(data) > MOST_B:
        raise ProfileError(path, f"{len(data)} bytes", f"a profile has at most {MOST_B}")
    try:
        return msgspec.json.decode(data, type=Profile).check()
    except msgspec.MsgspecError as failure:
        raise ProfileError(path, f"is no profile: {failure}", "mend that field") from None


@functools.lru_cache(maxsize=16)
def find_profile(name: str) -> Profile:
    """A shipped profile by name, or one of your own by the path of its JSON file."""
    if name.endswith(".json"):
        try:
            return read_profile(Path(name).read_bytes(), name)
        except OSError as failure:
            raise ProfileError(name, f"cannot be read: {failure.strerror}", "check it") from None
    folder = resources.files(HERE) / "profiles"
    known = sorted(each.name[:-5] for each in folder.iterdir() if each.name.endswith(".json"))
    if name not in known:
        fix = did_you_mean(name, known) + ", or give the path of a .json file"
        raise ProfileError("profile", f"there is no profile {name!r}", fix)
    return read_profile((folder / f"{name}.json").read_bytes(), f"{name}.json")


def plain_profile(
    models: int, exits: int = 1, batches: tuple[int, ...] = (1,), full_s: float = 0.01,
    fixed: float = 0.5,
) -> Profile:  # fmt: skip
    """A regular table: exit e of E takes its share of the time, a batch b fixed + (1 - fixed) b.

    >>> plain_profile(1, exits=2, batches=(1, 2), full_s=1.0).seconds[0]
    ((0.5, 0.75), (1.0, 1.5))
    """
    rows = tuple(
        tuple(full_s * (e + 1) / exits * (fixed + (1 - fixed) * b) for b in batches)
        for e in range(exits)
    )
    right = tuple(1.0 - 0.2 * (exits - 1 - e) / exits for e in range(exits))
    return Profile(
        models=tuple(f"m{m}" for m in range(models)), batches=batches,
        seconds=(rows,) * models, accuracy=(right,) * models, source="made up, regular",
    )  # fmt: skip
