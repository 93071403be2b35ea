"""Migrate options of earlier names; find the components in options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from .base import Options, Spec
from .misfit import Path

__all__ = ["components_in", "migrate_options"]


def migrate_options(spec: type[Spec], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Convert options that were given under an earlier name.

    Raises:
        TypeError: `migrate` does not return a dict; or any exception of `migrate`.
    """
    for alias in spec.aliases:
        if alias.name == name != spec.name and alias.migrate is not None:
            migrated: Any = alias.migrate(deepcopy(options))
            if not isinstance(migrated, dict):
                raise TypeError(f'migrate of "{name}" returned {migrated!r}, not a dict')
            return migrated
    return options


def components_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """Yield every component in validated options, with its path."""
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
        yield from components_in(inner, (*path, key))
