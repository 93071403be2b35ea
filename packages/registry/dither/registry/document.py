"""Experiment files: TOML with `extends`, changes from the command line, and the origin of every value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from .positions import key_positions
from .problems import Origin, Problem, Refused, dotted, nearest
from .spec import Path

__all__ = ["Document"]

LARGEST = 256 * 1024
"""Bytes of an experiment file: far above any real one."""
DEEPEST = 32
"""Parts of a key."""
SHOWN = 80
"""Characters of a change that are shown where it is at fault."""
LONG_KEY = re.compile(rf"(?:[\w\"'-]+[ \t]*\.[ \t]*){{{DEEPEST}}}")


@dataclass
class Document:
    """A tree of values, and where each was given.

    Attributes:
        tree: Tables as dictionaries.
        origins: Path -> origin, for every table, key and array element.
        files: The files that went in, the experiment itself last.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Origin] = field(default_factory=dict)
    files: list[FilePath] = field(default_factory=list)

    @classmethod
    def load(cls, path: FilePath, changes: Iterable[str] = (), removals: Iterable[str] = ()) -> Document:
        """Read a file, what it extends, and changes on top.

        Args:
            path: The TOML file.
            changes: `a.b=VALUE` as after --set; VALUE is TOML, or else a string.
            removals: `a.b` as after --unset.

        Raises:
            Refused: A file is missing, too large, no TOML, or extends itself; a change is no `key=value`.
        """
        document = cls._with_parents(path, ())
        document._change(changes)
        for removal in removals:
            document._unset(removal)
        return document

    @classmethod
    def changed(cls, changes: Iterable[str]) -> Document:
        """Make a document of changes alone.

        Raises:
            Refused: A change is no `key=value`.
        """
        document = cls()
        document._change(changes)
        return document

    def _change(self, changes: Iterable[str]) -> None:
        for change in changes:
            self._set(change)

    @classmethod
    def _with_parents(cls, path: FilePath, children: tuple[FilePath, ...]) -> Document:
        real = path.resolve()
        if real in children:
            chain = " extends ".join(str(p) for p in (*children[children.index(real) :], real))
            raise Refused(f"experiment files extend each other in a circle: {chain}")
        own = cls.read(path)
        parents = own.tree.pop("extends", [])
        origin = own.origins.get(("extends",))
        names = [parents] if isinstance(parents, str) else parents
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refused(Problem("expected the name of a file, or a list of names", ("extends",), origin))
        base = cls()
        for name in names:
            parent = path.parent / name
            if not parent.is_file():
                raise Refused(Problem(f"file {parent} does not exist", ("extends",), origin))
            base.lay(cls._with_parents(parent, (*children, real)))
        base.lay(own)
        return base

    @classmethod
    def read(cls, path: FilePath) -> Document:
        """Read one file without what it extends.

        Raises:
            Refused: The file is missing, too large, not UTF-8, or not TOML.
        """
        try:
            if not path.is_file():
                raise Refused(f"file {path} does not exist" if not path.exists() else f"{path} is not a file")
            if path.stat().st_size > LARGEST:
                raise Refused(f"{path} has {path.stat().st_size:,} bytes; an experiment file has at most {LARGEST:,}")
            text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            raise Refused(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise Refused(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None
        return cls._parse(text, path)

    @classmethod
    def _parse(cls, text: str, path: FilePath) -> Document:
        lines = text.split("\n")
        if LONG_KEY.search(text):
            raise Refused(f"{path}: a key has more than {DEEPEST} parts")
        try:
            tree = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, ValueError) as error:
            match = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            line = int(match[1]) if match else (len(lines) if "end of document" in str(error) else None)
            column = int(match[2]) if match else 1
            origin = Origin(str(path), line, column, lines[line - 1]) if line else Origin(str(path))
            message = re.sub(r" \(at .*\)$", "", str(error))
            raise Refused(Problem(f"not valid TOML: {message}", (), origin)) from None
        except RecursionError:
            raise Refused(f"{path}: tables and arrays are nested too deeply") from None
        origins = {}
        starts = [0]
        for line_text in lines:
            starts.append(starts[-1] + len(line_text) + 1)
        row = 0
        for key, offset in sorted(key_positions(text).items(), key=lambda item: item[1]):
            while starts[row + 1] <= offset:
                row += 1
            origins[key] = Origin(str(path), row + 1, offset - starts[row] + 1, lines[row])
        return cls(tree, origins, [path])

    def lay(self, other: Document) -> None:
        """Put another document on top of this one."""
        self._merge(self.tree, other.tree, (), other.origins)
        self.files += other.files

    def _merge(self, old: dict[str, Any], new: Mapping[str, Any], path: Path, origins: Mapping[Path, Origin]) -> None:
        for key, value in new.items():
            here = (*path, key)
            before = old.get(key)
            if isinstance(before, str) and isinstance(value, dict) and "use" not in value:
                before = old[key] = {"use": before}
                self.origins[*here, "use"] = self.origins[here]
            if (
                isinstance(before, dict)
                and isinstance(value, dict)
                and value.get("use", before.get("use")) == before.get("use")
            ):
                self._merge(before, value, here, origins)
                continue
            self._forget(here)
            old[key] = value
            self.origins.update({p: o for p, o in origins.items() if p[: len(here)] == here})

    def _forget(self, path: Path) -> None:
        for known in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[known]

    def _set(self, change: str) -> None:
        origin = Origin(f"--set {change if len(change) <= SHOWN else change[:SHOWN] + '...'}")
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise Refused(f"{origin}: expected key=value")
        path: Path = tuple(_split(key, "--set"))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, ValueError, RecursionError):
            value = text
        for part in reversed(path):
            value = {part: value}
        self._merge(self.tree, value, (), dict.fromkeys(_paths(value), origin))

    @staticmethod
    def value_of(tree: Any, path: Iterable[str | int]) -> Any:
        """Return the value at a path, or None."""
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

    def _unset(self, key: str) -> None:
        path = tuple(_split(key, "--unset"))
        table = self.at(path[:-1])
        if not isinstance(table, dict) or path[-1] not in table:
            known = [dotted(p) for p in self.origins]
            close = nearest(key, known)
            raise Refused(Problem(f"--unset {key}: no such key", help=f'did you mean "{close}"?' if close else None))
        del table[path[-1]]
        self._forget(path)

    def origin(self, path: Path) -> Origin | None:
        """Return where the value at a path was given; for a value that was not, its nearest table."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return Origin(str(self.files[-1])) if self.files else None


def _split(key: str, who: str) -> list[str]:
    parts = [part.strip() for part in key.strip().split(".")]
    if not all(parts) or len(parts) > DEEPEST:
        raise Refused(f'{who}: "{key[:100]}" is no key; write it as table.key')
    return parts


def _paths(tree: Any, path: Path = ()) -> Iterable[Path]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _paths(value, (*path, key))
