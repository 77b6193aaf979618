"""Leaks: whatever lets the outside into a part, so that a seed no longer decides its run.

Three ways to find them, from the cheapest to the surest. `lint` reads the source of a part: wall
clocks, `random`, `uuid`, threads, sockets, the order of sets. `orrery.lab.watch` sees them
happen in a run and names the line. `orrery.lab.determinism.examine` compares runs that must be
equal, among them one in wire mode, and names the first event that is not.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from orrery.base.errors import LeakError, UsageError

# What a name reaches, and what to use in its place. A trailing dot means all that is in a module.
FORBIDDEN = {
    "time.time": ("the wall clock", "use self.now or self.clock()"),
    "time.time_ns": ("the wall clock", "use self.now or self.clock()"),
    "time.monotonic": ("the wall clock", "use self.now"),
    "time.monotonic_ns": ("the wall clock", "use self.now"),
    "time.perf_counter": ("the wall clock", "use self.now"),
    "time.perf_counter_ns": ("the wall clock", "use self.now"),
    "time.process_time": ("the wall clock", "use self.now"),
    "time.localtime": ("the wall clock", "use self.clock()"),
    "time.gmtime": ("the wall clock", "use self.clock()"),
    "time.sleep": ("real sleep", "use await self.sleep(s)"),
    "datetime.datetime.now": ("the wall clock", "use self.clock()"),
    "datetime.datetime.utcnow": ("the wall clock", "use self.clock()"),
    "datetime.datetime.today": ("the wall clock", "use self.clock()"),
    "datetime.date.today": ("the wall clock", "use self.clock()"),
    "uuid.uuid1": ("a random id", "draw one from self.rng"),
    "uuid.uuid4": ("a random id", "draw one from self.rng"),
    "os.urandom": ("random bytes of the system", "use self.rng"),
    "os.getrandom": ("random bytes of the system", "use self.rng"),
    "os.getpid": ("the process id", "use self.id"),
    "os.environ": ("the environment", "make it a knob"),
    "os.getenv": ("the environment", "make it a knob"),
    "os.getcwd": ("the current folder", "make it a knob"),
    "os.stat": ("the file system", "use self.disk or an input"),
    "os.listdir": ("the file system", "use self.disk or an input"),
    "os.scandir": ("the file system", "use self.disk or an input"),
    "os.path.getmtime": ("the file system", "use self.disk or an input"),
    "os.path.exists": ("the file system", "use self.disk or an input"),
    "os.system": ("another process", "leave it out"),
    "os.fork": ("another process", "leave it out"),
    "random.": ("the random module", "use self.rng"),
    "secrets.": ("random bytes of the system", "use self.rng"),
    "numpy.random.": ("NumPy's random module", "use self.rng (self.rng.array, …)"),
    "threading.": ("threads", "use self.spawn"),
    "_thread.": ("threads", "use self.spawn"),
    "concurrent.futures.": ("threads or processes", "use self.spawn"),
    "multiprocessing.": ("processes", "use self.spawn"),
    "subprocess.": ("another process", "leave it out"),
    "socket.": ("sockets", "use self.tell and self.ask"),
    "asyncio.": ("asyncio", "await only what self.… gives"),
    "urllib.request.": ("the network", "use self.tell and self.ask"),
    "http.client.": ("the network", "use self.tell and self.ask"),
    "requests.": ("the network", "use self.tell and self.ask"),
    "torch.rand": ("torch's random numbers", "make a torch.Generator seeded from self.rng"),
    "torch.randn": ("torch's random numbers", "make a torch.Generator seeded from self.rng"),
    "open": ("a real file", "use self.disk or an input"),
    "input": ("the keyboard", "make it a knob"),
    "id": ("an object's address", "use a number of your own, such as self.id"),
    "hash": ("hash(), which differs for text in every process", "use zlib.crc32 or hashlib"),
}
# In these the order of what goes in does not matter.
_ORDERLESS = frozenset("sorted min max sum len any all set frozenset bool".split())
_IN_ORDER = frozenset("list tuple iter enumerate zip map filter reversed next".split())
_MUTABLE = frozenset("list dict set bytearray deque defaultdict Counter OrderedDict".split())


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One leak: where it is, what it is, what to do."""

    path: str
    line: int
    what: str
    fix: str
    level: str = "leak"  # or "doubt": it may be harmless
    node: int | None = None
    time_s: float | None = None

    def __str__(self) -> str:
        at = "" if self.node is None else f" (node {self.node} at {self.time_s:.9f} s)"
        return f"{self.path}:{self.line}: {self.what}{at}; {self.fix}"


def lint(subject: Any) -> list[Finding]:
    """The leaks that can be read off the source of a part, a class, a module or a .py file."""
    return list(_lint_text(*_source(subject)))


