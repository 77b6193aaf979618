"""Paper feeds: which papers a saved feed lists, which of them are systems here, what they claim.

`feed(paths)` reads saved arXiv Atom feeds (as XML, or as the text that a browser saves without the
tags), Hugging Face papers pages and listing pages; joins the entries that are one paper; matches
papers to the systems of the catalogue; and says of each claim whether it can be tested, has been
judged, or contradicts another. Nothing is fetched, and no entry is dropped: each is a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from orrery.lab.feed.claims import Status, statuses
from orrery.lab.feed.match import Match, Matcher, stem_text
from orrery.lab.feed.merge import Group, merge
from orrery.lab.feed.papers import Feed, Paper
from orrery.lab.feed.readers import read_data, read_feeds, read_file

if TYPE_CHECKING:
    from orrery.lab.discover import Entry


class Found(msgspec.Struct, kw_only=True):
    """What the feeds held: every entry, the papers behind them, their systems and claims."""

    feeds: list[Feed]
    groups: list[Group]
    matches: list[Match]
    claims: dict[str, list[Status]]
    states: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each listed entry, in listed order: the JSON of `orrery feed`."""
        where = {
            id(paper): (group, match, i)
            for group, match in zip(self.groups, self.matches, strict=True)
            for i, paper in enumerate(group.papers)
        }
        return [self._row(p, *where[id(p)]) for feed in self.feeds for p in feed.papers]

    def _row(self, paper: Paper, group: Group, match: Match, i: int) -> dict[str, Any]:
        claims = self.claims.get(match.system or "", []) if i == 0 else []
        return {
            "title": paper.title,
            "arxiv": f"{paper.arxiv}{f'v{paper.version}' if paper.version else ''}" or None,
            "date": paper.date or None,
            "url": paper.url or None,
            "duplicates_of": group.first.title if i else None,
            "system": match.system,
            "status": self.states.get(match.system or ""),
            "source": paper.source,
            "entry": paper.place,
            "duplicate_because": group.why[i] or None,
            "matched_by": match.how or None,
            "score": match.score if match.system else None,
            "candidates": match.candidates,
            "note": paper.note or None,
            "changed_figures": group.changed_figures if i else [],
            "claims": [msgspec.to_builtins(claim) for claim in claims],
        }

    @property
    def entries(self) -> int:
        """How many entries were listed."""
        return sum(len(feed.papers) for feed in self.feeds)

    def counted(self) -> dict[str, int]:
        """The figures of the summary."""
        every = [claim for each in self.claims.values() for claim in each]
        states = Counter(claim.state for claim in every)
        return {
            "entries": self.entries,
            "papers": len(self.groups),
            "repeats": self.entries - len(self.groups),
            "retitled": sum(group.retitled for group in self.groups),
            "matched": sum(match.system is not None for match in self.matches),
            "ambiguous": sum(match.ambiguous for match in self.matches),
            "claims": len(every),
            "testable": sum(claim.testable for claim in every),
            "judged": states["judged"],
            "to be judged": states["to be judged"],
            "waiting": states["waits for its system"],
            "cannot be tested": states["cannot be tested"],
            "contradicted": sum(bool(claim.contradicts) for claim in every),
        }


def feed(paths: Iterable[str | Path], entries: Sequence[Entry] | None = None) -> Found:
    """Read saved feeds and lay them beside the catalogue."""
    return judge_feeds(read_feeds(paths), entries)


def judge_feeds(feeds: list[Feed], entries: Sequence[Entry] | None = None) -> Found:
    """Join, match and judge what has been read already."""
    if entries is None:
        from orrery.lab import discover

        entries = discover.entries()
    groups = merge([p for each in feeds for p in each.papers], [stem_text(e) for e in entries])
    matcher = Matcher(entries)
    matches = [matcher.match(group) for group in groups]
    wanted = {match.system for match in matches if match.system}
    chosen = [entry for entry in entries if entry.id in wanted]
    return Found(
        feeds=feeds, groups=groups, matches=matches, claims=statuses(chosen),
        states={entry.id: entry.status for entry in chosen},
    )  # fmt: skip


__all__ = [
    "Feed", "Found", "Group", "Match", "Paper", "Status", "feed", "judge_feeds", "merge",
    "read_data", "read_feeds", "read_file",
]  # fmt: skip
