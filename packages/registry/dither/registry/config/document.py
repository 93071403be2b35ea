"""Experiment files: TOML with `extends`, overrides from the command line, and the origin of every value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from ..spec.misfit import Path
from .errors import Origin, Problem, Refused, dotted, nearest
from .layers import Layer

__all__ = ["Document"]

MAX_FILES = 32
"""Files that one experiment may consist of."""


@dataclass
class Document:
    """A tree of values, and where each was given.

    Attributes:
        tree: Tables as dictionaries.
        files: The files it was read from, the experiment itself last.
        given: Path -> the layers that gave it, the newest last; for tables, keys, and values that were unset.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    files: list[FilePath] = field(default_factory=list)
    given: dict[Path, tuple[Layer, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: FilePath, overrides: Iterable[str] = (), removals: Iterable[str] = ()) -> Document:
        """Read a file with the files it extends, each once, and apply overrides.

        Args:
            path: The TOML file.
            overrides: `a.b=VALUE` of --set; a VALUE that is not TOML is a string.
            removals: `a.b` of --unset.

        Raises:
            Refused: A file is missing, too large, invalid TOML, or extends itself; an override is not `key=value`.
        """
        document = cls()
        try:
            for layer in _layers(path, [], set()):
                document.merge(layer)
        except Refused as refused:
            raise Refused([_with_suggestion(problem, path) for problem in refused.problems]) from None
        for override in overrides:
            document.merge(Layer.override(override))
        for removal in removals:
            document._unset(removal)
        return document

    @classmethod
    def read(cls, path: FilePath) -> Document:
        """Read one file without the files it extends; raise `Refused` if it is not a TOML file."""
        document = cls()
        document.merge(Layer.read(path))
        return document

    @classmethod
    def from_overrides(cls, overrides: Iterable[str]) -> Document:
        """Make a document of overrides only; raise `Refused` if one is not `key=value`."""
        document = cls()
        for override in overrides:
            document.merge(Layer.override(override))
        return document

    def merge(self, layer: Layer) -> None:
        """Override values by those of a layer."""
        self._merge(self.tree, layer.tree, (), layer)
        if layer.file is not None:
            self.files.append(layer.file)

    def _merge(self, old: dict[str, Any], new: Mapping[str, Any], path: Path, layer: Layer) -> None:
        for key, value in new.items():
            here = (*path, key)
            before = old.get(key)
            if isinstance(before, str) and isinstance(value, dict):  # a component given by its bare name
                before = old[key] = {"use": before}
                self.given[*here, "use"] = self.given.get(here, ())
            if isinstance(before, dict):
                same = isinstance(value, dict) and value.get("use", before.get("use")) == before.get("use")
                if not same:
                    self._drop_origins(before, here, keep_use=isinstance(value, dict))
                    before = None
            self.given[here] = (*self.given.get(here, ()), layer)
            if isinstance(value, dict):
                table = old[key] = before if isinstance(before, dict) else {}
                self._merge(table, value, here, layer)
            else:
                old[key] = value

    def _drop_origins(self, table: Mapping[str, Any], path: Path, keep_use: bool = False) -> None:
        """Drop the origins of values that are replaced; the component that is replaced may stay in the history."""
        for inner in _paths(table, path):
            if not (keep_use and inner == (*path, "use")):
                self.given.pop(inner, None)

    def _unset(self, key: str) -> None:
        layer, path = Layer.removal(key)
        table = self.at(path[:-1])
        if not isinstance(table, dict) or path[-1] not in table:
            close = nearest(key, map(dotted, _paths(self.tree)))
            hint = f'did you mean "{close}"?' if close else None
            raise Refused(Problem(f"{layer.name}: no such key", help=hint, code="unknown-key"))
        value = table.pop(path[-1])
        self._drop_origins(value if isinstance(value, dict) else {}, path)
        self.given[path] = (*self.given.get(path, ()), layer)

    @staticmethod
    def value_of(tree: Any, path: Iterable[str | int]) -> Any:
        """Return the value at a path of a tree, or None."""
        for part in path:
            if isinstance(tree, dict):
                tree = tree.get(part)
            elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
                tree = tree[part]
            else:
                return None
        return tree

    def at(self, path: Path) -> Any:
        """Return the value at a path, or None."""
        return self.value_of(self.tree, path)

    def origin(self, path: Path, value: bool = False) -> Origin | None:
        """Return where the key at a path was given, or its value; for one that was not given, its nearest table."""
        for end in range(len(path), 0, -1):
            if layers := self.given.get(path[:end]):
                return layers[-1].origin(path, value)
        return Origin(str(self.files[-1])) if self.files else None

    def history(self, path: Path) -> list[Origin]:
        """Return where the value at a path was given: the effective place first, then those it overrides."""
        for end in range(len(path), 0, -1):
            if layers := self.given.get(path[:end]):
                table = self.at(path[:end])  # the path may lead into a list, or to the name in a bare name
                inside = isinstance(table, list) or (isinstance(table, str) and path[end:] == ("use",))
                known = end == len(path) or inside
                return [layer.origin(path, value=True) for layer in reversed(layers)] if known else []
        return []


def _paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every key, table and array element of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _paths(value, (*path, key))


def _layers(path: FilePath, opened: list[FilePath], done: set[str]) -> Iterator[Layer]:
    """Read a file after the files it extends, without those that are done; `opened` are the files that extend it."""
    layer = Layer.read(path)
    opened = [*opened, path]
    if len(done) + len(opened) > MAX_FILES:
        raise Refused(f"{opened[0]} extends more than {MAX_FILES} files in total", code="too-large")
    for origin, parent in _parents(layer):
        try:
            real, above = os.path.realpath(parent), list(map(os.path.realpath, opened))
            if real in above:
                chain = " extends ".join(map(str, (*opened[above.index(real) :], parent)))
                raise Refused(f"experiment files extend each other in a circle: {chain}", code="extends-cycle")
            if real not in done:
                yield from _layers(parent, opened, done)
        except ValueError as error:  # the name contains a null byte
            text = f"cannot read {str(parent)!r}: {error}"
            raise Refused(Problem(text, ("extends",), origin, code="unreadable-file")) from None
        except Refused as refused:
            problems = [_with_suggestion(problem, parent) for problem in refused.problems]
            placed = [p if p.origin else replace(p, path=("extends",), origin=origin) for p in problems]
            raise Refused(placed) from None
    done.add(os.path.realpath(path))
    yield layer


def _parents(layer: Layer) -> Iterator[tuple[Origin, FilePath]]:
    given = layer.tree.pop("extends", [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        origin = layer.origin(("extends",), value=True)
        text = "expected the name of a file, or a list of names"
        raise Refused(Problem(text, ("extends",), origin, given=given, code="wrong-type"))
    for index, name in enumerate(names):
        place: Path = ("extends",) if isinstance(given, str) else ("extends", index)
        yield layer.origin(place, value=True), (layer.file or FilePath()).parent / name


def _with_suggestion(problem: Problem, path: FilePath) -> Problem:
    """Suggest the file with the most similar name if there is none of this name."""
    if problem.origin is not None or problem.help or problem.code != "file-not-found":
        return problem
    close = None
    with suppress(OSError):
        close = nearest(path.name, [f.name for f in islice(path.parent.iterdir(), 1000) if f.suffix == ".toml"])
    return replace(problem, help=f'did you mean "{close}"?' if close else None)
