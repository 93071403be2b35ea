"""Earlier names in an experiment file: they work, and are told where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from .base import Options, Spec
from .misfit import Path

__all__ = ["components_in", "migrate_options"]


def migrate_options(spec: type[Spec], name: str, options: dict[str, Any]) -> dict[str, Any]:
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


def components_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
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
        yield from components_in(inner, (*path, key))
