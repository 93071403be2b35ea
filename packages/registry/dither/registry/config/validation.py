"""Validate a document as a model; every mistake is a problem with its line, a code and the closest valid name."""

from __future__ import annotations

import datetime
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import PurePath
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ..plugins.catalog import Catalog
from ..spec.base import Options, Place, Spec, default_part, path_mark
from ..spec.misfit import Misfit, Path
from .document import Document
from .errors import MAX_PROBLEMS, Problem, Refused, did_you_mean, nearest, omitted_problems

__all__ = [
    "PATTERN_MESSAGE",
    "dump",
    "located",
    "path_options",
    "problems_of",
    "validate",
]

O = TypeVar("O", bound=Options)  # noqa: E741
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
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a table"),
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
    **{
        dict: "a table",
        str: "the string",
        bool: "the boolean",
        int: "the integer",
        float: "the number",
    },
    **{
        list: "the list",
        datetime.date: "the date",
        datetime.time: "the time",
        datetime.datetime: "the date",
    },
}


def validate(model: type[O], document: Document, catalog: Catalog | None = None) -> O:
    """Validate a document as `model`; raise `Refused` with one problem for each mistake, at the place of its value."""
    try:
        return model.model_validate(document.tree, context={"catalog": catalog})
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = sorted(
        _Converter(model, document, catalog).convert(details[:MAX_PROBLEMS]), key=_place
    )
    if len(details) > MAX_PROBLEMS:
        problems.append(omitted_problems(len(details) - MAX_PROBLEMS, document.origin(())))
    raise Refused(problems)


def _place(problem: Problem) -> tuple[str, float, float]:
    origin = problem.origin
    return (
        ("", 0, 0) if origin is None else (origin.file, origin.line or math.inf, origin.column or 0)
    )


def problems_of(misfits: Iterable[Misfit], document: Document) -> list[Problem]:
    """Return misfits as problems with their places in the files."""
    problems = []
    for misfit in misfits:
        path = misfit.path
        related = misfit.related
        other = document.origin(related) if related else None
        notes = ((f"the {related[-1]} comes from", other),) if related and other else ()
        origin = document.origin(path, value=True)
        given = document.at(path)
        problems.append(
            Problem(misfit.message, path, origin, misfit.help, notes, given, code=misfit.code)
        )
    return problems


@contextmanager
def located(document: Document) -> Iterator[None]:
    """Add places in the files to problems of the block that have a path only, such as those of building components."""
    try:
        yield
    except Refused as refused:
        refused.problems = tuple(
            replace(
                problem,
                origin=document.origin(problem.path, value=True),
                given=document.at(problem.path),
            )
            if problem.path and problem.origin is None
            else problem
            for problem in refused.problems
        )
        raise


def dump(options: Options, catalog: Catalog | None = None) -> dict[str, Any]:
    """Return options as tables that validate to the same options; components are pinned if a catalogue is given."""

    def plain(value: Any) -> Any:
        if isinstance(value, Spec):
            return {"use": catalog.pin(value) if catalog else value.name, **tables(value)}
        if isinstance(value, Options):
            return tables(value)
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        return str(value) if isinstance(value, PurePath) else value

    def tables(part: Options) -> dict[str, Any]:
        values = ((key, getattr(part, key)) for key in type(part).model_fields)
        return {key: plain(value) for key, value in values if value is not None}

    return tables(options)


def path_options(
    annotation: Any,
    value: Any,
    catalog: Catalog,
    path: Path = (),
    kind: str = "",
) -> Iterator[tuple[Path, str]]:
    """Yield the path of every value in a tree that its option declares to be a file, and the kind of its component.

    Options of unknown components are skipped.
    """
    kind = next((leaf.kind for leaf, place in _leaves(annotation) if place), kind)
    if (
        isinstance(value, str)
        and (mark := path_mark(annotation))
        and not re.fullmatch(mark.unless, value)
    ):
        yield path, kind
    for key in (
        value
        if isinstance(value, Mapping)
        else range(len(value))
        if isinstance(value, list)
        else ()
    ):
        yield from path_options(
            *_descend(annotation, key, value, catalog), catalog, (*path, key), kind
        )


def _code(detail: Detail) -> str:
    kind = detail["type"]
    if kind in CODE_BY_TYPE:
        return str(detail.get("ctx", {}).get("code", CODE_BY_TYPE[kind]))
    if kind.endswith(("_type", "_parsing", "is_instance_of")):
        return "wrong-type"
    if kind.startswith(
        ("greater_than", "less_than", "too_", "string_too_", "multiple_of", "finite_")
    ):
        return "out-of-range"
    return "invalid-value"


