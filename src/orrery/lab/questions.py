"""Problems: found by reading their source, loaded one at a time; and `where`, which finds one.

A problem stands in `<room>/problems/*.py`; its id is its class's name in snake case. Listing
reads the files as syntax trees, so that nothing is imported until a problem is asked for. A class
that says `base_only: ClassVar[bool] = True` is what problems share, and no problem itself.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.base.errors import PartError, UsageError, did_you_mean
from orrery.lab.cache import read_cache, write_cache

if TYPE_CHECKING:
    import ast

    from orrery.parts import Problem

ROOTS = frozenset({"Problem"})
CACHE = "questions.json"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A problem as its source tells it, before it is imported."""

    id: str
    room: str
    name: str
    module: str
    doc: str

    @property
    def title(self) -> str:
        """The first line of its docstring."""
        return self.doc.partition("\n")[0].strip()


def snake(name: str) -> str:
    """A class's name as an id.

    >>> snake("LLMRouting"), snake("DNNEdgeServing"), snake("Broadcast")
    ('llm_routing', 'dnn_edge_serving', 'broadcast')
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return apart.lower()


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A class as its source tells it: what it inherits from, and whether it is only a base."""

    name: str
    bases: list[str]
    doc: str
    base_only: bool


class Read(msgspec.Struct):
    """The classes of files read before, kept until a file's size or time changes.

    Parsing the sources of all problems takes longer than the rest of `orrery where` together.
    """

    stamp: str
    files: dict[str, tuple[int, int, list[Told]]] = {}

    @classmethod
    def load(cls) -> Read:
        """What was read before, or nothing when this code has changed since."""
        stamp = str(Path(__file__).stat().st_mtime_ns)
        try:
            kept = msgspec.json.decode(read_cache(CACHE), type=cls)
        except msgspec.MsgspecError:
            return cls(stamp)
        return kept if kept.stamp == stamp else cls(stamp)


File = tuple[str, str, str, int, int]  # module, room, path, size, time


def questions() -> list[Question]:
    """Every problem, in order of room and id, without importing any."""
    from orrery.lab.stems import packages

    files: list[File] = []
    for package, folder, _ in packages():
        for path in sorted(folder.rglob("problems/**/*.py")):
            inside = path.relative_to(folder).with_suffix("").parts
            names = inside[:-1] if inside[-1] == "__init__" else inside
            room = inside[0] if inside[0] != "problems" else package.rpartition(".")[2]
            stat = path.stat()
            module = ".".join((package, *names))
            files.append((module, room, str(path), stat.st_size, stat.st_mtime_ns))
    return list(_read_all(tuple(files)))


@functools.lru_cache(maxsize=2)
def _read_all(files: tuple[File, ...]) -> tuple[Question, ...]:
    found: list[tuple[str, str, Told]] = []
    kept = Read.load()
    fresh: dict[str, tuple[int, int, list[Told]]] = {}
    for module, room, path, size, time_ns in files:
        known_file = kept.files.get(path)
        if known_file is None or known_file[:2] != (size, time_ns):
            known_file = (size, time_ns, _classes(path))
        fresh[path] = known_file
        found += [(module, room, told) for told in known_file[2]]
    if fresh != kept.files:
        write_cache(CACHE, msgspec.json.encode(Read(kept.stamp, fresh)))
    # A problem may inherit from another problem of the room, so the set grows until it is closed.
    known = set(ROOTS)
    while True:
        more = {told.name for *_, told in found if known & set(told.bases)} - known
        if not more:
            break
        known |= more
    made = {
        snake(told.name): Question(
            id=snake(told.name), room=room, name=told.name, module=module, doc=told.doc
        )
        for module, room, told in found
        if told.name in known and not told.name.startswith("_") and not told.base_only
    }
    return tuple(sorted(made.values(), key=lambda q: (q.room, q.id)))


def _classes(path: str) -> list[Told]:
    """The classes at the top of a file; none where it cannot be read."""
    import ast

    try:
        tree = ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []  # importing it will say what is wrong
    return [
        Told(node.name, list(_bases(node)), ast.get_docstring(node) or "", _is_base(node))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]


def _is_base(node: ast.ClassDef) -> bool:
    """Whether a class says of itself that it is only there to be inherited from."""
    import ast

    named = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == "base_only" for target in named)


def _bases(node: ast.ClassDef) -> Iterable[str]:
    import ast

    for base in node.bases:
        while isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name):
            yield base.id
        elif isinstance(base, ast.Attribute):
            yield base.attr


def question(id: str) -> Question:
    """One problem by id (or class name), or an error that names the nearest one."""
    known = questions()
    for one in known:
        if id in (one.id, one.name) or id.replace("-", "_") == one.id:
            return one
    raise UsageError(f"no problem {id!r}; {did_you_mean(id, [q.id for q in known])}")


