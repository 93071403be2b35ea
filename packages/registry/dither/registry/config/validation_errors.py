"""Convert errors of pydantic to problems: what was expected, where, and the closest valid name."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..plugins.catalog import Catalog
from ..spec.base import Options, Spec
from ..spec.misfit import Path
from .document import Document
from .errors import Problem, did_you_mean, dotted, nearest
from .nearest_name import similarity
from .option_lookup import (
    accepts,
    annotation_of,
    descend,
    models_of,
    option_paths,
    slot_kind,
)

__all__ = ["PATTERN_MESSAGE", "ErrorConverter"]

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
"""Codes of error types, of pydantic and of `Catalog.parse`; see `_code` for the rest."""
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
LENGTHS = {
    "too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
}
QUOTED = re.compile(r"'([^']*)'")
WRONG_TYPE = ("_type", "_parsing", "is_instance_of")
OUT_OF_RANGE = (
    "greater_than",
    "less_than",
    "too_",
    "string_too_",
    "multiple_of",
    "finite_",
)
MAX_SIMILAR = 3
"""Options that are named in place of an unknown key."""
VERY_SIMILAR = 0.8
"""Similarity from which a key of the same table is named next to one of the same name elsewhere."""
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


class ErrorConverter:
    """Converts the errors of one document.

    Attributes:
        model: The model of the document.
        document: The invalid document.
        catalog: The components that it may name.
    """

    def __init__(
        self, model: type[Options], document: Document, catalog: Catalog | None
    ) -> None:
        self.model = model
        self.document = document
        self.catalog = catalog
        self._accepted: dict[Path, dict[str, Any]] = {}
        self._kinds: dict[Path, str] = {}
        self._listed: set[Path] = set()

    def convert(self, details: Sequence[Detail]) -> Iterator[Problem]:
        """Yield a problem per mistake.

        pydantic reports an option of several types once for each type; of these, the errors inside
        the type that matches count, or else all become one problem.
        """
        missing: dict[Path, list[str]] = {}
        misspelled: set[Path] = set()
        located = [(*self._locate(detail), detail) for detail in details]
        # Unions whose value matches a type: the errors inside say more than that of the union.
        unions_done = {
            union for path, union, _ in located if union is not None and path != union
        }

        for path, union, detail in located:
            if path == union:
                if union not in unions_done:
                    unions_done.add(path)
                    alternatives = [
                        other for place, _, other in located if place == path
                    ]
                    yield self._no_type_matches(path, alternatives)
            elif detail["type"] == "missing":
                missing.setdefault(path[:-1], []).append(str(path[-1]))
            elif detail["type"] == "extra_forbidden":
                problem, close = self._unknown_key(path, detail)
                # What was meant is not missing.
                if close:
                    misspelled.add((*path[:-1], close))
                yield problem
            else:
                yield self._wrong_value(path, detail)

        for table, keys in missing.items():
            # A misspelled key is not reported as missing, too.
            absent = [key for key in keys if (*table, key) not in misspelled]
            if absent:
                yield self._missing(table, absent)

    def _locate(self, detail: Detail) -> tuple[Path, Path | None]:
        """Return the path of an error, and of the option around it that allows several types.

        pydantic adds the names of these types to the path, which are not part of the document.
        """
        tree: Any = self.document.tree
        path: Path = ()
        union: Path | None = None
        for part in detail["loc"]:
            exists = isinstance(tree, list) and isinstance(part, int)
            if isinstance(tree, dict):
                exists = part in tree
            if exists or part in self._keys(path):
                tree = Document.value_of(tree, (part,))
                path = (*path, part)
            elif union is None:
                union = path
        return path, union

    def _keys(self, table: Path) -> dict[str, Any]:
        """Return the keys that the table at a path may have, each with its option."""
        if table not in self._accepted:
            annotation: Any = self.model
            value: Any = self.document.tree
            for part in table:
                annotation, value = descend(annotation, part, value, self.catalog)
            keys: dict[str, Any] = {}
            for model in models_of(annotation, value, self.catalog):
                if issubclass(model, Spec):
                    keys["use"] = None
                    self._kinds[table] = model.kind
                keys |= model.model_fields
            self._accepted[table] = keys
        return self._accepted[table]

    def _unknown_key(self, path: Path, detail: Detail) -> tuple[Problem, str | None]:
        table = path[:-1]
        allowed = sorted(self._keys(table))
        close = nearest(path[-1], allowed)
        hints = []
        names = self._similar_options(path, detail["input"], close)
        below = [name for name in names if name.startswith(dotted(table))]
        key, others = self._components_with(path, detail["input"])
        if others and close not in names and not below:
            kind = self._kinds[table]
            which = "this key" if key == path[-1] else f'the key "{key}"'
            hints.append(f"components of kind {kind} with {which}: {_join(others)}.")
        elif names:
            hints.append(
                f"did you mean {_join([f'{chr(34)}{name}{chr(34)}' for name in names])}?"
            )
        # The keys of a table are listed once.
        if table not in self._listed:
            self._listed.add(table)
            hints.append(f"accepted: {', '.join(allowed)}")
        problem = Problem(
            "unknown key",
            path,
            self.document.origin(path),
            help=" ".join(hints) or None,
            given=detail["input"],
            code="unknown-key",
        )
        return problem, close

    def _components_with(self, path: Path, given: Any) -> tuple[str, list[str]]:
        """Return an unknown key, or else a similar one, and the components of this kind that have it."""
        key = str(path[-1])
        kind = self._kinds.get(path[:-1])
        if self.catalog is None or kind is None:
            return key, []
        parts = self.catalog.parts(kind)
        keys: set[str] = set()
        for part in parts:
            keys.update(part.spec.model_fields)
        # A key of this very name elsewhere is likelier than one that is written similarly.
        if key not in keys and not self._named(key, given):
            key = nearest(key, sorted(keys)) or key
        return key, [part.name for part in parts if key in part.spec.model_fields]

    def _similar_options(self, path: Path, given: Any, close: str | None) -> list[str]:
        """Return options that an unknown key may mean: of this name anywhere, or else similar ones.

        `close` is the most similar one in the same table.
        """
        table = path[:-1]
        key = str(path[-1])
        names = [dotted(place) for place in self._named_alike(path, given)]
        options = self._options_for(given)
        near = close is not None and similarity(key, close) >= VERY_SIMILAR
        if close and (not names or (near and (*table, close) in options)):
            names.append(close)
        similar = nearest(key, {str(place[-1]) for place in options})
        if not names:
            names = [dotted(place) for place in options if place[-1] == similar]
        return list(dict.fromkeys(names))[:MAX_SIMILAR]

    def _named_alike(self, path: Path, given: Any) -> list[Path]:
        """Return the options with the name of an unknown key, those in the nearest tables first."""
        found = self._named(str(path[-1]), given)
        # Of `attention.heads = 8`, perhaps only the last part is right.
        while not found and isinstance(given, Mapping) and len(given) == 1:
            ((name, given),) = given.items()
            found = self._named(name, given)

        table = path[:-1]

        def distance(place: Path) -> tuple[bool, int]:
            is_elsewhere = place[: len(table)] != table
            return is_elsewhere, len(place)

        return sorted(found, key=distance)[:MAX_SIMILAR]

    def _named(self, name: str, given: Any) -> list[Path]:
        """Return the options of a name that may take a value."""
        return [place for place in self._options_for(given) if place[-1] == name]

    def _options_for(self, given: Any) -> list[Path]:
        """Return every option of the experiment that may take a value."""
        options = option_paths(self.model, self.document.tree, self.catalog)
        return [place for place, annotation in options if accepts(annotation, given)]

    def _missing(self, table: Path, keys: list[str]) -> Problem:
        path = table
        text = f"{_join(keys, 'and')} are missing"
        if len(keys) == 1:
            path = (*table, keys[0])
            text = "is missing"
        header = f"write in [{'.'.join(map(str, table))}]:" if table else "write:"
        width = max(map(len, keys))
        lines = [
            header,
            *(f"{key:{width}} = {self._example(table, key)}" for key in keys),
        ]
        origin = self.document.origin(path)
        return Problem(text, path, origin, help="\n".join(lines), code="missing-key")

    def _example(self, table: Path, key: str) -> str:
        """Return a value and its description, for a line of TOML."""
        info = self._keys(table).get(key)
        if info is None:
            return "..."
        kind = slot_kind(annotation_of(info))
        if self.catalog is not None and kind:
            names = self.catalog.names(kind)
            if names:
                return f'"..."  # {_join(names)}'
        words = " ".join((info.description or "").split())
        return f"...  # {words}" if words else "..."

    def _wrong_value(self, path: Path, detail: Detail) -> Problem:
        value = detail["input"]
        expected, hint = self._expectation(path, detail) or (None, None)
        if expected is not None:
            message = f"expected {expected}, got {_format(value)}"
        elif detail["type"] in CODE_BY_TYPE:
            message = detail["msg"]
        else:
            message = _lowered(detail["msg"])
            if not isinstance(value, dict):
                message += f", got {_format(value)}"
        place = path
        # The name of a component is in `use`, or is the value itself.
        if detail["type"] == "unknown_part" and isinstance(
            self.document.at(path), dict
        ):
            place = (*path, "use")
        origin = self.document.origin(place, value=True)
        return Problem(
            message, path, origin, help=hint, given=value, code=_code(detail)
        )

    def _no_type_matches(self, path: Path, details: Sequence[Detail]) -> Problem:
        right_type = [
            d for d in details if not d["type"].endswith(("_type", "no_name"))
        ]
        # An option such as "auto", or true or false, names both.
        if right_type and all(d["type"] == "literal_error" for d in right_type):
            right_type += [d for d in details if d["type"] == "bool_type"]
        details = right_type or details

        # In the order of the types, each once.
        alternatives: dict[str, None] = {}
        for detail in details:
            expected, _ = self._expectation((), detail) or (
                _lowered(detail["msg"]),
                None,
            )
            alternatives[expected.removeprefix("expected ")] = None
        value = details[0]["input"]
        message = f"expected {_join(list(alternatives))}, got {_format(value)}"
        origin = self.document.origin(path, value=True)
        code = _code(details[0]) if right_type else "wrong-type"
        return Problem(message, path, origin, given=value, code=code)

    def _expectation(self, path: Path, detail: Detail) -> tuple[str, str | None] | None:
        """Return what was expected, and help; None if the message of pydantic is to be used."""
        kind = detail["type"]
        context = detail.get("ctx", {})
        if kind == "string_pattern_mismatch":
            sentence = f"text like {context['pattern']}"
            info = self._keys(path[:-1]).get(str(path[-1])) if path else None
            # An option may describe its pattern.
            if info is not None and isinstance(info.json_schema_extra, Mapping):
                sentence = str(info.json_schema_extra.get(PATTERN_MESSAGE, sentence))
            return sentence, None
        if kind in LENGTHS:
            words, key = LENGTHS[kind]
            noun = "element" if context[key] == 1 else "elements"
            return f"{words} {context[key]} {noun}", None
        if kind not in EXPECTED:
            return None
        expected = EXPECTED[kind].format(**context).replace("'", '"')
        allowed = QUOTED.findall(str(context.get("expected", "")))
        return expected, did_you_mean(detail["input"], allowed)


def _code(detail: Detail) -> str:
    kind = detail["type"]
    if kind in CODE_BY_TYPE:
        return str(detail.get("ctx", {}).get("code", CODE_BY_TYPE[kind]))
    if kind.endswith(WRONG_TYPE):
        return "wrong-type"
    if kind.startswith(OUT_OF_RANGE):
        return "out-of-range"
    return "invalid-value"


def _lowered(text: str) -> str:
    for prefix in ("Value error, ", "Assertion failed, ", "Input "):
        text = text.removeprefix(prefix)
    return text[:1].lower() + text[1:]


def _format(value: Any) -> str:
    """Return a value after its type, as in `the string "many"`."""
    word = TYPES.get(type(value), "")
    if isinstance(value, dict):
        return word
    # Twenty elements decide: a list may be as long as the file.
    if isinstance(value, list) and len(repr(value[:20])) > 60:
        return f"a list of {len(value):,} elements"
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        # repr escapes control characters; the quotes are those of TOML.
        text = '"' + repr(value[:80])[1:-1] + '"'
    elif isinstance(value, datetime.date | datetime.time):
        text = str(value)
    else:
        text = repr(value)[:80]
    return f"{word} {text}".strip()


def _join(words: Sequence[str], last: str = "or") -> str:
    """Return words as an enumeration: `a, b or c`."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end
