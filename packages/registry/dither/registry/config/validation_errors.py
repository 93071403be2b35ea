"""Convert errors of pydantic into problems with place, code and the closest valid name."""

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

__all__ = ["PATTERN_MESSAGE", "accepted_keys", "format_value", "join_words", "kind_of", "validation_problems"]

Detail = Mapping[str, Any]
"""One error of pydantic."""

CODE_BY_TYPE = {
    "no_name": "missing-key",
    "unknown_part": "unknown-component",
    "failed_part": "plugin-failed",
    "wrong_kind": "wrong-kind",
    "literal_error": "unknown-value",
    "enum": "unknown-value",
}
"""Codes of error types, of pydantic and of `Catalog.parse`; see `code_of` for the rest."""
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
    "string_unicode": "text that can be encoded as UTF-8",
}
"""What was expected, by error type of pydantic."""
LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}
ALLOWED = re.compile(r"'([^']*)'")
PATTERN_MESSAGE = "patternErrorMessage"
"""Key of `Field(json_schema_extra={...})` for an option with a pattern: the text after "expected ".
Editors show it as well."""
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


def validation_problems(
    error: ValidationError, model: type[Options], document: Document, catalog: Catalog | None
) -> list[Problem]:
    """Return a problem for each of the first `MAX_PROBLEMS` errors, in the order of the lines."""
    details = error.errors(include_url=False)
    problems = sorted(_Converter(model, document, catalog).convert(details[:MAX_PROBLEMS]), key=_place)
    if len(details) > MAX_PROBLEMS:
        problems.append(omitted_problems(len(details) - MAX_PROBLEMS, document.origin(())))
    return problems


def _place(problem: Problem) -> tuple[str, float, float]:
    origin = problem.origin
    return ("", 0, 0) if origin is None else (origin.file, origin.line or math.inf, origin.column or 0)


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


class _Converter:
    """Converts errors of validating a document as a model."""

    def __init__(self, model: type[Options], document: Document, catalog: Catalog | None) -> None:
        self.model, self.document, self.catalog = model, document, catalog
        self._accepted: dict[Path, dict[str, Any]] = {}

    def convert(self, details: Sequence[Detail]) -> Iterator[Problem]:
        missing: dict[Path, list[str]] = {}
        misspelled: set[Path] = set()
        located = [(self.locate(detail), detail) for detail in details]
        for place, detail in _one_of_each_union(located):
            path = place.path
            if detail["type"] == "missing":
                missing.setdefault(path[:-1], []).append(str(path[-1]))
            elif detail["type"] == "extra_forbidden":
                problem, close = self.unknown_key(path, detail)
                misspelled |= {(*path[:-1], close)} if close else set()
                yield problem
            elif place.union is not None and path == place.union:
                yield self.no_type_matches(path, [d for p, d in located if p.path == path])
            else:
                yield self.wrong_value(place, detail)
        for table, keys in missing.items():
            if keys := [key for key in keys if (*table, key) not in misspelled]:
                yield self.missing(table, keys)

    def locate(self, detail: Detail) -> _Located:
        absent = detail["type"] == "missing"
        return _locate(self.model, self.document.tree, detail["loc"], self.catalog, absent)

    def accepted(self, table: Path) -> dict[str, Any]:
        if table not in self._accepted:
            self._accepted[table] = accepted_keys(self.model, self.document.tree, table, self.catalog)
        return self._accepted[table]

    def unknown_key(self, path: Path, detail: Detail) -> tuple[Problem, str | None]:
        table = path[:-1]
        first_of_table = table not in self._accepted
        allowed = sorted(self.accepted(table))
        close = nearest(path[-1], allowed)
        hints = [f'did you mean "{close}"?'] if close else []
        hints += [f"accepted: {', '.join(allowed)}"] if first_of_table else []
        origin, help_text = self.document.origin(path), " ".join(hints) or None
        return Problem("unknown key", path, origin, help_text, given=detail["input"], code="unknown-key"), close

    def missing(self, table: Path, keys: list[str]) -> Problem:
        lines, width = [], max(map(len, keys))
        for key in keys:
            info = self.accepted(table).get(key)
            kind = kind_of(info)
            names = self.catalog.names(kind) if self.catalog is not None and kind else []
            doc = " ".join((getattr(info, "description", None) or "").split())
            value, comment = ('"..."', join_words(names)) if names else ("...", doc)
            lines.append(f"{key:{width}} = {value}  # {comment}".rstrip(" #"))
        header = f"write in [{'.'.join(map(str, table))}]" if table else "write"
        path = (*table, keys[0]) if len(keys) == 1 else table
        text = "is missing" if len(keys) == 1 else f"{join_words(keys, 'and')} are missing"
        return Problem(text, path, self.document.origin(path), header + ":\n" + "\n".join(lines), code="missing-key")

    def wrong_value(self, place: _Located, detail: Detail) -> Problem:
        path, value = place.path, detail["input"]
        expected, help_text = _expectation(detail, place.info) or (None, None)
        if expected is not None:
            message = f"expected {expected}, got {format_value(value)}"
        elif detail["type"] in CODE_BY_TYPE:
            message = detail["msg"]
        else:
            message = _lowered(detail["msg"]) + ("" if isinstance(value, dict) else f", got {format_value(value)}")
        named = detail["type"] == "unknown_part" and isinstance(self.document.at(path), dict)
        origin = self.document.origin((*path, "use") if named else path, value=True)
        return Problem(message, path, origin, help_text, given=value, code=code_of(detail))

    def no_type_matches(self, path: Path, details: Sequence[Detail]) -> Problem:
        right_type = [d for d in details if not d["type"].endswith(("_type", "no_name"))]
        details = right_type or details
        expected = [(_expectation(detail, None) or (_lowered(detail["msg"]), None))[0] for detail in details]
        words = join_words(list(dict.fromkeys(text.removeprefix("expected ") for text in expected)))
        value, origin = details[0]["input"], self.document.origin(path, value=True)
        code = code_of(details[0]) if right_type else "wrong-type"
        return Problem(f"expected {words}, got {format_value(value)}", path, origin, given=value, code=code)


