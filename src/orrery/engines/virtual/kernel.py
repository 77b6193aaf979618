"""Picks the event kernel: the C one where it was built, else its pure-Python twin.

`ORRERY_KERNEL=python` asks for the twin, `ORRERY_KERNEL=c` insists on the C kernel.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from orrery.base import rand
from orrery.base.errors import PlatformLacks, UsageError
from orrery.engines.virtual import kernel_py


def load(name: str | None = None) -> ModuleType:
    """The kernel module called `name` ("c", "python"), or the best there is."""
    wanted = name or os.environ.get("ORRERY_KERNEL", "")
    if wanted not in ("", "c", "python", "chosen"):
        raise UsageError(f'no kernel {wanted!r}; use "c" or "python"')
    if wanted == "python":
        return kernel_py
    if wanted == "chosen":
        from orrery.engines.virtual import chosen

        return chosen
    try:
        from orrery.engines.virtual import _kernel  # type: ignore[attr-defined]
    except ImportError as error:
        if wanted == "c":
            raise PlatformLacks(
                f"the C kernel was not built ({error}); install a C compiler and the Python "
                "headers, then reinstall orrery"
            ) from None
        _tell_once()
        return kernel_py
    if not hasattr(_kernel, "Stream"):
        # The C core draws words; the distributions are the Python ones, so both kernels agree.
        _kernel.Stream = type("Stream", (_kernel.StreamCore, rand.Draws), {"__slots__": ()})
    return _kernel  # type: ignore[no-any-return]


_told = False


def _tell_once() -> None:
    """One line, once a process, so that nobody wonders why a run is slow."""
    global _told
    if not _told:
        _told = True
        print(
            "orrery: the C kernel was not built here, so the slower pure-Python kernel is in use",
            file=sys.stderr,
        )
