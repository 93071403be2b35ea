"""From what pydantic found wrong to problems at their places, with the nearest name of what is allowed there."""

from __future__ import annotations

import datetime
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ..plugins.catalog import Catalog
from ..spec.base import Options, Place, Spec, default_part
from ..spec.misfit import Path
from .document import Document
from .errors import MAX_PROBLEMS, Problem, Refused, nearest, omitted_problems

__all__ = [
    "PATTERN_MESSAGE",
    "Found",
    "accepted_keys",
    "expectation",
    "field_at",
    "format_value",
    "join_words",
    "kind_of",
    "validation_problems",
]

Detail = Mapping[str, Any]


def validation_problems(
    error: ValidationError, model: type[Options], document: Document, catalog: Catalog | None
) -> list[Problem]:
    """Return a problem for each mistake in the order of the lines, but no more than a person can read."""
    details = error.errors(include_url=False)
    problems = sorted(_Reader(model, document, catalog).tell(details[:MAX_PROBLEMS]), key=_place)
    if len(details) > MAX_PROBLEMS:
        problems.append(omitted_problems(len(details) - MAX_PROBLEMS, document.origin(())))
    return problems


def _place(problem: Problem) -> tuple[str, float, float]:
    origin = problem.origin
    return ("", 0, 0) if origin is None else (origin.file, origin.line or math.inf, origin.column or 0)


CODE_BY_TYPE = {
    "no_name": "missing-key",
    "unknown_part": "unknown-component",
    "failed_part": "plugin-failed",
    "wrong_kind": "wrong-kind",
    "literal_error": "unknown-value",
    "enum": "unknown-value",
}
"""Problem codes of pydantic error types, and of our own."""


class _Reader:
    """Knows what the document was read as."""

    def __init__(self, model: type[Options], document: Document, catalog: Catalog | None) -> None:
        self.model, self.document, self.catalog = model, document, catalog
        self._accepted: dict[Path, dict[str, Any]] = {}

    def tell(self, details: Sequence[Detail]) -> Iterator[Problem]:
        missing: dict[Path, list[str]] = {}
        meant: set[Path] = set()
        found = [(self.find(detail), detail) for detail in details]
        for place, detail in _one_of_each_union(found):
            path = place.path
            if detail["type"] == "missing":
                missing.setdefault(path[:-1], []).append(str(path[-1]))
            elif detail["type"] == "extra_forbidden":
                problem, close = self.unknown_key(path, detail)
                meant |= {(*path[:-1], close)} if close else set()
                yield problem
            elif place.union is not None and place.path == place.union:
                yield self.of_no_type(path, [d for p, d in found if p.path == path])
            else:
                yield self.wrong_value(place, detail)
        for table, keys in missing.items():
            if keys := [key for key in keys if (*table, key) not in meant]:  # a misspelt key was told already
                yield self.missing(table, keys)

    def find(self, detail: Detail) -> Found:
        absent = detail["type"] == "missing"
        return field_at(self.model, self.document.tree, detail["loc"], self.catalog, absent)

    def accepted(self, table: Path) -> dict[str, Any]:
        if table not in self._accepted:
            self._accepted[table] = accepted_keys(self.model, self.document.tree, table, self.catalog)
        return self._accepted[table]

    def unknown_key(self, path: Path, detail: Detail) -> tuple[Problem, str | None]:
        table = path[:-1]
        told = table in self._accepted
        allowed = sorted(self.accepted(table))
        close = nearest(path[-1], allowed)
        hints = [f'did you mean "{close}"?'] if close else []
        hints += [] if told else [f"accepted: {', '.join(allowed)}"]
        origin = self.document.origin(path)
        return Problem(
            "unknown key", path, origin, " ".join(hints) or None, given=detail["input"], code="unknown-key"
        ), close

    def missing(self, table: Path, keys: list[str]) -> Problem:
        lines = []
        width = max(map(len, keys))
        for key in keys:
            info = self.accepted(table).get(key)
            kind = kind_of(info)
            names = self.catalog.names(kind) if self.catalog is not None and kind else []
            words = " ".join((getattr(info, "description", None) or "").split())
            lines.append(
                f'{key:{width}} = "..."  # {join_words(names)}'
                if names
                else f"{key:{width}} = ...  # {words}".rstrip(" #")
            )
        hint = (f"write in [{'.'.join(map(str, table))}]" if table else "write") + ":\n" + "\n".join(lines)
        if len(keys) == 1:
            path = (*table, keys[0])
            return Problem("is missing", path, self.document.origin(path), hint, code="missing-key")
        return Problem(
            f"{join_words(keys, 'and')} are missing", table, self.document.origin(table), hint, code="missing-key"
        )

    def wrong_value(self, place: Found, detail: Detail) -> Problem:
        path, value = place.path, detail["input"]
        words = expectation(detail, place.info)
        help_text = None
        if words is not None:
            message, help_text = f"expected {words[0]}, got {format_value(value)}", words[1]
        elif detail["type"] in ("no_name", "unknown_part", "failed_part", "wrong_kind"):
            message = detail["msg"]
        else:
            message = _lowered(detail["msg"]) + ("" if isinstance(value, dict) else f", got {format_value(value)}")
        named = detail["type"] == "unknown_part" and isinstance(self.document.at(path), dict)
        origin = self.document.origin((*path, "use") if named else path, value=True)
        return Problem(message, path, origin, help_text, given=value, code=code_of(detail))

    def of_no_type(self, path: Path, details: Sequence[Detail]) -> Problem:
        near = [d for d in details if not d["type"].endswith(("_type", "no_name"))]  # of the right type at least
        details = near or details
        expected = [(expectation(detail, None) or (_lowered(detail["msg"]), None))[0] for detail in details]
        words = join_words(list(dict.fromkeys(text.removeprefix("expected ") for text in expected)))
        value = details[0]["input"]
        origin = self.document.origin(path, value=True)
        code = code_of(details[0]) if near else "wrong-type"
        return Problem(f"expected {words}, got {format_value(value)}", path, origin, given=value, code=code)


