"""Discovery: all stems, third parties, malformed files, loading, problems, `where`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from orrery.base.errors import PartError, StemError, UsageError
from orrery.lab import discover, questions
from orrery.lab.ledger import Ledger
from orrery.lab.stems import read_stem

ROOT = Path(__file__).parents[2]
LISTED = {
    "id", "room", "name", "title", "origin", "shape", "problem", "status", "engines",
    "works_when", "claims",
}  # fmt: skip
STEM = """id = "{id}"
name = "Swift"
room = "acme"
shape = "node"
title = "A paper"
date = 2026-01-02
problem = "sprint{n}"
job = \"\"\"Carries parcels
  between moons.\"\"\"
[[works_when]]
n = 1
text = "it arrives"
[[claims]]
metric = "time_s"
says = "2x"
form = "ratio"
says_lo = 0.5
better = "lower"
off = {{ trick = false }}
world = "lan:2"
"""
CODE = """from orrery.parts import Node
class {name}(Node):
    trick: bool = True
"""
PROBLEM = """from orrery.parts import Problem
class Sprint{n}(Problem):
    '''How fast parcels cross a crater.'''
class _Hidden(Problem): pass
class Longer{n}(Sprint{n}):
    '''A longer one.'''
class NotOne: pass
"""
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ORRERY_CACHE", raising=False)
    discover._reported.cache_clear()


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """A third party's package, installed as far as Python can tell."""
    n = next(_numbers)
    name = f"acme_rooms_{n}"
    folder = tmp_path / "site" / name
    (folder / "problems").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "problems" / "__init__.py").write_text("")
    (folder / "problems" / "sprint.py").write_text(PROBLEM.format(n=n))
    info = tmp_path / "site" / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[orrery.systems]\nacme = {name}\n")
    (folder / "swift_post.toml").write_text(STEM.format(id="swift-post", n=n))
    (folder / "swift_post.py").write_text(CODE.format(name="SwiftPost"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    folder.joinpath("n").write_text(str(n))
    return folder


def test_every_system_of_the_catalogue_is_listed():
    found = discover.scan()
    assert [str(error) for error in found.errors] == []
    catalogue = [entry for entry in found.entries if entry.origin == "catalogue"]
    assert len(catalogue) == 135
    assert len({entry.id for entry in found.entries}) == len(found.entries)
    for entry in found.entries:
        row = entry.listed()
        assert set(row) == LISTED
        assert row["status"] in ("planned", "working", "checked")
        assert entry.built == bool(entry.module)
        json.dumps(entry.shown())
        for line in row["works_when"]:
            assert set(line) == {"n", "text", "test", "state", "reason"}
            assert "\n" not in line["text"]
        for claim in row["claims"]:
            assert set(claim) == {
                "metric", "says", "against", "verdict", "measured", "lo", "hi", "off", "kind",
                "date",
            }  # fmt: skip


def test_listing_imports_no_system_and_no_numpy():
    code = (
        "import sys\nfrom orrery.lab import discover, questions\n"
        "assert len(discover.entries()) >= 135\nquestions.questions()\n"
        "bad = [m for m in sys.modules if m.startswith(('orrery.systems.', 'numpy'))]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT,
                   env={"PYTHONPATH": "src", "HOME": "/nonexistent"})  # fmt: skip


def test_find_and_did_you_mean():
    assert discover.find("amortized-brb").room == "protocols"
    assert discover.find("amortized_brb").id == "amortized-brb"
    with pytest.raises(UsageError, match="amortized-brb"):
        discover.find("amortised-brb")
    with pytest.raises(UsageError, match="no room"):
        discover.entries(room="sserve")
    assert {entry.room for entry in discover.entries(room="serve")} == {"serve"}


def test_a_third_party_is_listed_and_loaded(acme):
    entry = discover.find("swift-post")
    assert entry.status == "working"
    assert entry.stem.job == "Carries parcels between moons."
    assert entry.paper["date"] == "2026-01-02"
    assert discover.load("swift-post").__name__ == "SwiftPost"
    assert discover.load(f"{acme.name}.swift_post:SwiftPost")().trick is True
    assert discover.load(f"{acme / 'swift_post.py'}:SwiftPost").__name__ == "SwiftPost"
    assert [each.id for each in discover.of_problem(entry.problem)] == ["swift-post"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda text: "id = ", "not TOML"),
        (lambda text: "\xff" + text, "not TOML"),
        (lambda text: text.replace("shape =", "shpae ="), 'did you mean "shape"'),
        (lambda text: text.replace('"node"', '"nodule"'), "shape"),
        (lambda text: text.replace('id = "bad"', 'id = "worse"'), "does not match"),
        (lambda text: text.replace("n = 1", 'n = "one"'), "works_when"),
        (lambda text: text.replace("says_lo = 0.5", "says_lo = nan"), "claims"),
        (lambda text: text.replace("says_lo = 0.5", "says_lo = 2\nsays_hi = 1"), "swap"),
        (lambda text: text.replace('form = "ratio"', 'form = "none"'), "untestable"),
        (lambda text: text.replace("says =", "sasy ="), "sasy"),
        (lambda text: text + '\n[[works_when]]\nn = 1\ntext = "again"', "repeat"),
        (lambda text: "", "id"),
    ],
)
def test_a_malformed_stem_is_named_and_the_others_stay(acme, capsys, change, named):
    n = acme.joinpath("n").read_text()
    text = change(STEM.format(id="bad", n=n))
    (acme / "bad.toml").write_text(text, encoding="latin-1")
    found = discover.scan()
    assert len(found.errors) == 1
    assert isinstance(found.errors[0], StemError)
    assert str(acme / "bad.toml") in found.errors[0].path
    assert named in str(found.errors[0])
    assert "swift-post" in [entry.id for entry in found.entries]
    assert len(discover.entries()) >= 136
    told = capsys.readouterr()
    assert "bad.toml" in told.err
    assert told.out == ""


