"""Origin of every value of an experiment: a file, an override, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import Origin, Refused, dotted, nearest
from dither.registry.plugins.catalog import Catalog
from dither.registry.spec.base import Options, Spec
from dither.registry.spec.misfit import Path

__all__ = ["Setting", "select", "settings"]


@dataclass(frozen=True)
class Setting:
    """The effective value of one option.

    Attributes:
        path: Keys from the top of the experiment.
        value: The value, or None.
        places: Where it was given: the effective place first, then those it overrides.
        default_of: The component or table whose default is used, if no value is given.
    """

    path: Path
    value: Any
    places: tuple[Origin, ...] = ()
    default_of: str | None = None

    @property
    def story(self) -> str:
        groups = (", ".join(map(str, places)) for places in (self.places[:1], self.places[1:]))
        places = ", over ".join(filter(None, groups))
        if self.default_of is None:
            return f"from {places}"
        return f"default of {self.default_of}" + (f" after {places}" if places else "")


def select(settings: list[Setting], key: str | None) -> list[Setting]:
    """Return the setting of a key, or those of a table; without a key, all. Refused if there is none."""
    if key is None:
        return settings
    selected = [row for row in settings if f"{dotted(row.path)}.".startswith((f"{key}.", f"{key}["))]
    if not selected:
        known = list(dict.fromkeys(dotted(row.path[: end + 1]) for row in settings for end in range(len(row.path))))
        close = nearest(key, known) or nearest(key.rpartition(".")[2], (name.rpartition(".")[2] for name in known))
        full = next((name for name in known if f".{name}".endswith(f".{close}")), None)
        hint = f'; did you mean "{full}"?' if full else ""
        raise Refused(f'the experiment has no key "{key[:100]}"{hint}', code="unknown-key")
    return selected


def settings(
    value: Any, document: Document, catalog: Catalog, path: Path = (), owner: str = "the experiment"
) -> Iterator[Setting]:
    """Yield every option of validated options with its value, in order."""
    items: list[tuple[str | int, Any]] = []
    inner = owner
    if isinstance(value, Spec):
        yield _setting(catalog.pin(value), (*path, "use"), owner, document)
    if isinstance(value, Options):
        items = [(key, getattr(value, key)) for key in type(value).model_fields]
        inner = value.name if isinstance(value, Spec) else f"[{dotted(path)}]" if path else owner
    elif isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(item, Options) for item in value):
        items = list(enumerate(value))
    if not items and not isinstance(value, Options):
        yield _setting(value, path, owner, document)
    for key, item in items:
        yield from settings(item, document, catalog, (*path, key), inner)


def _setting(value: Any, path: Path, owner: str, document: Document) -> Setting:
    bare = path[-1] == "use" and isinstance(document.at(path[:-1]), str)
    given = bare or document.at(path) is not None
    return Setting(path, value, tuple(document.history(path)), None if given else owner)
