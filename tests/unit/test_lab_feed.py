"""Paper feeds: every reader on small invented feeds, hostile files, and the saved feeds if any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orrery.base.errors import CodecError, OrreryError, UsageError
from orrery.lab.feed import Paper, feed, merge, read_data, read_feeds, read_file
from orrery.lab.feed.papers import split_id, unmangled

ENTRY = """<entry><id>http://arxiv.org/abs/{id}</id><title>{title}</title>
<updated>2026-06-02T11:14:57Z</updated><link href="https://arxiv.org/abs/{id}" rel="alternate"/>
<summary>{abstract}</summary><published>2026-06-01T09:00:00Z</published>
<author><name>Ada Byron</name></author></entry>"""
FEED = '<?xml version="1.0" encoding="UTF-8"?><feed xmlns="http://www.w3.org/2005/Atom">{}</feed>'


def xml(*entries: tuple[str, str, str]) -> bytes:
    made = [ENTRY.format(id=i, title=t, abstract=a) for i, t, a in entries]
    return FEED.format("<title>query</title>" + "".join(made)).encode()


def kept(data: bytes | str, source: str = "saved") -> list:
    return read_data(data.encode() if isinstance(data, str) else data, source).papers


# -- Atom as XML


def test_an_atom_feed_is_read_whole():
    found = read_data(xml(("2606.00001v1", "Slow  Clocks\n  Drift", "We drift. " * 9),
                          ("2606.00002v3", "Fast &amp; Loose", "Text.")), "a.xml")  # fmt: skip
    assert found.kind == "atom"
    one, two = found.papers
    assert (one.title, one.arxiv, one.version) == ("Slow Clocks Drift", "2606.00001", 1)
    assert (one.date, one.published) == ("2026-06-02", "2026-06-01")
    assert one.url == "https://arxiv.org/abs/2606.00001v1"
    assert (two.title, two.version, two.place) == ("Fast & Loose", 3, 2)


def test_an_entry_without_title_or_id_is_kept_and_named():
    found = read_data(FEED.format("<entry><summary>x</summary></entry>").encode(), "a.xml")
    assert [paper.title for paper in found.papers] == [""]
    assert "entry 1 (no id) has no title" in found.notes[0]


def test_utf16_xml_is_read():
    text = xml(("2606.00001v1", "Größe zählt", "a")).decode().replace("UTF-8", "UTF-16")
    assert kept(text.encode("utf-16"))[0].title == "Größe zählt"


BOMB = """<?xml version="1.0"?><!DOCTYPE feed [<!ENTITY a "aaaaaaaaaa">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><feed xmlns="http://www.w3.org/2005/Atom">
<entry><title>&b;</title></entry></feed>"""
OUTSIDE = """<?xml version="1.0"?><!DOCTYPE feed SYSTEM "file:///etc/passwd">
<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>x</title></entry></feed>"""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (BOMB, "document type or entities"),
        (OUTSIDE, "document type or entities"),
        (FEED.format("<entry><title>a</entry>"), "broken XML"),
        (FEED.format("")[:-9], "broken XML"),
        (FEED.format("&nope;"), "broken XML"),
        (FEED.format(""), "without entries"),
        ('<?xml version="1.0"?><rss><item/></rss>', "not an Atom feed"),
        ('<?xml version="1.0" encoding="klingon"?><feed/>', "XML"),
        (FEED.format("<entry>" + "<b>" * 100), "nest deeper"),
    ],
)
def test_hostile_xml_is_refused_by_name(data, says):
    with pytest.raises(CodecError, match=says) as told:
        read_data(data.encode(), "bad.xml")
    assert str(told.value).startswith("bad.xml: ")


# -- the same without tags


def stripped(id: str, title: str, updated="2026-06-02T11:14:57Z", published="2026-06-01T09:00:00Z"):
    return f"http://arxiv.org/abs/{id}{title}{updated}We do things.{published}9 pagesAda Byron"


HEAD = "https://arxiv.org/api/fQ5wuQta7T/+QdzI2026-06-10T06:13:33Z288381352"


def test_a_feed_without_tags_is_taken_apart():
    text = HEAD + stripped("2606.00001v2", "Clocks: A Study") + stripped("2606.00002v2", "B 2025")
    one, two = kept(text)
    assert (one.title, one.version, one.date) == ("Clocks: A Study", 2, "2026-06-02")
    assert one.abstract == "We do things."
    assert (two.title, two.arxiv, two.published) == ("B 2025", "2606.00002", "2026-06-01")


SAME = "2026-06-02T11:14:57Z"


@pytest.mark.parametrize(
    ("block", "title", "version"),
    [
        (stripped("2606.00001v1", "3D Scenes", SAME, SAME), "3D Scenes", 1),
        (stripped("2606.00001v2", "3D Scenes"), "3D Scenes", 2),
        (stripped("2606.00001v12", "An Old One"), "An Old One", 12),
        (stripped("2606.00001", "No Version"), "No Version", 0),
        (stripped("0704.1234v2", "Early"), "Early", 2),
        (stripped("0704.1234", "5 Early"), "5 Early", 0),
        (stripped("math.GT/0309136v2", "Knots"), "Knots", 2),
    ],
)
def test_digits_that_run_together_are_told_apart(block, title, version):
    (paper,) = kept(HEAD + block)
    assert (paper.title, paper.version) == (title, version)


def test_addresses_inside_abstracts_and_comments_are_no_entries():
    inside = (
        stripped("2606.00001v2", "One").replace(
            "things.", "things, see http://arxiv.org/abs/2501.00001v1 too."
        )
        + " after http://arxiv.org/abs/2501.00002v1"
    )
    found = read_data((HEAD + inside + stripped("2606.00003v2", "Three")).encode(), "a")
    assert [paper.title for paper in found.papers] == ["One", "Three"]
    assert "2 further addresses" in found.notes[0]
    assert "2501.00001" in found.papers[0].abstract


def test_addresses_alone_are_no_feed():
    with pytest.raises(CodecError, match="no paper was found"):
        read_data(b"see http://arxiv.org/abs/2501.00001v1 and others", "links.txt")


def test_a_feed_that_breaks_off_keeps_what_there_is():
    cut = stripped("2606.00002v2", "Two").partition("We do")[0] + "We do"
    found = read_data((HEAD + stripped("2606.00001v2", "One") + cut).encode(), "a")
    assert [paper.title for paper in found.papers] == ["One", "Two"]
    assert "breaks off" in found.notes[0]


def test_the_older_order_of_fields_is_read():
    text = """http://arxiv.org/abs/2606.00001v1
    2026-06-02T11:14:57Z
    2026-06-02T11:14:57Z
    A Title That Is
  Wrapped
      We say much.
And more.

    Ada Byron
http://arxiv.org/abs/2606.00002v12026-06-02T11:14:57Z2026-06-02T11:14:57ZRun Together
      Text.
"""
    one, two = kept(text)
    assert (one.title, one.abstract) == ("A Title That Is Wrapped", "We say much. And more.")
    assert (two.title, two.version) == ("Run Together", 1)


# -- Hugging Face


DAILY = """new

Daily Papers

byAK and the research community

May 20

Clocks at Rest

{long}

  • 7 authors
·
Feb 23

Is Time Real?

{long} See
{long}

Some Org Some
·
Jun 12, 2025 2

No Date At All: A Lament

{long}

The Last One

{long}

  • 1 authors
·
Dec 30, 2024
""".replace("{long}", "We study the matter at length. " * 15)


def test_daily_papers_as_text():
    found = read_data(DAILY.encode(), "daily")
    assert found.kind == "daily papers"
    titles = [paper.title for paper in found.papers]
    assert titles == ["Clocks at Rest", "Is Time Real?", "No Date At All: A Lament", "The Last One"]
    dates = [paper.date for paper in found.papers]
    assert dates == ["2026-02-23", "2025-06-12", "", "2024-12-30"]
    assert "inferred" in found.papers[0].note
    assert all(paper.abstract for paper in found.papers)


def test_without_any_year_none_is_made_up():
    text = DAILY.replace(", 2025 2", "").replace(", 2024", "")
    one = kept(text)[0]
    assert one.date == ""
    assert "02-23" in one.note


CARDS = """<!doctype html><html><head><title>Daily Papers</title>
<script>var s = '<h3><a href="/papers/2601.99999">Fake</a></h3>';</script></head><body>
<article><a href="/papers/2601.00001"><img src=x></a>
<h3><a href="/papers/2601.00001?x=1">Clocks &amp; Rest</a></h3>
<p>We study <b>clocks</b>.</p><time datetime="2026-01-05T00:00:00.000Z">Jan 5</time></article>
<article><h3><a href="https://huggingface.co/papers/2601.00002">Two
  Lines</a></h3></article>
<style>h3 {color: red}</style><a href="javascript:alert(1)">x</a></body></html>"""


def test_daily_papers_as_html():
    found = read_data(CARDS.encode(), "daily.html")
    assert found.kind == "papers page"
    one, two = found.papers
    assert (one.title, one.arxiv, one.date) == ("Clocks & Rest", "2601.00001", "2026-01-05")
    assert one.abstract == "We study clocks."
    assert two.title == "Two Lines"
    assert "Fake" not in str(found)
    assert "alert" not in str(found)


@pytest.mark.parametrize(
    "piece", ["<!--", "<", "<!", "<?", "<a x", "</a", "<p a='", "&#", "<script>"]
)
def test_pages_made_to_be_slow_are_read_at_once(piece):
    """A page of half a megabyte; in quadratic time each of these would take many minutes."""
    found = read_data((CARDS.replace("</body></html>", "") + piece * 100_000).encode(), "slow.html")
    assert len(found.papers) == 2


# -- listings


DATED = """some site. sign in

cs.DC

0
cs.DC 2026-05-14 Recognition

Clocks drift 32% less

Clocks: On Drift

Splitting work helps.

Figure from the paper full image
abstract click to expand
Many clocks drift. We stop them.
0
0
cs.DC 2026-05-13

Two theorems about time

On Time and Its Order

A sentence without figures

abstract click to expand
Time is ordered.
0

browse all of cs.DC
"""


def test_a_dated_listing():
    found = read_data(DATED.encode(), "list")
    assert found.kind == "dated listing"
    one, two = found.papers
    assert (one.title, one.date) == ("Clocks: On Drift", "2026-05-14")
    assert one.headline == "Clocks drift 32% less"
    assert one.abstract == "Many clocks drift. We stop them."
    assert (two.title, two.abstract) == ("On Time and Its Order", "Time is ordered.")


def test_a_dated_entry_without_a_title_is_kept():
    text = DATED.replace("Two theorems about time\n\nOn Time and Its Order\n\nA sentence without "
                         "figures\n", "")  # fmt: skip
    found = read_data(text.encode(), "list")
    assert len(found.papers) == 2
    assert "entry 2" in found.notes[0]


LISTED = """Showing new listings for Tuesday, 2 June 2026

[1] arXiv:2606.00001 [pdf, html, other]
Title: Clocks: On Drift
Ada Byron, Charles Babbage
Comments: 9 pages
Subjects: Distributed, Parallel, and Cluster Computing (cs.DC)
Many clocks drift. We stop them all, and then we say how that was done, at length, in words.

[2] arXiv:2606.00002v2 (replaced) [pdf]
Title:
    On Time
Subjects: Distributed, Parallel, and Cluster Computing (cs.DC)
"""
LISTED_HTML = """<html><body><h3>Showing new listings for Tuesday, 2 June 2026</h3><dl id=a>
<dt><a name='item1'>[1]</a> <a href="/abs/2606.00001">arXiv:2606.00001</a> [<a>pdf</a>]</dt>
<dd><div class='meta'><div class='list-title mathjax'><span class='descriptor'>Title:</span>
Clocks: On Drift</div><div class='list-authors'>Ada Byron</div>
<div class='list-subjects'><span class='descriptor'>Subjects:</span> cs.DC</div>
<p class='mathjax'>Many clocks drift.</p></div></dd></dl></body></html>"""


def test_an_arxiv_listing_as_text():
    found = read_data(LISTED.encode(), "new")
    assert found.kind == "arXiv listing"
    one, two = found.papers
    assert (one.title, one.arxiv, one.date) == ("Clocks: On Drift", "2606.00001", "2026-06-02")
    assert one.abstract.startswith("Many clocks drift.")
    assert (two.title, two.version, two.abstract) == ("On Time", 2, "")


def test_an_arxiv_listing_as_html():
    found = read_data(LISTED_HTML.encode(), "new.html")
    (one,) = found.papers
    assert (one.title, one.arxiv, one.date) == ("Clocks: On Drift", "2606.00001", "2026-06-02")


# -- files


def test_files_that_are_none(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_bytes(b"\xef\xbb\xbf \n\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "prose").write_text("Nothing here is a paper.\n")
    os.mkfifo(tmp_path / "pipe")
    for name, says in (("empty", "is empty"), ("blank", "is empty"), ("binary", "not text"),
                       ("prose", "no paper was found"), ("missing", "no such file"),
                       ("pipe", "not a regular file"), (".", "is a folder")):  # fmt: skip
        with pytest.raises(OrreryError, match=says):
            read_file(tmp_path / name)


def test_an_oversized_file_is_refused_unread(tmp_path):
    path = tmp_path / "huge.xml"
    with path.open("wb") as file:
        file.truncate(33 << 20)
    with pytest.raises(UsageError, match="a feed has at most"):
        read_file(path)


def test_every_bad_file_is_named_at_once(tmp_path):
    (tmp_path / "good.xml").write_bytes(xml(("2606.00001v1", "A", "b")))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UsageError, match="is empty.*missing: no such file"):
        read_feeds([tmp_path / "empty", tmp_path / "good.xml", tmp_path / "missing"])
    with pytest.raises(UsageError, match="no file is named"):
        read_feeds([])


def test_a_broken_encoding_loses_no_entry():
    found = read_data(DATED.replace("Clocks:", "Clöcks:").encode("latin-1"), "old")
    assert found.papers[0].title == "Clöcks: On Drift"
    assert "not UTF-8" in found.notes[0]
    mixed = DATED.replace("Clocks:", "Clöcks → € ü:").encode() + b"\xff\xfe broken \x80"
    found = read_data(mixed, "mixed")
    assert len(found.papers) == 2
    assert found.papers[0].title.startswith("Clöcks → € ü")


def test_letters_of_the_wrong_code_page_are_put_right():
    assert unmangled("32 ΞΌs, 1–4Γ—, →") == "32 μs, 1–4×, →"
    assert unmangled("Θ(γ²) and ÄÖÜ stay") == "Θ(γ²) and ÄÖÜ stay"


def test_ids():
    assert split_id("2613.00001") == ("", 0)
    assert split_id("20260.00001") == ("", 0)
    assert split_id("nothing") == ("", 0)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", FEED[:60].encode(), HEAD.encode(),
       HEAD.encode() + stripped("2606.00001v2", "One").encode() + b"http://arxiv.org/abs/",
       b"<html><body>", b"Daily Papers\n\n", b"cs.DC 2026-05-14\n"]))  # fmt: skip
def test_no_bytes_break_a_reader(data, start):
    try:
        found = read_data(start + data, "noise")
    except OrreryError as error:
        assert str(error).startswith("noise: ")
    else:
        assert found.papers


def test_endless_texts_are_cut_and_that_is_told():
    found = read_data(xml(("2606.00001v1", "A" * 5000, "word " * 9000)), "long.xml")
    assert len(found.papers[0].title) == 1000
    assert "cut" in found.notes[0]


# -- the saved feeds


def saved() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("ORRERY_FEEDS") or root.parent / "shared" / "feeds")
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    if not files:
        pytest.skip("no saved feeds: set ORRERY_FEEDS to the folder that holds them")
    return files


@pytest.fixture(scope="module")
def found():
    return feed(saved())


def test_every_saved_entry_is_found(found):
    assert [(each.kind, len(each.papers)) for each in found.feeds] == [
        ("dated listing", 80), ("daily papers", 47), ("atom text", 15),
    ]  # fmt: skip
    assert (found.counted()["entries"], found.counted()["papers"]) == (142, 135)
    assert all(paper.title and len(paper.abstract) > 300
               for each in found.feeds for paper in each.papers)  # fmt: skip


def test_every_saved_paper_is_matched_to_its_own_system(found):
    from orrery.lab.discover import entries

    systems = [match.system for match in found.matches]
    published = {entry.id for entry in entries() if entry.origin == "catalogue"}
    assert len(systems) == len(set(systems)) == 135
    assert set(systems) == published


def test_the_repeats_are_named_also_the_retitled_one(found):
    repeats = [row for row in found.rows() if row["duplicates_of"]]
    assert len(repeats) == 7
    (new,) = [row for row in repeats if row["title"] != row["duplicates_of"]]
    assert new["title"].startswith("Light Cone Consistency: Closure")
    assert new["duplicates_of"].startswith("Light Cone Consistency: Toward")
    assert "retitled" in new["duplicate_because"]
    assert new["arxiv"] == "2605.09114v2"


def test_each_saved_feed_alone_matches_too():
    for path, papers in zip(saved(), (74, 47, 15), strict=True):
        alone = feed([path])
        assert len(alone.groups) == papers
        assert all(match.system for match in alone.matches)


def test_no_two_different_saved_papers_are_joined_without_their_ids(found):
    """Ids forbid a join; without any, the thresholds alone must keep 135 papers apart."""
    bare = [Paper(title=g.first.title, abstract=g.first.abstract) for g in found.groups]
    assert len(merge(bare)) == 135


def test_a_saved_paper_whose_system_is_missing_is_matched_to_no_other(found):
    from orrery.lab.discover import entries
    from orrery.lab.feed.match import Matcher

    # A classic may be the rival that a paper itself describes, and then has the paper's title.
    every = [entry for entry in entries() if entry.origin == "catalogue"]
    for half in (0, 1):
        matcher = Matcher(every[half::2])
        known = {entry.id for entry in every[half::2]}
        for group, own in zip(found.groups, found.matches, strict=True):
            match = matcher.match(group)
            assert match.system == (own.system if own.system in known else None)
