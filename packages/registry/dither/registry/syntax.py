"""What is wrong with a text that is not TOML, in the words of a person instead of the parser's."""

from __future__ import annotations

import re

from .problems import Origin, Problem

__all__ = ["syntax_problem"]

PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
WORDS: tuple[tuple[str, str, str | None], ...] = (
    ("Cannot overwrite a value", "the key was given before", "a key stands once in a table; drop one of the two"),
    ("Cannot declare", "the table was opened before", "put the keys of both under one header"),
    (
        "Cannot mutate immutable",
        "the table was closed before",
        "put the key inside the braces, or open the table with [...]",
    ),
    ("Illegal character '\\n'", "the string does not end on its line", 'close it with a quote, or open it with """'),
    (
        "Invalid value",
        "expected a value",
        'a value is a number, true, false, a "string" in quotes, a [list] or a { table }',
    ),
    ("Expected newline or end", "expected the end of the line", None),
    ("Expected '=' after", 'expected "=" after the key', None),
    ("Invalid statement", "neither a key nor a [table]", None),
    ("Unclosed array", 'expected "," or "]"', None),
    ("Unclosed inline table", 'expected "," or "}"', None),
    ("Unescaped '\\' in a string", "a backslash in quotes begins an escape", "write it twice, or the string in '...'"),
)
"""How a message of tomllib begins, what to say instead, and a word of help."""
WHOLE_KEY = ("the key was given before", "the table was opened before", "the table was closed before")
KEY = re.compile(r"\[*[ \t]*([^\s=\]]+)")


def syntax_problem(error: str, text: str, name: str) -> Problem:
    """Return the problem of which tomllib speaks, at its place.

    Args:
        error: The message of tomllib.
        text: What was read.
        name: What the text is called.
    """
    place = PLACE.search(error)
    at_end = place is None or place[1] is None
    start = len(text.rstrip()) if at_end or place is None else _offset(text, int(place[1]), int(place[2]))
    message = PLACE.sub("", error)
    found = ((words, hint) for beginning, words, hint in WORDS if message.startswith(beginning))
    words, hint = next(found, (message[:1].lower() + message[1:], None))
    end = start + 1
    if words in WHOLE_KEY:  # tomllib speaks of where the statement ends
        line = text.rfind("\n", 0, start) + 1
        if key := KEY.match(text, line):
            start, end = key.span(1)
    words += " at the end of the file" if at_end and place else ""
    return Problem(f"not valid TOML: {words}", (), Origin.within(name, text, start, end), hint)


def _offset(text: str, line: int, column: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column - 1
