"""Validate a document as a model; every mistake is a problem with its line, a code and a hint."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import Any, TypeVar

from pydantic import ValidationError

from ..plugins.catalog import Catalog
from ..spec.base import Options, Spec, path_mark
from ..spec.misfit import Misfit, Path
from .document import Document
from .errors import MAX_PROBLEMS, Origin, Problem, Refused, omitted_problems
from .option_lookup import descend, slot_kind
from .validation_errors import PATTERN_MESSAGE, ErrorConverter

__all__ = [
    "PATTERN_MESSAGE",
    "dump",
    "located",
    "path_options",
    "problems_of",
    "validate",
]

O = TypeVar("O", bound=Options)  # noqa: E741


def validate(model: type[O], document: Document, catalog: Catalog | None = None) -> O:
    """Validate a document as `model`.

    The table of a component becomes its Spec in `Catalog.parse`, which the slot calls
    (`registry.spec.base`). Raises `Refused` with one problem for each mistake, at the place of its
    value.
    """
    try:
        return model.model_validate(document.tree, context={"catalog": catalog})
    except ValidationError as error:
        try:
            details = error.errors(include_url=False)
        # Python reads words of a command line that are not UTF-8 as surrogates.
        except UnicodeEncodeError as encoding:
            message = f"{encoding.object!r} is not text in UTF-8"
            raise Refused(message, code="invalid-value") from None
    problems = list(
        ErrorConverter(model, document, catalog).convert(details[:MAX_PROBLEMS])
    )
    # In the order of the file, in which they are corrected.
    problems.sort(key=_place)
    if len(details) > MAX_PROBLEMS:
        problems.append(
            omitted_problems(len(details) - MAX_PROBLEMS, document.origin(()))
        )
    raise Refused(problems)


def _place(problem: Problem) -> tuple[str, float, float]:
    origin = problem.origin
    # Problems of the experiment as a whole come first.
    if origin is None:
        return "", 0, 0
    return origin.file, origin.line or math.inf, origin.column or 0


def problems_of(misfits: Iterable[Misfit], document: Document) -> list[Problem]:
    """Return misfits as problems with their places in the files."""
    problems = []
    for misfit in misfits:
        related = misfit.related
        other = document.origin(related) if related else None
        notes: tuple[tuple[str, Origin], ...] = ()
        if related and other:
            notes = ((f"the {related[-1]} comes from", other),)
        problem = Problem(
            misfit.message,
            misfit.path,
            document.origin(misfit.path, value=True),
            help=misfit.help,
            related=notes,
            given=document.at(misfit.path),
            code=misfit.code,
        )
        problems.append(problem)
    return problems


@contextmanager
def located(document: Document) -> Iterator[None]:
    """Add places in the files to problems of the block that have a path only.

    Such problems are raised while components are built.
    """
    try:
        yield
    except Refused as refused:
        refused.problems = tuple(
            _located(problem, document) for problem in refused.problems
        )
        # The same exception, with its traceback and exit code.
        raise


def _located(problem: Problem, document: Document) -> Problem:
    # A component that read a file of its own has named the place in it.
    if not problem.path or problem.origin is not None:
        return problem
    origin = document.origin(problem.path, value=True)
    return replace(problem, origin=origin, given=document.at(problem.path))


def dump(options: Options, catalog: Catalog | None = None) -> dict[str, Any]:
    """Return options as tables that validate to the same options.

    Components are pinned if a catalogue is given.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Spec):
            return {
                "use": catalog.pin(value) if catalog else value.name,
                **tables(value),
            }
        if isinstance(value, Options):
            return tables(value)
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        return str(value) if isinstance(value, PurePath) else value

    def tables(part: Options) -> dict[str, Any]:
        values = ((key, getattr(part, key)) for key in type(part).model_fields)
        # TOML has no null.
        return {key: plain(value) for key, value in values if value is not None}

    return tables(options)


def path_options(
    annotation: Any,
    value: Any,
    catalog: Catalog,
    path: Path = (),
    kind: str = "",
) -> Iterator[tuple[Path, str]]:
    """Yield the path of every value that is declared to be a file, and its component's kind.

    Options of unknown components are skipped.
    """
    kind = slot_kind(annotation) or kind
    if isinstance(value, str):
        mark = path_mark(annotation)
        if mark is not None and not re.fullmatch(mark.unless, value):
            yield path, kind
        return
    keys: Iterable[str | int] = ()
    if isinstance(value, Mapping):
        keys = value
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        inner_annotation, inner = descend(annotation, key, value, catalog)
        yield from path_options(inner_annotation, inner, catalog, (*path, key), kind)
