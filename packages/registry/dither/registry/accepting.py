"""What a plugin may offer: Spec classes of a kind that can be built, by names that can be written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

from packaging.version import InvalidVersion, Version

from .kinds import KINDS
from .spec import Alias, Spec

__all__ = ["key_of", "require_aliases"]

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def key_of(plugin: str, spec: Any) -> tuple[str, str]:
    """Return kind and name of what a plugin offers.

    Raises:
        ValueError: It is no part, or lacks a name or a method.
    """
    if not (isinstance(spec, type) and issubclass(spec, Spec)):
        raise ValueError(f'plugin "{plugin}" offers {spec!r}, which is no Spec class')
    kind, name = getattr(spec, "kind", None), getattr(spec, "name", None)
    if kind not in KINDS or not issubclass(spec, KINDS[kind]):
        raise ValueError(f'{spec.__name__} of plugin "{plugin}" must subclass a kind: {", ".join(KINDS)}')
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f'{spec.__name__} of plugin "{plugin}" needs a kebab-case name, not {name!r}')
    if inspect.isabstract(spec):
        missing = ", ".join(sorted(spec.__abstractmethods__))
        raise ValueError(f'{spec.__name__} of plugin "{plugin}" has no method {missing}')
    return kind, name


def require_aliases(specs: Collection[type[Spec]]) -> None:
    """Look at the earlier names of the parts of one plugin.

    Raises:
        ValueError: One is no name, is taken, or ends with no version.
    """
    taken = {(spec.kind, spec.name) for spec in specs}
    for spec in specs:
        for alias in spec.aliases:
            if not isinstance(alias, Alias) or not isinstance(alias.name, str) or not NAME.fullmatch(alias.name):
                raise ValueError(f'{spec.kind} "{spec.name}" needs kebab-case earlier names, not {alias!r}')
            if (spec.kind, alias.name) in taken:
                raise ValueError(f'{spec.kind} "{spec.name}": the earlier name "{alias.name}" is taken')
            taken.add((spec.kind, alias.name))
            try:
                Version(alias.removed_in)
            except (InvalidVersion, TypeError):
                ends = f'"{alias.name}" ends with {alias.removed_in!r}, which is no version'
                raise ValueError(f'{spec.kind} "{spec.name}": {ends}') from None
