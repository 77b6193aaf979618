"""The ledger: the book of verdicts, works_when states and engines passed, as JSON lines.

It is only ever appended to, one line in one write, so that many writers may share it and a kill
leaves at most one torn last line, which readers skip and the next writer closes. The newest line
of a subject counts. A verdict is forgotten when the claim's text or its world has changed since.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orrery.base.errors import StoreError, UsageError, did_you_mean

if TYPE_CHECKING:
    from orrery.lab.claims import Claim, Verdict

SCHEMA = 1
STATES = ("met", "unmet", "impossible-here")
KINDS = ("verdict", "works_when", "engine")


def home() -> Path:
    """The folder of runs and, outside a checkout, of the ledger: ORRERY_HOME or ~/.orrery."""
    given = os.environ.get("ORRERY_HOME", "").strip()
    try:
        return Path(given).expanduser() if given else Path.home() / ".orrery"
    except RuntimeError:
        raise StoreError("there is no home folder; set ORRERY_HOME to a folder") from None


def checkout() -> Path | None:
    """The root of the source checkout that this package runs from, if it does."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "src/orrery").is_dir() else None


def text_hash(text: str) -> str:
    """16 hex digits of a text; white space does not count."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]


class Ledger:
    """A book at `path`; `older` are read-only books whose lines count before its own."""

    def __init__(self, path: Path | str, older: tuple[Path, ...] = ()) -> None:
        self.path = Path(path)
        self.older = older
        self._newest: dict[tuple[str, str, str], dict[str, Any]] | None = None
        self._owners: dict[tuple[str, str], dict[str, dict[str, Any]]] | None = None

    @classmethod
    def default(cls) -> Ledger:
        """`results/` of the checkout, else ORRERY_HOME after the copy inside the package."""
        given = os.environ.get("ORRERY_LEDGER", "").strip()
        if given:
            return cls(Path(given))
        root = checkout()
        if root is not None:
            return cls(root / "results" / "ledger.jsonl")
        packed = Path(__file__).resolve().parents[1] / "ledger.jsonl"
        return cls(home() / "ledger.jsonl", (packed,))

    # -- reading

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every readable record, oldest first; torn or foreign lines are passed over."""
        for path in (*self.older, self.path):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as failure:
                fix = "check its permissions"
                raise StoreError(f"{path}: cannot be read: {failure.strerror}; {fix}") from None
            for line in text.split(b"\n"):
                record = _decode(line)
                if record is not None:
                    yield record

    def newest(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """The newest record of each (kind, id, subject); read once and kept."""
        if self._newest is None:
            found: dict[tuple[str, str, str], dict[str, Any]] = {}
            for record in self.lines():
                found[(record["kind"], record["id"], _subject(record))] = record
            self._newest = found
        return self._newest

    def verdict(
        self, id: str, claim: Claim, problem: str = "", *, quick: bool = False
    ) -> dict[str, Any] | None:
        """The verdict on a claim as it is written now, in the world as it is now.

        A quick look imports no problem and builds no world: where the hash of the world as it is
        now is not known yet, the record is believed.
        """
        if ("verdict", id) not in self._by_owner():
            return None  # most systems have none, and hashing their claims takes time
        record = self.newest().get(("verdict", id, claim.hash))
        if record is None:
            return None
        from orrery.lab.worldhash import known_hash, world_hash

        if quick:
            return record if known_hash(claim, problem) in (None, record.get("world")) else None
        now = world_hash(claim, problem)
        return record if now is not None and now == record.get("world") else None

    def works_when(self, id: str, n: int, text: str) -> dict[str, Any] | None:
        """The state of an acceptance line as it is written now."""
        record = self.newest().get(("works_when", id, str(n)))
        return record if record and record.get("text") == text_hash(text) else None

    def engines(self, id: str) -> list[str]:
        """The engines that the system has passed on."""
        found = self._by_owner().get(("engine", id), {})
        return sorted(name for name, record in found.items() if record.get("state") == "passed")

    def _by_owner(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """The newest records by (kind, id), then by subject; made once."""
        if self._owners is None:
            self._owners = {}
            for (kind, owner, subject), record in self.newest().items():
                self._owners.setdefault((kind, owner), {})[subject] = record
        return self._owners

    # -- writing

    def append(self, *records: dict[str, Any]) -> None:
        """Write records at the end, in one write, and return when they are safe on the disk.

        When the disk takes only a part, an error says so and the torn line is skipped by readers.
        """
        if not records:
            return
        for record in records:
            _check(record)
        data = b"".join(_encode(record) for record in records)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                self._write(handle, data)
            finally:
                os.close(handle)
        except OSError as failure:
            why = failure.strerror or str(failure)
            fix = "free some space, or check its permissions"
            raise StoreError(f"{self.path}: cannot be written: {why}; {fix}") from None
        self._newest = self._owners = None

    def _write(self, handle: int, data: bytes) -> None:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data  # a writer before us was killed: its torn line ends here
        written = os.write(handle, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)

    def record_verdict(self, id: str, verdict: Verdict) -> None:
        """Write down one verdict."""
        claim = verdict.claim
        if not claim.testable or verdict.verdict is None:
            return
        self.append(stamp({
            "kind": "verdict", "id": id, "n": verdict.n, "metric": claim.metric,
            "claim": claim.hash, "verdict": verdict.verdict, "measured": verdict.measured,
            "lo": verdict.lo, "hi": verdict.hi, "off": verdict.off, "value_kind": verdict.kind,
            "seeds": verdict.seeds, "world": verdict.world, "digest": verdict.digest,
            "note": verdict.note,
        }))  # fmt: skip

    def record_works_when(
        self, id: str, n: int, text: str, state: str, *, reason: str = "", test: str = "",
        digest: str = "", world: str = "",
    ) -> None:  # fmt: skip
        """Write down the state of one acceptance line."""
        self.append(stamp({
            "kind": "works_when", "id": id, "n": n, "text": text_hash(text), "state": state,
            "reason": reason, "test": test, "digest": digest, "world": world,
        }))  # fmt: skip

    def record_engine(
        self, id: str, engine: str, passed: bool, *, digest: str = "", world: str = ""
    ) -> None:
        """Write down whether a system passed on an engine."""
        self.append(stamp({
            "kind": "engine", "id": id, "engine": engine,
            "state": "passed" if passed else "failed", "digest": digest, "world": world,
        }))  # fmt: skip


def public(text: str) -> str:
    """A text without the folders of this machine: the ledger is read elsewhere.

    >>> root = checkout()
    >>> public(f"KeyError ({root}/src/orrery/x.py:3)") if root else "KeyError (src/orrery/x.py:3)"
    'KeyError (src/orrery/x.py:3)'
    """
    folders = [checkout(), Path(__file__).resolve().parents[2], home(), Path.home()]
    for folder in folders:
        if folder is not None and len(folder.parts) > 1:
            text = text.replace(f"{folder}{os.sep}", "")
    return text


def stamp(record: dict[str, Any]) -> dict[str, Any]:
    """A record with the schema, the date, the version and the machine added, fit to be public."""
    import orrery

    record = {k: public(v) if isinstance(v, str) else v for k, v in record.items()}
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return {"schema": SCHEMA, **record, "date": today, "version": orrery.__version__,
            "machine": machine()}  # fmt: skip


@functools.lru_cache(maxsize=1)
def machine() -> str:
    """This machine in a few words; no host name, as the ledger is public."""
    cores = os.cpu_count() or 1
    return f"{platform.system()} {platform.machine()}, {cores} cores, Python " + (
        platform.python_version()
    )


def _subject(record: dict[str, Any]) -> str:
    """What a record of one kind and id is about: a claim, a line, or an engine."""
    name = {"verdict": "claim", "works_when": "n", "engine": "engine"}[record["kind"]]
    return str(record.get(name))


def _decode(line: bytes) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") not in KINDS:
        return None
    # A line of a newer schema may mean something else: it is left to a newer program.
    if not isinstance(record.get("id"), str) or record.get("schema") != SCHEMA:
        return None
    return record


def _encode(record: dict[str, Any]) -> bytes:
    clean = {key: _finite(value) for key, value in record.items()}
    try:
        return json.dumps(clean, allow_nan=False, separators=(", ", ": ")).encode() + b"\n"
    except (TypeError, ValueError) as failure:
        raise StoreError(f"a ledger record cannot be written: {failure}") from None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check(record: dict[str, Any]) -> None:
    kind = record.get("kind")
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r}: {did_you_mean(str(kind), KINDS)}")
    if not record.get("id") or not isinstance(record.get("id"), str):
        raise UsageError(f"id={record.get('id')!r}: a ledger record needs the id of a system")
    if kind == "works_when" and record.get("state") not in STATES:
        state = record.get("state")
        raise UsageError(f"state={state!r}: {did_you_mean(str(state), STATES)}")
    if kind == "verdict":
        from orrery.lab.claims import VERDICTS

        word = record.get("verdict")
        if word not in VERDICTS:
            raise UsageError(f"verdict={word!r}: {did_you_mean(str(word), VERDICTS)}")
