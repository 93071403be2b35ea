"""Mistakes in the words of a person: pydantic's errors as what was expected and what was given."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from .problems import nearest

__all__ = ["SENTENCE", "expectation", "listed", "shown"]

SENTENCE = "patternErrorMessage"
"""Key in `Field(json_schema_extra={...})` under which an option with a pattern says in words what it takes: the end of
a sentence that begins with "expected". Editors that read our JSON Schema show it as well."""

TYPES: dict[type, str] = {
    dict: "a table",
    str: "the string",
    bool: "the boolean",
    int: "the integer",
    float: "the number",
    list: "the list",
    datetime.date: "the date",
    datetime.time: "the time",
    datetime.datetime: "the date",
}
EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_unicode": "text that can be written as UTF-8",
}
"""What each of pydantic's errors says was expected."""
LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}
CHOICE = re.compile(r"'([^']*)'")


def expectation(detail: Mapping[str, Any], info: FieldInfo | None) -> tuple[str, str | None] | None:
    """Return what was expected, and a word of help; None where the error has its own words."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return _sentence(info) or f"text like {context['pattern']}", None
    if kind in LENGTHS:
        words, key = LENGTHS[kind]
        count = context[key]
        return f"{words} {count} element{'s' * (count != 1)}", None
    if kind not in EXPECTED:
        return None
    expected = EXPECTED[kind].format(**context).replace("'", '"')
    close = nearest(detail["input"], CHOICE.findall(str(context.get("expected", ""))))
    return expected, f'did you mean "{close}"?' if close else None


def _sentence(info: FieldInfo | None) -> str | None:
    extra = info.json_schema_extra if info is not None else None
    sentence = extra.get(SENTENCE) if isinstance(extra, Mapping) else None
    return str(sentence) if sentence else None


def shown(value: Any) -> str:
    """Return a value with its type in front, as in `the string "many"`."""
    word = TYPES.get(type(value), "")
    if isinstance(value, dict):
        return word
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = '"' + repr(value[:80])[1:-1] + '"'
    elif isinstance(value, list) and len(repr(value[:20])) > 60:
        return f"a list of {len(value):,} elements"
    else:
        text = repr(value)[:80] if not isinstance(value, datetime.date | datetime.time) else str(value)
    return f"{word} {text}".strip()


def listed(words: Sequence[str], last: str = "or") -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
