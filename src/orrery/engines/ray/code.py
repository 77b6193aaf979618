"""Which code a worker needs: the search path, and modules that no search would find.

Parts are named, never pickled. A worker imports them by name, after the search path became that of
the parent. Two kinds of module cannot be found so and travel as their source: the script that was
started (`__main__`), and a file that was loaded by its path.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
import tempfile
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orrery.base import codec
from orrery.base.errors import PartError
from orrery.parts.knobs import Part

_bringing = False
_brought: dict[str, str] = {}
_Sources = list[tuple[str, str, str, str]]  # (name, package, path, text)


def is_bringing() -> bool:
    """Whether a worker is just loading a module of its parent."""
    return _bringing


def version() -> str:
    """The version of Orrery; looked up, as an engine may not import what stands above it."""
    return str(sys.modules["orrery"].__version__)


def search_path() -> list[str]:
    """The parent's search path with its current folder, as whole paths."""
    here = os.getcwd()
    return list(dict.fromkeys([*(os.path.abspath(path or here) for path in sys.path), here]))


def classes_of(things: Iterable[Any]) -> list[type]:
    """The classes of parts and of the parts in their knobs, with all their bases."""
    found: dict[type, None] = {}
    todo = list(things)
    while todo:
        thing = todo.pop()
        if isinstance(thing, dict):
            todo += thing.values()
        elif isinstance(thing, (list, tuple)):
            todo += thing
        elif isinstance(thing, Part):
            todo += thing.knobs().values()
        if type(thing).__module__ != "builtins":
            found |= dict.fromkeys(each for each in type(thing).__mro__ if each is not object)
        if isinstance(thing, (type, types.FunctionType)):
            found |= {_named(thing): None}
    return list(found)


def _named(thing: Any) -> type:
    """A class as it is; a function as a class that stands for its module."""
    if isinstance(thing, type):
        return thing
    return type(thing.__name__, (), {"__module__": thing.__module__})


def pack(classes: Iterable[type], far: bool = False) -> bytes:
    """The sources that must travel for these classes, and our version.

    To a machine that lacks our disk (`far`) each file of ours travels; packages go with Ray.
    """
    sources: _Sources = []
    for name in dict.fromkeys(each.__module__ for each in classes):
        module = sys.modules.get(name)
        if module is None or name.startswith("orrery."):
            continue
        if _findable(name, module) and not (far and _is_own_file(name, module)):
            continue
        path = getattr(module, "__file__", None)
        if not path or not os.path.isfile(path):
            raise PartError(
                f"a part is defined in {name}, which is no file that a Ray worker could load; put "
                "it into a module (a .py file), or use the processes engine"
            )
        text = Path(path).read_text(encoding="utf-8")
        package = getattr(module, "__package__", "") or ""
        sources.append((name, package, os.path.abspath(path), text))
    return codec.encode({"version": version(), "sources": sources})


def _findable(name: str, module: Any) -> bool:
    """Whether a fresh interpreter with our search path would import this very module."""
    if name == "__main__":
        return False
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return True
    found = importlib.machinery.PathFinder.find_spec(top, search_path())
    if found is None:
        return False
    if "." in name or found.origin is None:
        return True
    return os.path.realpath(found.origin) == os.path.realpath(getattr(module, "__file__", "") or "")


def _is_own_file(name: str, module: Any) -> bool:
    """Whether a module is neither installed nor part of a package that Ray carries."""
    top = sys.modules.get(name.partition(".")[0])
    path = getattr(module, "__file__", None) or ""
    carried = Path(getattr(top, "__file__", None) or "").name == "__init__.py"
    standard = name.partition(".")[0] in sys.stdlib_module_names
    return bool(path) and not (carried or standard or "site-packages" in path)


def packages(classes: Iterable[type]) -> list[str]:
    """The folders of the packages that these classes live in, ours first."""
    found = [str(Path(__file__).parents[2])]
    for top in dict.fromkeys(each.__module__.partition(".")[0] for each in classes):
        path = getattr(sys.modules.get(top), "__file__", None) or ""
        installed = "site-packages" in path or top in sys.stdlib_module_names or top == "orrery"
        if Path(path).name == "__init__.py" and not installed:
            found.append(str(Path(path).parent))
    return found


def bring(data: bytes) -> None:
    """In a worker: make the modules that travelled importable by their names."""
    global _bringing
    told = codec.decode(data)
    if told["version"] != version():
        raise PartError(
            f"this Ray worker has orrery {version()} and the run has {told['version']}; "
            "install the same version on all machines"
        )
    for name, package, path, text in told["sources"]:
        mark = hashlib.sha256(text.encode()).hexdigest()
        if _brought.get(name) == mark:
            continue
        module = types.ModuleType("__mp_main__" if name == "__main__" else name)
        module.__file__ = _at(path, text, mark)
        module.__package__ = package
        sys.modules[name] = sys.modules[module.__name__] = module
        _bringing = True
        try:
            exec(compile(text, module.__file__, "exec"), module.__dict__)
        finally:
            _bringing = False
        # Its classes must say the same name here as there, as they are looked up by it.
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                value.__module__ = name
        _brought[name] = mark


def _at(path: str, text: str, mark: str) -> str:
    """Where the source lies here: its own place, or a copy on a machine that lacks it."""
    own, data = Path(path), text.encode()
    if own.is_file() and own.read_bytes() == data:
        return path
    if hasattr(os, "memfd_create"):  # a file without a place, so that nothing stays behind
        handle = os.memfd_create(own.name)
        os.write(handle, data)
        return f"/proc/self/fd/{handle}"
    copy = Path(tempfile.mkdtemp(prefix=f"orrery-source-{mark[:8]}-")) / own.name
    copy.write_bytes(data)
    return str(copy)
