"""What the site consists of: the written pages in reading order, and where each has its place."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The file (empty for a generated page), its place on the site, its name in the margin.
Entry = tuple[str, str, str]

BEGIN: list[Entry] = [
    ("docs/index.md", "index.html", "Overview"),
    ("docs/first-protocol.md", "first-protocol.html", "Your first protocol"),
    ("docs/first-policy.md", "first-policy.html", "Your first policy"),
    ("docs/reading-a-verdict.md", "reading-a-verdict.html", "Reading a verdict"),
    ("docs/playground.md", "playground.html", "The playground"),
]
HOW_TO: list[Entry] = [
    ("docs/choose.md", "choose.html", "Choose for your cluster"),
    ("docs/my-machines.md", "my-machines.html", "Write your machines as a world"),
    ("docs/check-a-claim.md", "check-a-claim.html", "Check a claim"),
    ("docs/when.md", "when.html", "Find where a claim holds"),
    ("docs/sweep.md", "sweep.html", "Sweep a space"),
    ("docs/training.md", "training.html", "Train on many machines"),
    ("docs/for-real.md", "for-real.html", "Run for real"),
    ("docs/reproduce.md", "reproduce.html", "Reproduce a failure"),
    ("docs/seeing-a-run.md", "seeing-a-run.html", "See what a run did"),
    ("docs/report.md", "report.html", "Pass on what you found"),
    ("docs/page.md", "page.html", "Use the local page"),
    ("docs/own-package.md", "own-package.html", "Add a package of your own"),
    ("docs/notebooks.md", "notebooks.html", "Work in a notebook"),
    ("docs/feed.md", "feed.html", "Read paper feeds"),
]
LOOK_UP: list[Entry] = [
    ("docs/worlds-and-faults.md", "worlds-and-faults.html", "Worlds and faults"),
    ("docs/workloads.md", "workloads.html", "Workloads"),
    ("docs/serving.md", "serving.html", "Serving language models"),
    ("docs/training-cost.md", "training-cost.html", "What training costs"),
    ("docs/engines.md", "engines.html", "Engines and how they differ"),
    ("", "cheatsheet.html", "Cheat sheet"),
    ("", "systems.html", "Systems"),
    ("", "ledger.html", "Ledger"),
    ("", "examples.html", "Examples"),
]
PROJECT: list[Entry] = [
    ("docs/design.md", "design.html", "Why it is so"),
    ("README.md", "readme.html", "Read me"),
    ("CONTRIBUTING.md", "contributing.html", "Contributing"),
    ("SECURITY.md", "security.html", "Security"),
    ("CHANGELOG.md", "changelog.html", "Changes"),
    ("NOTICE", "notice.html", "Notice"),
]


def _unlisted(listed: list[list[Entry]]) -> list[Entry]:
    """Pages that stand in docs/ and in no list: they are found by their first heading."""
    known = {file for pages in listed for file, _, _ in pages}
    found: list[Entry] = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        file = f"docs/{path.name}"
        if file not in known:
            heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            name = heading.group(1) if heading else path.stem
            found.append((file, f"{path.stem}.html", name))
    return found


def _sections() -> dict[str, list[Entry]]:
    """The sections of the margin, without pages that nobody has written yet."""
    more = _unlisted([BEGIN, HOW_TO, LOOK_UP, PROJECT])
    named = {
        "Begin": BEGIN,
        "How to": HOW_TO,
        "Look up": [*LOOK_UP, *more],
        "Project": PROJECT,
    }
    return {
        title: [each for each in pages if not each[0] or (ROOT / each[0]).is_file()]
        for title, pages in named.items()
    }


SECTIONS = _sections()
PLACES = {file: place for pages in SECTIONS.values() for file, place, _ in pages if file}
ORDER = [(place, name) for pages in SECTIONS.values() for _, place, name in pages]