def code_of(detail: Detail) -> str:
    """Return the problem code for an error of pydantic."""
    kind = detail["type"]
    if kind in CODE_BY_TYPE:
        return str(detail.get("ctx", {}).get("code", CODE_BY_TYPE[kind]))
    if kind.endswith(("_type", "_parsing", "is_instance_of")):
        return "wrong-type"
    if kind.startswith(("greater_than", "less_than", "too_", "string_too_", "multiple_of", "finite_")):
        return "out-of-range"
    return "invalid-value"


def _one_of_each_union(found: list[tuple[Found, Detail]]) -> Iterator[tuple[Found, Detail]]:
    """Yield all, but for an option of several types only what is wrong inside the type that fits, or else one."""
    inside = {place.union for place, _ in found if place.union is not None and place.path != place.union}
    seen = set()
    for place, detail in found:
        if place.union is not None and place.path == place.union:
            if place.union in inside or place.union in seen:
                continue
            seen.add(place.union)
        yield place, detail


def _lowered(text: str) -> str:
    text = text.removeprefix("Value error, ").removeprefix("Assertion failed, ").removeprefix("Input ")
    return text[:1].lower() + text[1:]


class Found(NamedTuple):
    """What stands where pydantic points to.

    Attributes:
        path: The place in the document.
        info: The option there, if it is one.
        union: The place of an option that may be of more than one type, if pydantic speaks of one of the types.
    """

    path: Path
    info: FieldInfo | None
    union: Path | None