def _lowered(text: str) -> str:
    text = text.removeprefix("Value error, ").removeprefix("Assertion failed, ").removeprefix("Input ")
    return text[:1].lower() + text[1:]


class _Located(NamedTuple):
    """The place of an error.

    Attributes:
        path: The path in the document.
        info: The option there, if it is one.
        union: The path of an option of several types, if the error is about one of the types.
    """

    path: Path
    info: FieldInfo | None
    union: Path | None


def _one_of_each_union(located: list[tuple[_Located, Detail]]) -> Iterator[tuple[_Located, Detail]]:
    """Drop errors of an option of several types, except those inside the type that matches, or else one."""
    inside = {place.union for place, _ in located if place.union is not None and place.path != place.union}
    seen = set()
    for place, detail in located:
        if place.union is not None and place.path == place.union:
            if place.union in inside or place.union in seen:
                continue
            seen.add(place.union)
        yield place, detail


def _locate(model: type[Options], tree: Any, location: Path, catalog: Catalog | None, absent: bool) -> _Located:
    """Follow a location of pydantic, which has names of types between the keys for an option of several types.

    `absent` if the last part of the location is a missing key.
    """
    annotation: Any = model
    path: Path = ()
    info: FieldInfo | None = None
    union: Path | None = None
    for number, part in enumerate(location, 1):
        inner = _descend(annotation, part, tree, catalog)
        exists = (isinstance(tree, dict) and part in tree) or (isinstance(tree, list) and isinstance(part, int))
        if inner is None and not exists and not (absent and number == len(location)):
            union = path if union is None else union
            continue
        annotation, info = inner or (None, None)
        tree = Document.value_of(tree, (part,))
        path = (*path, part)
    return _Located(path, info, union)


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
    """Return the kind of component that an option takes, or None."""
    for leaf, place in _leaves(_annotation(info)) if info is not None else ():
        if place and isinstance(leaf, type) and issubclass(leaf, Spec):
            return leaf.kind
    return None


@dataclass(frozen=True)
class _Default:
    """Annotation metadata: the name of the component that a table without `use` changes."""

    name: str


def _annotation(info: FieldInfo) -> Any:
    items: list[Any] = [item for item in info.metadata if isinstance(item, Place)][:1]
    if (part := default_part(info)) is not None:
        items.append(_Default(part["use"]))
    return Annotated[(info.annotation, *items)] if items else info.annotation


def _descend(
    annotation: Any, part: str | int, value: Any, catalog: Catalog | None
) -> tuple[Any, FieldInfo | None] | None:
    """Return annotation and option under a key or index of a value, or None if nothing is expected there."""
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
    """Yield the models a value may be: that of the component it names or changes, or of a nested table."""
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
    """Yield each type that an annotation allows, and whether it is a slot."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        yield from _leaves(inner, place or any(isinstance(item, Place) for item in metadata))
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _leaves(argument, place)
    else:
        yield annotation, place


def _expectation(detail: Detail, info: FieldInfo | None) -> tuple[str, str | None] | None:
    """Return what was expected, and help; None if the message of the error is to be used."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "string_pattern_mismatch":
        extra = info.json_schema_extra if info is not None else None
        sentence = extra.get(PATTERN_MESSAGE) if isinstance(extra, Mapping) else None
        return str(sentence or f"text like {context['pattern']}"), None
    if kind in LENGTHS:
        words, key = LENGTHS[kind]
        count = context[key]
        return f"{words} {count} element{'s' * (count != 1)}", None
    if kind not in EXPECTED:
        return None
    expected = EXPECTED[kind].format(**context).replace("'", '"')
    close = nearest(detail["input"], ALLOWED.findall(str(context.get("expected", ""))))
    return expected, f'did you mean "{close}"?' if close else None


def format_value(value: Any) -> str:
    """Return a value after its type, as in `the string "many"`."""
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
    """Return words as an enumeration: `a, b or c`."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
