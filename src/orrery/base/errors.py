"""Every error that Orrery raises, in one tree.

::

    OrreryError                 what a user can mend; the message names what, which value, the fix
    ├── UsageError              the command line or the call is off                      (exit 64)
    ├── SpecError               a field of a data file or a knob is off; has `.path`
    │   ├── WorldError          ... in a world
    │   ├── KnobError           ... in the knobs of a part or problem
    │   ├── FaultError          ... in a fault schedule
    │   └── StemError           ... in the TOML of a system
    ├── CodecError              bytes that do not decode, or a value that does not encode
    ├── PartError               a part broke: an unhandled error, a broken law; names node and time
    │   └── LeakError           a part touched the wall clock, `random`, a thread, a socket ...
    ├── NotFitted               an estimator was asked before it was fitted
    ├── DeadlineExceeded        `deadline(s)` ran out (also a TimeoutError)
    ├── DiskError               a disk of a node said no: full, no such file, a bad name
    ├── Refused                 an rpc handler said no to an `ask`; travels back to the caller
    ├── PlatformLacks           this platform or installation lacks a thing; names what gives it
    ├── StoreError              a run folder is damaged, locked, or of a newer schema
    └── ClaimError              a claim cannot be judged as it is written
    InternalError               our bug, never the user's (also an AssertionError)
    Cancelled                   thrown into a task that is being ended (let it pass)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OrreryError(Exception):
    """Anything that the user can mend."""


class UsageError(OrreryError):
    """The command line or the call is off."""


class SpecError(OrreryError):
    """A field is off: `path` says which, the message says its value and the fix."""

    def __init__(self, path: str, problem: str, fix: str = "") -> None:
        self.path = path
        self.problem = problem
        self.fix = fix
        super().__init__(f"{path}: {problem}" + (f"; {fix}" if fix else ""))


class WorldError(SpecError):
    """A field of a world is off."""


class KnobError(SpecError):
    """A knob of a part or a problem is off."""


class FaultError(SpecError):
    """A field of a fault schedule is off."""


class StemError(SpecError):
    """A field of a system's TOML is off."""


class CodecError(OrreryError):
    """Bytes that do not decode, or a value that does not encode."""


class PartError(OrreryError):
    """A part broke: an unhandled error, or a broken law."""


class LeakError(PartError):
    """A part touched something outside its world: the wall clock, `random`, a thread, a socket."""


class NotFitted(OrreryError):
    """An estimator was asked for a prediction before it was fitted."""


class DeadlineExceeded(OrreryError, TimeoutError):
    """A `deadline(s)` block ran out of time."""


class DiskError(OrreryError):
    """A node's disk said no: it is full, there is no such file, or the name is off."""


class Refused(OrreryError):
    """An rpc handler said no; the caller's `ask` raises the same."""


class PlatformLacks(OrreryError):
    """This platform or installation lacks a thing; the message names what gives it."""


class StoreError(OrreryError):
    """A run folder is damaged, locked, or written by a newer schema."""


class ClaimError(OrreryError):
    """A claim cannot be judged as it is written."""


class InternalError(AssertionError):
    """Our bug, never the user's."""


class Cancelled(BaseException):
    """Thrown into a task that is being ended. Let it pass; `finally` blocks still run."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The fix for an unknown name: the nearest known one, or the list of all.

    >>> did_you_mean("fanuot", ["fanout", "period_s"])
    'did you mean "fanout"?'
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    if near:
        return f'did you mean "{near[0]}"?'
    return "known: " + (", ".join(names) if names else "none")