def field_at(model: type[Options], tree: Any, location: Path, catalog: Catalog | None, absent: bool = False) -> Found:
    """Follow a location of pydantic's, in which names of types stand between the keys where a type is one of several.

    Args:
        model: What the tree is read as.
        tree: The values.
        location: Keys, numbers and names of types.
        catalog: The parts that may be named.
        absent: Whether the last of the location is a key that is not there.
    """
    annotation: Any = model
    path: Path = ()
    info: FieldInfo | None = None
    union: Path | None = None
    for number, part in enumerate(location, 1):
        inner = _descend(annotation, part, tree, catalog)
        there = (isinstance(tree, dict) and part in tree) or (isinstance(tree, list) and isinstance(part, int))
        if inner is None and not there and not (absent and number == len(location)):
            union = path if union is None else union
            continue
        annotation, info = inner or (None, None)
        tree = Document.value_of(tree, (part,))
        path = (*path, part)
    return Found(path, info, union)


def accepted_keys(model: type[Options], tree: Any, path: Path, catalog: Catalog | None) -> dict[str, FieldInfo | None]:
    """Return the keys that the table at a path may have, each with its option."""
    annotation: Any = model
    for part in path:
        annotation, _ = _descend(annotation, part, tree, catalog) or (None, None)
        tree = Document.value_of(tree, (part,))
    keys: dict[str, FieldInfo | None] = {}
    for inner in _models(annotation, tree, catalog):
        keys |= {"use": None, **inner.model_fields} if issubclass(inner, Spec) else dict(inner.model_fields)
    return keys


def kind_of(info: FieldInfo | None) -> str | None:
    """Return the kind of part that an option takes, if it takes one."""
    for leaf, place in _leaves(_annotation(info)) if info is not None else ():
        if place and isinstance(leaf, type) and issubclass(leaf, Spec):
            return leaf.kind
    return None


@dataclass(frozen=True)
class _Default:
    """Goes with an annotation: the name of the part that a table without `use` changes."""

    name: str


def _annotation(info: FieldInfo) -> Any:
    items: list[Any] = [item for item in info.metadata if isinstance(item, Place)][:1]
    if (part := default_part(info)) is not None:
        items.append(_Default(part["use"]))
    return Annotated[(info.annotation, *items)] if items else info.annotation


def _descend(
    annotation: Any, part: str | int, value: Any, catalog: Catalog | None
) -> tuple[Any, FieldInfo | None] | None:
    """Return what is expected under a key or number of a value, or None where nothing is."""
    if isinstance(part, str):
        for model in _models(annotation, value, catalog):
            if part in model.model_fields:
                info = model.model_fields[part]
                return _annotation(info), info
    for leaf, _ in _leaves(annotation):
        origin, arguments = get_origin(leaf), get_args(leaf)
        if origin is dict and isinstance(part, str) and isinstance(value, Mapping) and part in value:
            return arguments[1], None
        if origin in (list, tuple, set, frozenset) and isinstance(part, int):
            fixed = origin is tuple and Ellipsis not in arguments and part < len(arguments)
            return arguments[part if fixed else 0], None
    return None


def _models(annotation: Any, value: Any, catalog: Catalog | None) -> Iterator[type[Options]]:
    """Yield the tables of options that a value may be: that of the part it names or changes, or of a nested table."""
    defaults = [item.name for item in getattr(annotation, "__metadata__", ()) if isinstance(item, _Default)]
    for leaf, place in _leaves(annotation):
        if not (isinstance(leaf, type) and issubclass(leaf, Options)):
            continue
        if not place:
            yield leaf
            continue
        name = value if isinstance(value, str) else Document.value_of(value, ("use",))
        if defaults and isinstance(value, Mapping) and "use" not in value:
            name = defaults[0]
        if catalog is not None and isinstance(name, str) and issubclass(leaf, Spec):
            try:
                yield catalog.find(leaf.kind, name).spec
            except Refused:
                continue


def _leaves(annotation: Any, place: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield each type that an annotation allows, and whether it is a place for a part."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        yield from _leaves(inner, place or any(isinstance(item, Place) for item in metadata))
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _leaves(argument, place)
    else:
        yield annotation, place


PATTERN_MESSAGE = "patternErrorMessage"
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
    sentence = extra.get(PATTERN_MESSAGE) if isinstance(extra, Mapping) else None
    return str(sentence) if sentence else None


def format_value(value: Any) -> str:
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


def join_words(words: Sequence[str], last: str = "or") -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
