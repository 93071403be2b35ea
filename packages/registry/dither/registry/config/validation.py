"""Validate a document as a model; every mistake is a problem at its line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from ..plugins.catalog import Catalog
from ..spec.base import Options, Spec, components_in
from ..spec.misfit import Misfit
from .document import Document
from .errors import Problem, Refused
from .validation_errors import validation_problems

__all__ = ["alias_warnings", "dump", "located", "problems_of", "validate"]

O = TypeVar("O", bound=Options)  # noqa: E741


def validate(model: type[O], document: Document, catalog: Catalog | None = None) -> O:
    """Validate a document as `model`.

    Raises:
        Refused: With one problem for each mistake, at the place where the value was given.
    """
    try:
        return model.model_validate(document.tree, context={"catalog": catalog})
    except ValidationError as error:
        raise Refused(validation_problems(error, model, document, catalog)) from None


def problems_of(misfits: Iterable[Misfit], document: Document) -> list[Problem]:
    """Return misfits as problems with their places in the files."""
    problems = []
    for misfit in misfits:
        path, related = misfit.path, misfit.related
        other = document.origin(related) if related else None
        notes = ((f"the {related[-1]} comes from", other),) if related and other else ()
        origin, given = document.origin(path, value=True), document.at(path)
        problems.append(Problem(misfit.message, path, origin, misfit.help, notes, given, code=misfit.code))
    return problems


def located(refused: Refused, document: Document) -> Refused:
    """Add places to problems that have a path only, such as those raised while components are built."""

    def placed(problem: Problem) -> Problem:
        if not problem.path or problem.origin is not None:
            return problem
        return replace(problem, origin=document.origin(problem.path, value=True), given=document.at(problem.path))

    return Refused([placed(problem) for problem in refused.problems])


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
        return value

    def tables(part: Options) -> dict[str, Any]:
        values = ((key, getattr(part, key)) for key in type(part).model_fields)
        return {key: plain(value) for key, value in values if value is not None}

    return tables(options)


def alias_warnings(options: Options, document: Document) -> list[Problem]:
    """Return a warning for each component that the document calls by an earlier name."""
    warnings = []
    for path, spec in components_in(options):
        given = document.at(path)
        use = given.get("use") if isinstance(given, dict) else given
        name = use.rpartition("/")[2].partition("@")[0] if isinstance(use, str) else spec.name
        for alias in spec.aliases:
            if alias.name == name != spec.name:
                text = f'{spec.kind} "{name}" was renamed to "{spec.name}"; version {alias.removed_in} removes "{name}"'
                origin, help_text = document.origin((*path, "use")), f'write "{spec.name}"'
                warnings.append(Problem(text, path, origin, help_text, level="warning", code="deprecated-name"))
    return warnings