class _Converter:
    def __init__(self, model: type[Options], document: Document, catalog: Catalog | None) -> None:
        self.model = model
        self.document = document
        self.catalog = catalog
        self._accepted: dict[Path, dict[str, Any]] = {}
        self._listed: set[Path] = set()

    def convert(self, details: Sequence[Detail]) -> Iterator[Problem]:
        """Yield a problem per error; of an option of several types, the errors inside the type that matches, or one."""
        missing: dict[Path, list[str]] = {}
        misspelled: set[Path] = set()
        located = [(*self.locate(detail), detail) for detail in details]
        reported = {union for path, union, _ in located if union is not None and path != union}
        for path, union, detail in located:
            if path == union and union in reported:
                continue
            if path == union:
                reported.add(path)
                yield self.no_type_matches(path, [d for other, _, d in located if other == path])
            elif detail["type"] == "missing":
                missing.setdefault(path[:-1], []).append(str(path[-1]))
            elif detail["type"] == "extra_forbidden":
                problem, close = self.unknown_key(path, detail)
                misspelled |= {(*path[:-1], close)} if close else set()
                yield problem
            else:
                yield self.wrong_value(path, detail)
        for table, keys in missing.items():
            if keys := [key for key in keys if (*table, key) not in misspelled]:
                yield self.missing(table, keys)

    def locate(self, detail: Detail) -> tuple[Path, Path | None]:
        """Return the path of an error, and of the option around it to whose path pydantic adds names of types."""
        tree: Any = self.document.tree
        path: Path = ()
        union: Path | None = None
        for part in detail["loc"]:
            exists = (
                part in tree
                if isinstance(tree, dict)
                else isinstance(tree, list) and isinstance(part, int)
            )
            if exists or part in self.accepted(path):
                tree = Document.value_of(tree, (part,))
                path = (*path, part)
            elif union is None:
                union = path
        return path, union

    def accepted(self, table: Path) -> dict[str, Any]:
        """Return the keys that the table at a path may have, each with its option."""
        if table not in self._accepted:
            annotation = self.model
            value = self.document.tree
            for part in table:
                annotation, value = _descend(annotation, part, value, self.catalog)
            keys = self._accepted[table] = {}
            for inner in _models(annotation, value, self.catalog):
                keys |= (
                    {"use": None, **inner.model_fields}
                    if issubclass(inner, Spec)
                    else dict(inner.model_fields)
                )
        return self._accepted[table]

    def unknown_key(self, path: Path, detail: Detail) -> tuple[Problem, str | None]:
        table = path[:-1]
        allowed = sorted(self.accepted(path[:-1]))
        close = nearest(path[-1], allowed)
        hints = [f'did you mean "{close}"?'] if close else []
        hints += [f"accepted: {', '.join(allowed)}"] if table not in self._listed else []
        self._listed.add(table)
        origin = self.document.origin(path)
        help_text = " ".join(hints) or None
        return Problem(
            "unknown key", path, origin, help_text, given=detail["input"], code="unknown-key"
        ), close

    def missing(self, table: Path, keys: list[str]) -> Problem:
        lines = []
        width = max(map(len, keys))
        for key in keys:
            info = self.accepted(table).get(key)
            leaves = _leaves(_annotation(info)) if info is not None else ()
            kind = next((leaf.kind for leaf, place in leaves if place), None)
            names = self.catalog.names(kind) if self.catalog is not None and kind else []
            doc = " ".join((getattr(info, "description", None) or "").split())
            value, comment = ('"..."', _join(names)) if names else ("...", doc)
            lines.append(f"{key:{width}} = {value}  # {comment}".rstrip(" #"))
        header = f"write in [{'.'.join(map(str, table))}]" if table else "write"
        path = (*table, keys[0]) if len(keys) == 1 else table
        text = "is missing" if len(keys) == 1 else f"{_join(keys, 'and')} are missing"
        return Problem(
            text,
            path,
            self.document.origin(path),
            header + ":\n" + "\n".join(lines),
            code="missing-key",
        )

    def wrong_value(self, path: Path, detail: Detail) -> Problem:
        value = detail["input"]
        expected, help_text = self.expectation(path, detail) or (None, None)
        if expected is not None:
            message = f"expected {expected}, got {_format(value)}"
        elif detail["type"] in CODE_BY_TYPE:
            message = detail["msg"]
        else:
            message = _lowered(detail["msg"]) + (
                "" if isinstance(value, dict) else f", got {_format(value)}"
            )
        named = detail["type"] == "unknown_part" and isinstance(self.document.at(path), dict)
        origin = self.document.origin((*path, "use") if named else path, value=True)
        return Problem(message, path, origin, help_text, given=value, code=_code(detail))

    def no_type_matches(self, path: Path, details: Sequence[Detail]) -> Problem:
        right_type = [d for d in details if not d["type"].endswith(("_type", "no_name"))]
        if right_type and all(
            d["type"] == "literal_error" for d in right_type
        ):  # "auto", or true or false
            right_type += [d for d in details if d["type"] == "bool_type"]
        details = right_type or details
        expected = [
            (self.expectation((), detail) or (_lowered(detail["msg"]), None))[0]
            for detail in details
        ]
        words = _join(list(dict.fromkeys(text.removeprefix("expected ") for text in expected)))
        value = details[0]["input"]
        origin = self.document.origin(path, value=True)
        code = _code(details[0]) if right_type else "wrong-type"
        return Problem(
            f"expected {words}, got {_format(value)}", path, origin, given=value, code=code
        )

    def expectation(self, path: Path, detail: Detail) -> tuple[str, str | None] | None:
        """Return what was expected, and help; None if the message of the error is to be used."""
        kind = detail["type"]
        context = detail.get("ctx", {})
        if kind == "string_pattern_mismatch":
            info = self.accepted(path[:-1]).get(str(path[-1])) if path else None
            extra = getattr(info, "json_schema_extra", None)
            sentence = extra.get(PATTERN_MESSAGE) if isinstance(extra, Mapping) else None
            return str(sentence or f"text like {context['pattern']}"), None
        if kind in LENGTHS:
            words, key = LENGTHS[kind]
            return f"{words} {context[key]} element{'s' * (context[key] != 1)}", None
        if kind not in EXPECTED:
            return None
        expected = EXPECTED[kind].format(**context).replace("'", '"')
        return expected, did_you_mean(
            detail["input"], ALLOWED.findall(str(context.get("expected", "")))
        )


