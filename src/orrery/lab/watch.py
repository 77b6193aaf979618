"""The watch: sees a part touch the outside while it runs in virtual time, and names the line.

`run_watched` runs as `run` does and gives the findings beside the run, or, with `strict`, ends the
run at the first. It looks at every call of a C function (the wall clock, `random`, `os.urandom` …
are such) through the interpreter's profiling hook, so nothing is replaced and names imported early
are seen too; an audit hook adds sockets, files, threads and processes. Both look only at code
outside the core, only in this thread and only during the run. It costs several times the run.
"""

from __future__ import annotations

import _thread
import contextlib
import datetime
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

from orrery.base.errors import LeakError, PartError
from orrery.lab.leaks import FORBIDDEN, Finding, _classes
from orrery.lab.run import Run, run

_AUDITED = {
    "open": "open", "socket.__new__": "socket.", "socket.connect": "socket.",
    "socket.bind": "socket.", "subprocess.Popen": "subprocess.", "os.system": "os.system",
    "os.fork": "os.fork", "os.posix_spawn": "subprocess.", "_thread.start_new_thread": "threading.",
    "os.listdir": "os.listdir", "os.scandir": "os.scandir", "urllib.Request": "urllib.request.",
}  # fmt: skip
_DEEPEST = 40


def _c_functions() -> dict[Any, str]:
    """C functions that a part must not reach, with the name of the rule."""
    found: dict[Any, str] = {}
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
                 "process_time", "localtime", "gmtime", "sleep"):  # fmt: skip
        found[getattr(time, name)] = f"time.{name}"
    for name in ("urandom", "getrandom", "getpid", "getcwd", "stat", "fork", "lstat"):
        if hasattr(os, name):
            found[getattr(os, name)] = f"os.{name}" if name != "lstat" else "os.stat"
    for name in ("start_new_thread", "start_joinable_thread"):  # audited only in newer Pythons
        if hasattr(_thread, name):
            found[getattr(_thread, name)] = "threading."
    # The methods of the generator that the functions of the module `random` share.
    shared: Any = vars(random)["_inst"]
    for name in ("random", "getrandbits"):
        found[getattr(shared, name)] = "random."
    return found


_C_CALLS = _c_functions()
_PY_CALLS: dict[CodeType, str] = {
    type(os.environ).__getitem__.__code__: "os.environ",
    os.getenv.__code__: "os.getenv",
}
_watching = threading.local()
_installed: list[bool] = []


class Watch:
    """What is watched in one run, and what was seen."""

    def __init__(self, files: set[str], strict: bool) -> None:
        self.files = files
        self.strict = strict
        self.found: dict[tuple[str, int, str], Finding] = {}
        self.busy = False

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """Called by the interpreter at each call."""
        rule = ""
        if event == "c_call":
            try:
                rule = _C_CALLS.get(arg, "")
            except TypeError:  # a method of something that has no hash
                return
            if not rule:
                rule = _clock_of(arg)
        elif event == "call":
            rule = _PY_CALLS.get(frame.f_code, "")
        if rule:
            self.note(rule, frame)

    def note(self, rule: str, frame: FrameType | None) -> None:
        """Keep a finding if the call comes from a part's code, and not from the core below it."""
        here = frame
        for _ in range(_DEEPEST):
            if here is None or "importlib" in here.f_code.co_filename:
                return
            if here.f_code.co_filename in self.files:
                break
            if _is_core(here.f_code.co_filename):
                return
            here = here.f_back
        else:
            return
        assert here is not None
        what, fix = FORBIDDEN[rule]
        node, time_s = _who(here)
        one = Finding(
            path=here.f_code.co_filename, line=here.f_lineno, fix=fix, node=node, time_s=time_s,
            what=f"{rule.rstrip('.')} is {what}",
        )  # fmt: skip
        self.found.setdefault((one.path, one.line, one.what), one)
        if self.strict:
            raise LeakError(str(one))