def test_an_id_cannot_be_taken_twice(acme):
    n = acme.joinpath("n").read_text()
    (acme / "raft_twice").mkdir()
    (acme / "sub").mkdir()
    (acme / "sub" / "amortized_brb.toml").write_text(STEM.format(id="amortized-brb", n=n))
    found = discover.scan()
    assert len(found.errors) == 1
    assert "already" in str(found.errors[0])
    assert discover.find("amortized-brb").room == "protocols"


def test_folders_without_stems_are_left_alone(acme):
    for place in ("data", "problems", "swift_post_more"):
        (acme / "sub" / place).mkdir(parents=True)
        (acme / "sub" / place / "x.toml").write_text("nothing = 1")
    found = discover.scan()
    assert [Path(error.path.partition(":")[0]).parent.name for error in found.errors] == [
        "swift_post_more"
    ]


def test_a_stem_may_be_a_package(acme):
    n = acme.joinpath("n").read_text()
    (acme / "large_one.toml").write_text(STEM.format(id="large-one", n=n))
    (acme / "large_one").mkdir()
    (acme / "large_one" / "table.toml").write_text("not_a_stem = true")
    assert discover.find("large-one").status == "planned"
    (acme / "large_one" / "inner.py").write_text(CODE.format(name="LargeOne"))
    (acme / "large_one" / "__init__.py").write_text("from .inner import LargeOne\n")
    assert discover.find("large-one").status == "working"
    assert discover.load("large-one").__name__ == "LargeOne"
    assert discover.scan().errors == []


def test_which_class_is_meant(acme):
    n = acme.joinpath("n").read_text()
    path = acme / "two_parts.toml"
    path.write_text(STEM.format(id="two-parts", n=n))
    with pytest.raises(UsageError, match="planned"):
        discover.load("two-parts")
    (acme / "two_parts.py").write_text(CODE.format(name="A") + "class B(A):\n    pass\n")
    with pytest.raises(StemError, match="A, B"):
        discover.load("two-parts")
    path.write_text('class = "B"\n' + STEM.format(id="two-parts", n=n))
    assert discover.load("two-parts").__name__ == "B"
    path.write_text('class = "C"\n' + STEM.format(id="two-parts", n=n))
    with pytest.raises(StemError, match="'C'"):
        discover.load("two-parts")


def test_a_module_that_fails_is_named(acme):
    n = acme.joinpath("n").read_text()
    (acme / "failing.toml").write_text(STEM.format(id="failing", n=n))
    (acme / "failing.py").write_text("1 / 0\n")
    assert discover.find("failing").status == "working"
    with pytest.raises(PartError, match="ZeroDivisionError"):
        discover.load("failing")


@pytest.mark.parametrize(
    "text", ["no_such_module_at_all:X", ":X", "json:", "json:JSONDecoder", "/no/file.py:X"]
)
def test_bad_paths_are_named(text):
    with pytest.raises((UsageError, PartError)):
        discover.load(text)


def test_a_broken_entry_point_hides_nobody(acme):
    info = next(acme.parent.glob("*.dist-info"))
    (info / "entry_points.txt").write_text("[orrery.systems]\nx = no_such_package.at_all\n")
    assert len(discover.scan().entries) >= 135