# What was asked for by id and is imported: it stays what it is, so no file is looked at again.
_asked: dict[str, Question] = {}


def problem_class(id: str) -> type[Problem]:
    """The class of a problem; imports its module only. `module:Class` is taken too."""
    from orrery.lab.discover import _import, load
    from orrery.parts import Problem

    if ":" in id:
        cls: Any = load(id)
    else:
        one = _asked.get(id)
        if one is None or one.module not in sys.modules:
            one = _asked[id] = question(id)
        cls = getattr(_import(one.module), one.name, None)
    if not (isinstance(cls, type) and issubclass(cls, Problem)):
        raise PartError(f"{id} is not a problem: it does not inherit from Problem")
    return cls


def problems() -> dict[str, type[Problem]]:
    """Every problem's class by id; imports them all (use `questions` for a quick list)."""
    return {one.id: problem_class(one.id) for one in questions()}


def ask_problem(problem: Any, knobs: dict[str, Any] | None = None) -> Problem:
    """A problem from an id, a class or an instance, with some knobs set."""
    from orrery.parts import Problem

    if isinstance(problem, str):
        problem = problem_class(problem)
    if isinstance(problem, type) and issubclass(problem, Problem):
        return problem(**(knobs or {}))
    if isinstance(problem, Problem):
        return problem.with_knobs(**knobs) if knobs else problem
    raise UsageError(f"problem={problem!r}: give an id, a Problem class or a Problem")


# -- where

_STOP_TEXT = """a an and are as at be by for from has have in into is it its me my of on or our
    so than that the their them then they this to under up was we what when where which with
    you your"""
_STOP = frozenset(_STOP_TEXT.split())


def words_of(text: str) -> list[str]:
    """The words of a text that carry meaning, without common endings.

    >>> words_of("It moves KV blocks")
    ['mov', 'kv', 'block']
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [_without_ending(word) for word in words if word not in _STOP]


@functools.lru_cache(maxsize=20_000)
def _without_ending(word: str) -> str:
    for ending in ("ings", "ing", "ers", "er", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def where(text: str, most: int = 5) -> list[dict[str, Any]]:
    """Which problems, in which rooms, a description may belong to; the best first.

    Rare words count more than common ones; a name or a job counts more than a mechanism.
    """
    wanted = list(dict.fromkeys(words_of(text)))
    if not wanted:
        raise UsageError(f"where {text!r}: say in a few words what your system does")
    pages = _pages()
    seen: Counter[str] = Counter()
    for _, _, _, weights, _ in pages:
        seen.update(weights.keys())
    best: dict[tuple[str, str], tuple[float, str]] = {}
    totals: dict[tuple[str, str], float] = {}
    for problem, room, label, weights, sentences in pages:
        hits = [word for word in wanted if word in weights]
        if not hits:
            continue
        score = sum(weights[word] * math.log(1 + len(pages) / seen[word]) for word in hits)
        score *= len(hits) / len(wanted)
        key = (problem, room)
        totals[key] = max(totals.get(key, 0.0), score)
        if key not in best or score > best[key][0]:
            best[key] = (score, _why(label, hits, sentences))
    ranked = sorted(best, key=lambda key: (-totals[key], key))
    return [
        {"problem": problem or None, "room": room, "why": best[(problem, room)][1]}
        for problem, room in ranked[:most]
    ]


def _why(label: str, hits: list[str], sentences: list[str]) -> str:
    def count(sentence: str) -> int:
        return len(set(hits) & set(words_of(sentence)))

    sentence = max(sentences, key=count)
    return f"{label}: {sentence if len(sentence) <= 200 else sentence[:197] + '…'}"


Page = tuple[str, str, str, dict[str, float], list[str]]


def _pages() -> list[Page]:
    """(problem, room, label, weight of each word, sentences) of every entry and problem."""
    from orrery.lab.discover import entries

    pages: list[Page] = []
    for one in questions():
        texts = [(3.0, one.name + " " + one.id), (2.0, one.title), (1.0, one.doc)]
        pages.append((one.id, one.room, f"problem {one.id}", *_weigh(texts)))
    for entry in entries():
        stem = entry.stem
        texts = [(3.0, stem.name), (2.0, stem.title), (2.0, stem.job)]
        texts += [(1.0, text) for text in stem.mechanisms]
        pages.append((entry.problem, entry.room, f"like {entry.id}", *_weigh(texts)))
    return pages


def _weigh(texts: list[tuple[float, str]]) -> tuple[dict[str, float], list[str]]:
    weights: dict[str, float] = {}
    sentences: list[str] = []
    for weight, text in texts:
        for word in words_of(text):
            weights[word] = max(weights.get(word, 0.0), weight)
        sentences += [part.strip() for part in re.split(r"(?<=[.;:])\s+", text) if part.strip()]
    return weights, sentences