def _clock_of(function: Any) -> str:
    """The rule for the class methods of datetime, which are new objects at each look."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, datetime.date):
        name = getattr(function, "__name__", "")
        kind = "datetime" if issubclass(owner, datetime.datetime) else "date"
        rule = f"datetime.{kind}.{name}"
        return rule if rule in FORBIDDEN else ""
    return ""


def _core_folders() -> tuple[str, ...]:
    import orrery

    root = os.path.dirname(os.path.abspath(orrery.__file__))
    names = ("base", "world", "parts", "check", "inputs", "models", "engines", "lab")
    return tuple(os.path.join(root, name) + os.sep for name in names)


def _is_core(path: str) -> bool:
    return path.startswith(_CORE)


_CORE = _core_folders()


def _who(frame: FrameType) -> tuple[int | None, float | None]:
    """The node whose code is running, and its time, from the nearest `self` that is one."""
    here: FrameType | None = frame
    for _ in range(_DEEPEST):
        if here is None:
            break
        one: Any = here.f_locals.get("self")
        if hasattr(type(one), "_engine") and hasattr(type(one), "emit"):
            try:
                return int(one.id), float(one.now)
            except (AttributeError, TypeError, PartError):
                return None, None
        here = here.f_back
    return None, None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    rule = _AUDITED.get(event)
    if rule is None:
        return
    watch: Watch | None = getattr(_watching, "now", None)
    if watch is None or watch.busy:
        return
    watch.busy = True  # what the watch itself does is nobody's leak
    try:
        watch.note(rule, sys._getframe(1))
    finally:
        watch.busy = False


@contextlib.contextmanager
def watching(files: set[str], strict: bool = False) -> Iterator[Watch]:
    """Watch this thread for calls from these source files."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_audit)  # it cannot be taken away again, so there is one, mostly idle
    watch = Watch(files, strict)
    outer, before = getattr(_watching, "now", None), sys.getprofile()
    _watching.now = watch
    sys.setprofile(watch.profile)
    try:
        yield watch
    finally:
        sys.setprofile(before)
        _watching.now = outer


def files_of(part: Any, problem: Any = None) -> set[str]:
    """The source files outside the core that a part's (and a problem's) code can reach."""
    from orrery.lab.spec import sources

    found: set[str] = set()
    for cls in [*_classes(part), *([type(problem)] if problem is not None else [])]:
        names = {each.__module__ for each in cls.__mro__} | set(sources(cls))
        for name in names:
            path = getattr(sys.modules.get(name), "__file__", None)
            if (
                path
                and not _is_core(path)
                and name.partition(".")[0] not in sys.stdlib_module_names
            ):
                found.add(path)
    return found


def run_watched(part: Any, *, strict: bool = False, **options: Any) -> tuple[Run, list[Finding]]:
    """`run(part, …)` under watch; gives the run and what leaked, in order of path and line.

    With `strict` the run ends at the first leak with a `LeakError` that names the line, the node
    and the time.
    """
    before = _state(part)
    files = files_of(part, options.get("problem"))
    try:
        with watching(files, strict) as watch:
            made = run(part, **options)
    except PartError as failure:
        if isinstance(failure.__cause__, LeakError):
            raise LeakError(f"{failure.__cause__}; {_seed_words(options)}") from None
        raise
    found = [*watch.found.values(), *_changed_state(part, before)]
    if strict and found:
        raise LeakError("\n".join(str(each) for each in found))
    return made, sorted(found, key=lambda each: (each.path, each.line, each.what))


def _seed_words(options: dict[str, Any]) -> str:
    return f"seed {options.get('seed', 0)} shows it again"


# -- state that outlives a node


def _state(part: Any) -> dict[tuple[str, str], tuple[Any, str]]:
    """The containers that hang on a part's classes and modules, with what is in them now."""
    found: dict[tuple[str, str], tuple[Any, str]] = {}
    for cls in _classes(part):
        for base in cls.__mro__:
            module = sys.modules.get(base.__module__)
            if module is None or _is_core(getattr(module, "__file__", None) or "") or (
                base is object):  # fmt: skip
                continue
            for owner, holder in ((base.__qualname__, base), ("", module)):
                found |= _containers(owner, holder, base.__module__)
    return found


def _containers(
    owner: str, holder: type | ModuleType, module: str
) -> dict[tuple[str, str], tuple[Any, str]]:
    mutable = (list, dict, set, bytearray)
    return {
        (module, f"{owner}.{name}" if owner else name): (value, _contents(value))
        for name, value in list(vars(holder).items())
        if isinstance(value, mutable) and not name.startswith("_")
    }


def _contents(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return str(len(value))


def _changed_state(part: Any, before: dict[tuple[str, str], tuple[Any, str]]) -> Iterator[Finding]:
    for (module, name), (value, was) in before.items():
        if _contents(value) == was:
            continue
        path = getattr(sys.modules.get(module), "__file__", None) or module
        what = f"{name} outlives the nodes, and the run changed it"
        yield Finding(path=path, line=_line_of(path, name), what=what,
                      fix="make it in start(), on self")  # fmt: skip


def _line_of(path: str, name: str) -> int:
    """Where a name is assigned, by its last part; 1 where that cannot be found."""
    import ast
    from pathlib import Path

    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return 1
    last = name.rpartition(".")[2]
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else (
            [node.target] if isinstance(node, ast.AnnAssign) else [])  # fmt: skip
        if any(isinstance(target, ast.Name) and target.id == last for target in targets):
            return int(node.lineno)  # type: ignore[attr-defined]
    return 1