def test_the_shelf_notices_a_change(acme):
    assert discover.find("swift-post").name == "Swift"
    path = acme / "swift_post.toml"
    path.write_text(path.read_text().replace('"Swift"', '"Swifter"'))
    assert discover.find("swift-post").name == "Swifter"
    path.unlink()
    with pytest.raises(UsageError):
        discover.find("swift-post")


def test_a_spoilt_cache_is_no_matter(acme, tmp_path):
    discover.scan()
    (tmp_path / "home" / "cache" / "stems.json").write_bytes(b"\x00{")
    assert discover.find("swift-post").name == "Swift"


def test_homes_may_share_a_cache(acme, tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path / "shared"))
    assert discover.find("swift-post").name == "Swift"
    assert (tmp_path / "shared" / "stems.json").stat().st_size > 0
    assert not (tmp_path / "home").exists()
    # One that cannot be written to is no matter either.
    monkeypatch.setenv("ORRERY_CACHE", str(acme / "swift_post.toml"))
    assert discover.find("swift-post").name == "Swift"


def test_status_comes_from_the_ledger(acme, tmp_path):
    book = Ledger(tmp_path / "ledger.jsonl")
    entry = discover.find("swift-post", book)
    assert entry.status == "working"
    book.record_works_when("swift-post", 1, "it  arrives", "met", test="tests/x.py")
    assert discover.find("swift-post", book).works_when[0]["state"] == "met"
    assert discover.find("swift-post", book).status == "working"
    from orrery import World
    from orrery.lab.claims import Verdict

    claim = entry.stem.claims[0]
    found = Verdict(claim=claim, verdict="holds", measured=0.5, world=World.lan(2).hash)
    book.record_verdict("swift-post", found)
    book.record_engine("swift-post", "virtual", True)
    entry = discover.find("swift-post", book)
    assert entry.status == "checked"
    assert entry.engines == ["virtual"]
    assert entry.claims[0]["verdict"] == "holds"
    # Another world, or another text, and the verdict is gone.
    path = acme / "swift_post.toml"
    text = path.read_text()
    for old, new in (("lan:2", "lan:3"), ("2x", "3x"), ("it arrives", "it arrives early")):
        path.write_text(text.replace(old, new))
        assert discover.find("swift-post", book).status == "working"


def test_problems_are_found_without_import_and_loaded_by_id(acme):
    n = acme.joinpath("n").read_text()
    mine = [one for one in questions.questions() if one.module.startswith(acme.name)]
    assert sorted(one.id for one in mine) == [f"longer{n}", f"sprint{n}"]
    assert f"{acme.name}.problems.sprint" not in sys.modules
    assert discover.question(f"Sprint{n}").title == "How fast parcels cross a crater."
    assert discover.problem_class(f"sprint{n}").__name__ == f"Sprint{n}"
    assert discover.problems()[f"longer{n}"].__name__ == f"Longer{n}"
    with pytest.raises(UsageError, match=f"sprint{n}"):
        discover.problem_class(f"sprnt{n}")
    with pytest.raises(PartError):
        discover.problem_class(f"{acme.name}.swift_post:SwiftPost")


def test_ids_of_problems():
    assert [questions.snake(name) for name in ("LLMRouting", "DNNEdgeServing", "KVStore2")] == [
        "llm_routing", "dnn_edge_serving", "kv_store2",
    ]  # fmt: skip


def test_where_finds_the_room(acme):
    found = discover.where("cross a crater with parcels")
    assert found[0]["room"] == acme.name
    assert set(found[0]) == {"problem", "room", "why"}
    assert "crater" in found[0]["why"]
    rooms = [row["room"] for row in discover.where("byzantine reliable broadcast")]
    assert rooms[0] == "protocols"
    with pytest.raises(UsageError):
        discover.where("  ")
    assert discover.where("zzzzqqq") == []


def test_read_stem_refuses_what_is_not_a_file(tmp_path):
    with pytest.raises(StemError):
        read_stem(tmp_path / "none.toml")
    (tmp_path / "huge.toml").write_text("#" * (2 << 20))
    with pytest.raises(StemError, match="1 MiB"):
        read_stem(tmp_path / "huge.toml")


def test_what_problems_share_is_no_problem():
    from orrery.lab.questions import questions

    names = {question.name for question in questions()}
    assert "ServingProblem" not in names and {"LLMRouting", "LLMBatching", "LLMScaling"} <= names