@functools.lru_cache(maxsize=1024)
def _lint_text(path: str, text: str) -> tuple[Finding, ...]:
    """Kept, as many parts share the modules that they reach."""
    try:
        tree = ast.parse(text, filename=path)
    except (SyntaxError, ValueError, RecursionError) as failure:
        raise UsageError(f"{path}: is not Python: {failure}") from None
    nodes = list(ast.walk(tree))
    reader = _Reader(path, nodes)
    reader.visit(tree)
    found = {*reader.found, *_shared_state(path, nodes)}
    return tuple(sorted(found, key=lambda each: (each.path, each.line, each.what)))


def lint_all(subject: Any) -> list[Finding]:
    """`lint` of every module outside the core that a part's code can reach."""
    from orrery.lab.spec import sources

    found: list[Finding] = []
    for cls in _classes(subject):
        for name in sources(cls):
            module = sys.modules.get(name)
            if module is not None and getattr(module, "__file__", None):
                found += lint(module)
    return sorted(set(found), key=lambda each: (each.path, each.line, each.what))


def refuse(subject: Any) -> None:
    """Raise a `LeakError` that lists what `lint_all` is sure of."""
    sure = [each for each in lint_all(subject) if each.level == "leak"]
    if sure:
        raise LeakError("\n".join(str(each) for each in sure))


def _classes(subject: Any) -> list[type]:
    each = subject.values() if isinstance(subject, dict) else [subject]
    return [one if isinstance(one, type) else type(one) for one in each]


def _source(subject: Any) -> tuple[str, str]:
    if isinstance(subject, str | Path):
        path = str(subject)
    elif inspect.ismodule(subject):
        path = getattr(subject, "__file__", None) or ""
    else:
        cls = subject if isinstance(subject, type) else type(subject)
        module = sys.modules.get(cls.__module__)
        path = getattr(module, "__file__", None) or ""
    if not path:
        raise UsageError(f"{subject!r} has no source file to read")
    try:
        return path, Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise UsageError(f"{path}: cannot be read: {failure}") from None


