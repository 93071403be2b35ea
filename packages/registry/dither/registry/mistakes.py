"""From what pydantic found wrong to problems at their places, with the nearest name of what is allowed there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from .catalog import Catalog
from .document import Document
from .fields import Found, accepted_keys, field_at, kind_of
from .problems import MOST, Problem, nearest, not_shown
from .spec import Options, Path
from .wording import expectation, listed, shown

__all__ = ["problems_in"]

Detail = Mapping[str, Any]


def problems_in(
    error: ValidationError, model: type[Options], document: Document, catalog: Catalog | None
) -> list[Problem]:
    """Return a problem for each mistake in the order of the lines, but no more than a person can read."""
    details = error.errors(include_url=False)
    problems = sorted(_Reader(model, document, catalog).tell(details[:MOST]), key=_place)
    if len(details) > MOST:
        problems.append(not_shown(len(details) - MOST, document.origin(())))
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
                f'{key:{width}} = "..."  # {listed(names)}' if names else f"{key:{width}} = ...  # {words}".rstrip(" #")
            )
        hint = (f"write in [{'.'.join(map(str, table))}]" if table else "write") + ":\n" + "\n".join(lines)
        if len(keys) == 1:
            path = (*table, keys[0])
            return Problem("is missing", path, self.document.origin(path), hint, code="missing-key")
        return Problem(
            f"{listed(keys, 'and')} are missing", table, self.document.origin(table), hint, code="missing-key"
        )

    def wrong_value(self, place: Found, detail: Detail) -> Problem:
        path, value = place.path, detail["input"]
        words = expectation(detail, place.info)
        help_text = None
        if words is not None:
            message, help_text = f"expected {words[0]}, got {shown(value)}", words[1]
        elif detail["type"] in ("no_name", "unknown_part", "failed_part", "wrong_kind"):
            message = detail["msg"]
        else:
            message = _lowered(detail["msg"]) + ("" if isinstance(value, dict) else f", got {shown(value)}")
        named = detail["type"] == "unknown_part" and isinstance(self.document.at(path), dict)
        origin = self.document.origin((*path, "use") if named else path, value=True)
        return Problem(message, path, origin, help_text, given=value, code=code_of(detail["type"]))

    def of_no_type(self, path: Path, details: Sequence[Detail]) -> Problem:
        near = [d for d in details if not d["type"].endswith(("_type", "no_name"))]  # of the right type at least
        details = near or details
        expected = [(expectation(detail, None) or (_lowered(detail["msg"]), None))[0] for detail in details]
        words = listed(list(dict.fromkeys(text.removeprefix("expected ") for text in expected)))
        value = details[0]["input"]
        origin = self.document.origin(path, value=True)
        code = code_of(details[0]["type"]) if near else "wrong-type"
        return Problem(f"expected {words}, got {shown(value)}", path, origin, given=value, code=code)


def code_of(kind: str) -> str:
    """Return the problem code for a pydantic error type."""
    if kind in CODE_BY_TYPE:
        return CODE_BY_TYPE[kind]
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
