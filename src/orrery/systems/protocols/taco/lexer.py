"""Words of a .ta file, each with its line and column; and the error that names them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orrery.base.errors import SpecError

MOST_TEXT = 1 << 20
_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9]+)"
    r"|(?P<sign>->|:=|==|!=|<=|>=|&&|\|\||\[\]|<>|[{}()\[\];:,'*+\-<>!=])",
    re.DOTALL,
)


class SyntaxFault(SpecError):
    """A .ta file that does not read; `line` and `column` (from 1) say where."""

    def __init__(self, file: str, line: int, column: int, problem: str, fix: str = "") -> None:
        self.line = line
        self.column = column
        super().__init__(f"{file}:{line}:{column}", problem, fix)


@dataclass(frozen=True, slots=True)
class Token:
    """One word: its kind ("name", "number", "sign", "end"), its text and its place."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the file" if self.kind == "end" else repr(self.text)


def words(text: str, file: str) -> list[Token]:
    """All words of a text, closed by one of kind "end".

    >>> [(t.text, t.line, t.column) for t in words("x >=\\n 1", "a.ta")]
    [('x', 1, 1), ('>=', 1, 3), ('1', 2, 2), ('', 2, 3)]
    """
    if len(text) > MOST_TEXT:
        raise SyntaxFault(file, 1, 1, f"has {len(text)} characters", "give at most 1 MiB")
    found: list[Token] = []
    at, line, begin = 0, 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            fix = "close the comment with */" if text.startswith("/*", at) else "take it out"
            raise SyntaxFault(file, line, at - begin + 1, f"cannot read {text[at]!r}", fix)
        kind = match.lastgroup or ""
        if kind == "number" and len(match.group()) > 9:
            raise SyntaxFault(file, line, at - begin + 1, f"{match.group()[:12]}… is too large",
                              "give at most 9 digits")  # fmt: skip
        if kind != "space":
            found.append(Token(kind, match.group(), line, at - begin + 1))
        else:
            breaks = match.group().count("\n")
            if breaks:
                line += breaks
                begin = at + match.group().rindex("\n") + 1
        at = match.end()
    found.append(Token("end", "", line, at - begin + 1))
    return found
