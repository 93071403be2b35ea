"""From a document to a validated Spec: every mistake at once, each at its line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from ..plugins.catalog import Catalog
from ..spec.aliases import components_in
from ..spec.base import Options, Spec
from ..spec.misfit import Misfit
from .document import Document
from .errors import Problem, Refused
from .validation_errors import validation_problems

__all__ = ["alias_warnings", "dump", "located", "problems_of", "validate"]

O = TypeVar("O", bound=Options)  # noqa: E741


def validate(model: type[O], document: Document, catalog: Catalog | None = None) -> O:
    """Read a document as `model`.

    Raises:
        Refused: With one problem for each mistake, at the place where it was given.
    """
    try:
        return model.model_validate(document.tree, context={"catalog": catalog})
    except ValidationError as error:
        raise Refused(validation_problems(error, model, document, catalog)) from None


def problems_of(misfits: Iterable[Misfit], document: Document) -> list[Problem]:
    """Give misfits between parts their places in the files."""
    found = []
    for misfit in misfits:
        related = []
        if misfit.related is not None and (other := document.origin(misfit.related)) is not None:
            related.append((f"the {misfit.related[-1]} comes from", other))
        origin = document.origin(misfit.path, value=True)
        found.append(
            Problem(
                misfit.message,
                misfit.path,
                origin,
                misfit.help,
                tuple(related),
                document.at(misfit.path),
                code=misfit.code,
            )
        )
    return found


def located(refused: Refused, document: Document) -> Refused:
    """Give problems that name a value but no place, such as those met while parts are built, their places."""

    def placed(problem: Problem) -> Problem:
        if not problem.path or problem.origin is not None:
            return problem
        return replace(problem, origin=document.origin(problem.path, value=True), given=document.at(problem.path))

    return Refused([placed(problem) for problem in refused.problems])


def dump(options: Options, catalog: Catalog | None = None) -> dict[str, Any]:
    """Return options as tables that parse to the same again; parts are pinned if a catalogue is given."""

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
    """Return one warning for each part that the document calls by an earlier name."""
    warnings = []
    for path, spec in components_in(options):
        given = document.at(path)
        use = given.get("use") if isinstance(given, dict) else given
        name = use.rpartition("/")[2].partition("@")[0] if isinstance(use, str) else spec.name
        for alias in spec.aliases:
            if alias.name == name != spec.name:
                text = (
                    f'{spec.kind} "{name}" is called "{spec.name}" now, and version {alias.removed_in} refuses "{name}"'
                )
                origin = document.origin((*path, "use"))
                warnings.append(Problem(text, path, origin, f'write "{spec.name}"', level="warning"))
    return warnings
