"""Earlier names in an experiment file: they work, and are told where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from .document import Document
from .problems import Problem
from .spec import Options, Path, Spec

__all__ = ["migrated", "parts_in", "renamed"]


def migrated(spec: type[Spec], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Bring options that were given under an earlier name up to date.

    Raises:
        TypeError: Its `migrate` returns no options; or whatever it raises.
    """
    for alias in spec.aliases:
        if alias.name == name != spec.name and alias.migrate is not None:
            today: Any = alias.migrate(deepcopy(options))
            if not isinstance(today, dict):
                raise TypeError(f'migrate of "{name}" returns {today!r}, not the options of today')
            return today
    return options


def parts_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """Yield every part inside validated options, with the path to it."""
    if isinstance(value, Spec):
        yield path, value
    if isinstance(value, Options):
        items: Iterable[tuple[str | int, Any]] = ((key, getattr(value, key)) for key in type(value).model_fields)
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return
    for key, inner in items:
        yield from parts_in(inner, (*path, key))


def renamed(options: Options, document: Document) -> list[Problem]:
    """Return one warning for each part that the document calls by an earlier name."""
    warnings = []
    for path, spec in parts_in(options):
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