def _lowered(text: str) -> str:
    text = (
        text.removeprefix("Value error, ").removeprefix("Assertion failed, ").removeprefix("Input ")
    )
    return text[:1].lower() + text[1:]


def _annotation(info: FieldInfo) -> Any:
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _descend(
    annotation: Any,
    part: str | int,
    value: Any,
    catalog: Catalog | None,
) -> tuple[Any, Any]:
    """Return annotation (None if nothing is expected) and value under a key or index."""
    inner = Document.value_of(value, (part,))
    if isinstance(part, str):
        for model in _models(annotation, value, catalog):
            if info := model.model_fields.get(part):
                default = default_part(info)
                if default and isinstance(inner, Mapping) and "use" not in inner:
                    inner = {"use": default["use"], **inner}
                return _annotation(info), inner
    for leaf, _ in _leaves(annotation):
        origin = get_origin(leaf)
        arguments = get_args(leaf)
        if (
            origin is dict
            and isinstance(part, str)
            and isinstance(value, Mapping)
            and part in value
        ):
            return arguments[1], inner
        if origin in (list, tuple, set, frozenset) and isinstance(part, int):
            fixed = origin is tuple and Ellipsis not in arguments and part < len(arguments)
            return arguments[part if fixed else 0], inner
    return None, inner


def _models(annotation: Any, value: Any, catalog: Catalog | None) -> Iterator[type[Options]]:
    """Yield the models a value may be: that of the component it names, or of a nested table."""
    for leaf, place in _leaves(annotation):
        if not (isinstance(leaf, type) and issubclass(leaf, Options)):
            continue
        name = value if isinstance(value, str) else Document.value_of(value, ("use",))
        if not place:
            yield leaf
        elif catalog is not None and isinstance(name, str) and issubclass(leaf, Spec):
            with suppress(Refused):
                yield catalog.find(leaf.kind, name).spec


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


def _format(value: Any) -> str:
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
        text = (
            repr(value)[:80] if not isinstance(value, datetime.date | datetime.time) else str(value)
        )
    return f"{word} {text}".strip()


def _join(words: Sequence[str], last: str = "or") -> str:
    """Return words as an enumeration: `a, b or c`."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