class _Reader(ast.NodeVisitor):
    """Walks a module, keeps what each name means, and notes what must not be used."""

    def __init__(self, path: str, nodes: list[ast.AST]) -> None:
        self.path = path
        self.found: list[Finding] = []
        self.names: dict[str, str] = {}
        self.sets: dict[str, str] = dict(_set_names(nodes))
        for node in nodes:
            if isinstance(node, ast.Import):
                for each in node.names:
                    top = each.name.partition(".")[0]
                    self.names[each.asname or top] = each.name if each.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for each in node.names:
                    self.names[each.asname or each.name] = f"{node.module}.{each.name}"
        self.own = {node.name for node in nodes
                    if isinstance(node, ast.FunctionDef | ast.ClassDef)}  # fmt: skip

    def note(self, node: ast.AST, what: str, fix: str, level: str = "leak") -> None:
        line = getattr(node, "lineno", 1)
        self.found.append(Finding(path=self.path, line=line, what=what, fix=fix, level=level))

    def meaning(self, node: ast.AST) -> str:
        """The dotted name that an expression stands for, by the module's imports."""
        if isinstance(node, ast.Attribute):
            before = self.meaning(node.value)
            return f"{before}.{node.attr}" if before else ""
        if isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            return node.id if node.id in ("id", "hash", "open", "input") and (
                node.id not in self.own) else ""  # fmt: skip
        return ""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._judge(node, self.meaning(node)):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and "." in self.meaning(node):
            self._judge(node, self.meaning(node))

    def _judge(self, node: ast.AST, name: str) -> bool:
        rule = FORBIDDEN.get(name)
        if rule is None:
            # The longest known module that the name is in.
            parts = name.split(".")
            for count in range(len(parts) - 1, 0, -1):
                rule = rule or FORBIDDEN.get(".".join(parts[:count]) + ".")
                rule = rule or FORBIDDEN.get(".".join(parts[:count])) if count > 1 else rule
        if rule is None or name in ("random.Random", "numpy.random.Generator"):
            return False
        what, fix = rule
        self.note(node, f"{name} is {what}", fix)
        return True

    def visit_Call(self, node: ast.Call) -> None:
        name = self.meaning(node.func)
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("id", "hash", "open", "input"):
            what, fix = FORBIDDEN[name]
            level = "leak" if name != "hash" or not _is_number(node.args) else "doubt"
            self.note(node, f"{name}() is {what}", fix, level)
        elif name == "random.Random" and not node.args:
            self.note(node, "random.Random() without a seed is random", "use self.rng")
        if called in _IN_ORDER:
            for each in node.args:
                self._ordered(each)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in ("pop", "popitem") and not node.args:
            self._ordered(node.func.value)  # type: ignore[attr-defined]
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "join", "extend", "choice", "sample", "shuffle"):  # fmt: skip
            for each in node.args[:1]:
                self._ordered(each)
        if called in _ORDERLESS and len(node.args) == 1 and isinstance(
            node.args[0], ast.GeneratorExp):  # fmt: skip
            self._inside(node.args[0])
            return  # the order of the set is lost in the call
        self.generic_visit(node)

    def _inside(self, node: ast.GeneratorExp) -> None:
        """What is in a generator, without asking in which order it comes."""
        self.visit(node.elt)
        for part in node.generators:
            for each in (part.iter, *part.ifs):
                self.visit(each)

    def visit_For(self, node: ast.For) -> None:
        self._ordered(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        for part in node.generators:
            self._ordered(part.iter)
        self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp  # type: ignore[assignment]

    def visit_DictComp(self, node: ast.DictComp) -> None:
        for part in node.generators:
            self._ordered(part.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._ordered(node.value)
        self.generic_visit(node)

    def _ordered(self, node: ast.AST) -> None:
        """Something takes the elements of `node` in their order: is it a set?"""
        kind = _set_kind(node, self.sets)
        if kind == "int":
            return  # small whole numbers are their own hash: the order is the same everywhere
        if kind:
            sure = kind in ("str", "bytes")
            of = f" of {kind}" if kind != "?" else ""
            self.note(node, f"the order of a set{of} differs in every process",
                      "use sorted(…), or a dict or list", "leak" if sure else "doubt")  # fmt: skip


def _is_number(args: list[ast.expr]) -> bool:
    return bool(args) and isinstance(args[0], ast.Constant) and isinstance(args[0].value, int)


def _set_names(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names (`x`, `self.x`) that hold sets, with the type of their elements where it is told."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign):
            kind = _annotated_set(node.annotation)
            if kind:
                yield ast.unparse(node.target), kind
        elif isinstance(node, ast.Assign) and node.value is not None:
            kind = _set_kind(node.value, {})
            for target in node.targets:
                if kind:
                    yield ast.unparse(target), kind
        elif isinstance(node, ast.arg) and node.annotation is not None:
            kind = _annotated_set(node.annotation)
            if kind:
                yield node.arg, kind


def _annotated_set(node: ast.expr) -> str:
    text = ast.unparse(node).strip("'\"")
    head, _, rest = text.partition("[")
    if head.rpartition(".")[2].lower() not in ("set", "frozenset", "abstractset", "mutableset"):
        return ""
    return rest.rstrip("]") or "?"


def _set_kind(node: ast.AST, known: dict[str, str]) -> str:
    """ "" if it is no set, else the type of its elements ("?" where that is not told)."""
    if isinstance(node, ast.Set):
        return _element_kind(node.elts)
    if isinstance(node, ast.SetComp):
        return "?"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("set", "frozenset"):
            inner = node.args[0] if node.args else None
            return _element_kind(inner.elts) if isinstance(inner, ast.List | ast.Tuple) else "?"
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.BitOr | ast.BitAnd):
        return _set_kind(node.left, known) or _set_kind(node.right, known)
    if isinstance(node, ast.Name | ast.Attribute):
        return known.get(ast.unparse(node), "")
    return ""


def _element_kind(elements: Iterable[ast.expr]) -> str:
    kinds = {type(e.value).__name__ if isinstance(e, ast.Constant) else "?" for e in elements}
    return kinds.pop() if len(kinds) == 1 else "?"


def _shared_state(path: str, nodes: list[ast.AST]) -> Iterator[Finding]:
    """Class attributes that all nodes share and that a method changes in place."""
    for cls in (node for node in nodes if isinstance(node, ast.ClassDef)):
        shared = dict(_mutable_attributes(cls))
        if not shared:
            continue
        made = {ast.unparse(t) for node in ast.walk(cls) for t in _targets(node)}
        for node in ast.walk(cls):
            name = _changed(node)
            if name in shared and f"self.{name}" not in made:
                what = f"{cls.name}.{name} is one object that all nodes share, and is changed here"
                yield Finding(path=path, line=node.lineno, what=what,  # type: ignore[attr-defined]
                              fix=f"make it in start(): self.{name} = …")  # fmt: skip


def _mutable_attributes(cls: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for node in cls.body:
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
            continue
        call = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2]
        if isinstance(value, ast.List | ast.Dict | ast.Set) or call in _MUTABLE:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target), node.lineno


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) and node.value is not None else []


def _changed(node: ast.AST) -> str:
    """The attribute of self (or of the class) that a statement changes in place, or ""."""
    place: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        changing = ("append add update extend pop popleft remove discard clear insert setdefault "
                    "appendleft popitem").split()  # fmt: skip
        place = node.func.value if node.func.attr in changing else None
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        place = node.targets[0].value
    elif isinstance(node, ast.AugAssign):
        place = node.target.value if isinstance(node.target, ast.Subscript) else node.target
    if isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name):
        return place.attr
    return ""
