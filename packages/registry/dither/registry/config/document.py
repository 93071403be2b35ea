"""Experiment files: TOML with `extends`, overrides from the command line, and the origin of every value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from ..spec.misfit import Path
from .errors import Origin, Problem, Refused, dotted, nearest
from .layers import Layer
from .toml_reader import MAX_BYTES

__all__ = ["Document", "paths"]

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
        """Read a file with the files it extends, and apply overrides.

        A file that is extended more than once counts where it is reached first.

        Args:
            path: The TOML file.
            overrides: `a.b=VALUE` of --set; a VALUE that is not TOML is a string.
            removals: `a.b` of --unset.

        Raises:
            Refused: A file is missing, too large, invalid TOML, or extends itself; an override is not `key=value`.
        """
        document = cls()
        try:
            for layer in _Files().read(path):
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
        """Read one file without the files it extends.

        Raises:
            Refused: The file is missing, too large, not UTF-8, or invalid TOML.
        """
        document = cls()
        document.merge(Layer.read(path))
        return document

    @classmethod
    def from_overrides(cls, overrides: Iterable[str]) -> Document:
        """Make a document of overrides only.

        Raises:
            Refused: An override is not `key=value`.
        """
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
            if isinstance(before, dict) and not (isinstance(value, dict) and _same_use(before, value)):
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
        for inner in paths(table, path):
            if not (keep_use and inner == (*path, "use")):
                self.given.pop(inner, None)

    def _unset(self, key: str) -> None:
        layer, path = Layer.removal(key)
        table = self.at(path[:-1])
        if not isinstance(table, dict) or path[-1] not in table:
            close = nearest(key, map(dotted, paths(self.tree)))
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
                known = end == len(path) or self._is_inside_value(path, end)
                return [layer.origin(path, value=True) for layer in reversed(layers)] if known else []
        return []

    def _is_inside_value(self, path: Path, end: int) -> bool:
        """Return whether a path leads into a list, or to the name in a bare name."""
        value = self.at(path[:end])
        return isinstance(value, list) or (isinstance(value, str) and path[end:] == ("use",))


def _same_use(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    return bool(value.get("use", before.get("use")) == before.get("use"))


class _Files:
    """Reads an experiment file and the files it extends, each once, extended files first."""

    def __init__(self) -> None:
        self.room = MAX_BYTES
        self.done: set[str] = set()
        self.open: list[FilePath] = []

    def read(self, path: FilePath) -> Iterator[Layer]:
        layer = Layer.read(path, self.room)
        self.room -= len((layer.text or "").encode())
        self.open.append(path)
        if len(self.done) + len(self.open) > MAX_FILES:
            raise Refused(f"{self.open[0]} extends more than {MAX_FILES} files in total", code="too-large")
        for origin, parent in self.parents(layer):
            yield from self.parent(parent, origin)
        self.done.add(os.path.realpath(self.open.pop()))
        yield layer

    @staticmethod
    def parents(layer: Layer) -> Iterator[tuple[Origin, FilePath]]:
        given = layer.tree.pop("extends", [])
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            origin = layer.origin(("extends",), value=True)
            text = "expected the name of a file, or a list of names"
            raise Refused(Problem(text, ("extends",), origin, given=given, code="wrong-type"))
        if len(names) > MAX_FILES:
            text = f"{len(names):,} files are listed; at most {MAX_FILES} are allowed"
            raise Refused(Problem(text, ("extends",), layer.origin(("extends",)), code="too-large"))
        for index, name in enumerate(names):
            place: Path = ("extends",) if isinstance(given, str) else ("extends", index)
            yield layer.origin(place, value=True), (layer.file or FilePath()).parent / name

    def parent(self, path: FilePath, origin: Origin) -> Iterator[Layer]:
        try:
            real = os.path.realpath(path)
            opened = list(map(os.path.realpath, self.open))
            if real in opened:
                chain = " extends ".join(map(str, (*self.open[opened.index(real) :], path)))
                raise Refused(f"experiment files extend each other in a circle: {chain}", code="extends-cycle")
            if real not in self.done:
                yield from self.read(path)
        except ValueError as error:  # the name contains a null byte
            problem = Problem(f"cannot read {str(path)!r}: {error}", ("extends",), origin, code="unreadable-file")
            raise Refused(problem) from None
        except Refused as refused:
            raise Refused([self.placed(problem, path, origin) for problem in refused.problems]) from None

    @staticmethod
    def placed(problem: Problem, path: FilePath, origin: Origin) -> Problem:
        """Add the place that names a file which cannot be read."""
        if problem.origin is not None:
            return problem
        return replace(_with_suggestion(problem, path), path=("extends",), origin=origin)


def _with_suggestion(problem: Problem, path: FilePath) -> Problem:
    """Suggest the file with the most similar name if there is none of this name."""
    if problem.origin is not None or problem.help or problem.code != "file-not-found":
        return problem
    close = nearest(path.name, _neighbours(path))
    return replace(problem, help=f'did you mean "{close}"?' if close else None)


def _neighbours(path: FilePath) -> list[str]:
    try:
        return sorted(file.name for file in islice(path.parent.iterdir(), 1000) if file.suffix == ".toml")
    except OSError:
        return []


def paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every key, table and array element of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths(value, (*path, key))
