"""`orrery feed`: which papers saved feeds list, which are systems here, and what they claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orrery.cli.common import OK, Json, answer, leave, new_app, say, strong, talk
from orrery.cli.table import print_table

if TYPE_CHECKING:
    from orrery.lab.feed import Found

app = new_app()


@app.command("feed")
def command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Saved feeds or pages: XML, HTML, text.")
    ],
    only: Annotated[
        str, typer.Option("--only", help="Papers to show: all, matched, unmatched or repeats.")
    ] = "all",
    as_json: Json = False,
) -> None:
    """Read saved paper feeds: join repeats, name each paper's system and the state of its claims.

    Takes arXiv Atom feeds (XML, or the text a browser saves without the tags), Hugging Face papers
    pages and listing pages. Nothing is fetched. With --json there is one row for every listed
    entry; a repeat names the paper that it repeats in `duplicates_of`.

    \b
    Examples:
      orrery feed arxiv.xml daily-papers.html
      orrery feed --only unmatched saved/*.txt --json
    """
    from orrery.base.errors import UsageError, did_you_mean
    from orrery.lab.feed import feed

    kinds = ("all", "matched", "unmatched", "repeats")
    if only not in kinds:
        raise UsageError(f"--only {only!r}: {did_you_mean(only, kinds)}")
    found = feed(files)
    for each in found.feeds:
        talk(f"{each.source}: {len(each.papers)} entries ({each.kind})")
        for note in each.notes:
            talk(f"  {note}")
    rows = [row for row in found.rows() if _wanted(row, only)]
    answer(rows, as_json, lambda: _show(found, rows))
    leave(OK)


def _wanted(row: dict[str, object], only: str) -> bool:
    if only == "repeats":
        return row["duplicates_of"] is not None
    if only == "matched":
        return row["system"] is not None
    return only == "all" or row["system"] is None


def _show(found: Found, rows: list[dict[str, object]]) -> None:
    table = []
    for row in rows:
        if row["duplicates_of"] is not None:
            continue
        claims = found.claims.get(str(row["system"]), [])
        judged = sum(claim.state == "judged" for claim in claims)
        testable = sum(claim.testable for claim in claims)
        state = f"{judged} of {testable} judged" if claims else ""
        table.append((row["title"], row["date"], row["system"], row["status"], state))
    print_table(("paper", "date", "system", "status", "claims"), table, keep=("system", "date"))
    _show_joins(found)
    _show_doubts(found)
    _show_claims(found)
    n = found.counted()
    say()
    say(strong(f"{n['entries']} entries, {n['papers']} papers, {n['repeats']} repeats "
               f"({n['retitled']} retitled), {n['matched']} matched"))  # fmt: skip
    say(
        f"{n['claims']} claims: {n['testable']} testable ({n['judged']} judged, "
        f"{n['to be judged']} to be judged, {n['waiting']} wait for their system), "
        f"{n['cannot be tested']} cannot be tested, {n['contradicted']} contradict another"
    )


def _show_joins(found: Found) -> None:
    joined = [group for group in found.groups if len(group.papers) > 1]
    if joined:
        say()
        say(strong("listed more than once"))
    for group in joined:
        say(f"  {group.first.title} ({group.first.where})")
        for paper, why in zip(group.papers[1:], group.why[1:], strict=True):
            other = f" as “{paper.title}”" if paper.title != group.first.title else ""
            say(f"    again in {paper.where}{other}: {why}")
        if group.changed_figures:
            say(f"    its versions differ in these figures: {', '.join(group.changed_figures)}")


def _show_doubts(found: Found) -> None:
    pairs = list(zip(found.groups, found.matches, strict=True))
    unsure = [(group, match) for group, match in pairs if match.ambiguous]
    alone = [group for group, match in pairs if match.system is None and not match.ambiguous]
    if unsure:
        say()
        say(strong("ambiguous"))
    for group, match in unsure:
        maybe = "; ".join(f"{each['system']} ({each['why']})" for each in match.candidates)
        say(f"  {group.first.title}: {maybe}")
    if alone:
        say()
        say(strong("not in the catalogue"))
    for group in alone:
        say(f"  {group.first.title}")


def _show_claims(found: Found) -> None:
    at_odds = [claim for each in found.claims.values() for claim in each if claim.contradicts]
    if at_odds:
        say()
        say(strong("claims that contradict each other"))
    for claim in at_odds:
        for odds in claim.contradicts:
            if (claim.system, claim.n) < (odds.system, odds.n):
                say(f"  {claim.system} ({claim.metric}: {claim.says}) and {odds.system}, "
                    f"claim {odds.n}: {odds.why}")  # fmt: skip
