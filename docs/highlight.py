"""Colours for code on the pages, with the standard library's own tokenizer."""

from __future__ import annotations

import builtins
import html
import io
import keyword
import re
import tokenize

CODE = re.compile(r'<pre><code(?: class="language-(\w+)")?>(.*?)</code></pre>', re.DOTALL)
# Words of Python that the tokenizer takes for names, and that a reader takes for keywords.
SOFT = frozenset({"self", "cls", "match", "case"})
BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))


def colour_page(page: str) -> str:
    """A page with every code block coloured by its language."""
    return CODE.sub(_colour_block, page)


def _colour_block(match: re.Match[str]) -> str:
    language, body = match.group(1) or "", html.unescape(match.group(2))
    language = {"py": "python", "sh": "console"}.get(language, language)
    painted = PAINTERS.get(language, html.escape)(body)
    return f'<pre class="{html.escape(language or "plain")}"><code>{painted}</code></pre>'


def colour_python(source: str) -> str:
    """Python source as HTML; source that does not tokenize stays plain.

    >>> colour_python("x = 1  # one")
    'x = <i class="n">1</i>  <i class="c"># one</i>'
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return html.escape(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    pieces: list[str] = []
    done, before = 0, ""
    for token in tokens:
        # What follows a dot is an attribute, whatever it is called.
        kind = "" if before == "." else _kind(token)
        before = token.string
        if not kind:
            continue
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        pieces.append(html.escape(source[done:begin]))
        pieces.append(f'<i class="{kind}">{html.escape(source[begin:end])}</i>')
        done = end
    return "".join([*pieces, html.escape(source[done:])])


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.COMMENT:
        return "c"
    if token.type == tokenize.STRING or token.type in F_STRINGS:
        return "s"
    if token.type == tokenize.NUMBER:
        return "n"
    if token.type == tokenize.NAME:
        if keyword.iskeyword(token.string) or token.string in SOFT:
            return "k"
        return "b" if token.string in BUILTINS else ""
    return "k" if token.string == "@" else ""


# Python 3.12 and later cut f-strings into pieces.
F_STRINGS = {
    getattr(tokenize, name)
    for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
    if hasattr(tokenize, name)
}


def colour_console(text: str) -> str:
    """Commands stand out from what they print."""
    lines = []
    for line in text.split("\n"):
        safe = html.escape(line)
        if line.startswith("$ "):
            safe = f'<i class="c">$</i> <b>{html.escape(line[2:])}</b>'
        lines.append(safe)
    return "\n".join(lines)


def colour_session(text: str) -> str:
    """A session of the interpreter: what was typed is coloured, what was printed is not."""
    lines = []
    for line in text.split("\n"):
        mark, typed = line[:4], line[4:]
        if mark.strip() in (">>>", "..."):
            painted = colour_python(typed)
            lines.append(f'<i class="c">{html.escape(mark)}</i>{painted}')
        else:
            lines.append(html.escape(line))
    return "\n".join(lines)


def colour_toml(text: str) -> str:
    """Tables, keys, texts and comments stand out.

    >>> colour_toml('a = "b"')
    '<i class="b">a</i> = <i class="s">&quot;b&quot;</i>'
    """
    lines = []
    for line in text.split("\n"):
        safe = html.escape(line)
        if line.startswith(("[", "#")):
            safe = f'<i class="{"c" if line.startswith("#") else "k"}">{safe}</i>'
        else:
            safe = re.sub(r"(&quot;.*?&quot;)", r'<i class="s">\1</i>', safe)
            safe = re.sub(r"^(\s*[\w.-]+)( = )", r'<i class="b">\1</i>\2', safe)
        lines.append(safe)
    return "\n".join(lines)


PAINTERS = {
    "python": colour_python,
    "console": colour_console,
    "toml": colour_toml,
    "pycon": colour_session,
}
