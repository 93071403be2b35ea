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
        """Return the origin as text: `from --set train.lr=1, over base.toml:14:6`."""
        places = list(map(str, self.places))
        if self.default_of is None:
            return f"from {places[0]}" + (f", over {', '.join(places[1:])}" if places[1:] else "")
        unset = f" after {places[0]}" + (f", over {', '.join(places[1:])}" if places[1:] else "") if places else ""
        return f"default of {self.default_of}{unset}"


def settings(options: Options, document: Document, catalog: Catalog | None = None) -> Iterator[Setting]:
    """Yield every option of validated options with its value, in order."""
    yield from _below(options, (), "the experiment", document, catalog)


def select(found: list[Setting], key: str) -> list[Setting]:
    """Return the setting of a key, or those of a table.

    Raises:
        Refused: There is no such key.
    """
    chosen = [setting for setting in found if _is_below(dotted(setting.path), key)]
    if not chosen:
        ends = (dotted(setting.path[:end]) for setting in found for end in range(1, len(setting.path) + 1))
        known = list(dict.fromkeys(ends))
        close = nearest(key, known) or nearest(key.rpartition(".")[2], (name.rpartition(".")[2] for name in known))
        full = next((name for name in known if name == close or name.endswith(f".{close}")), None)
        text = f'the experiment has no key "{key[:100]}"' + (f'; did you mean "{full}"?' if full else "")
        raise Refused(text, code="unknown-key")
    return chosen


def _is_below(name: str, key: str) -> bool:
    return name == key or name.startswith((f"{key}.", f"{key}["))


def _below(value: Any, path: Path, owner: str, document: Document, catalog: Catalog | None) -> Iterator[Setting]:
    if isinstance(value, Spec):
        pinned = catalog.pin(value) if catalog is not None else value.name
        yield _setting(pinned, (*path, "use"), owner, document)
    if isinstance(value, Options):
        inner = value.name if isinstance(value, Spec) else f"[{dotted(path)}]" if path else owner
        for key in type(value).model_fields:
            yield from _below(getattr(value, key), (*path, key), inner, document, catalog)
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _below(item, (*path, key), owner, document, catalog)
    elif isinstance(value, list | tuple) and any(isinstance(item, Options) for item in value):
        for index, item in enumerate(value):
            yield from _below(item, (*path, index), owner, document, catalog)
    else:
        yield _setting(value, path, owner, document)


def _setting(value: Any, path: Path, owner: str, document: Document) -> Setting:
    places = tuple(document.history(path))
    bare = path[-1] == "use" and isinstance(document.at(path[:-1]), str)
    given = bare or document.at(path) is not None
    return Setting(path, value, places, None if given else owner)
