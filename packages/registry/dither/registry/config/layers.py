"""What an experiment is laid together from: files and changes, each of which knows where its values stand."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from ..spec.misfit import Path
from .errors import Origin, Problem, Refused
from .toml_reader import DEEPEST, LARGEST, check_text, read_text, syntax_problem
from .toml_spans import Span, key_spans

__all__ = ["Layer"]

SHOWN = 80
"""Characters of a change that are shown where it is at fault."""
INTEGERS = range(-(2**63), 2**63)
"""The integers of TOML."""
TOO_LARGE = "the number is too large: integers have at most 64 bits"


@dataclass(frozen=True)
class Layer:
    """Values from one place.

    Attributes:
        name: The file, or the change: `--set train.lr=1`, `--unset train.lr`.
        tree: The values.
        text: The text of the file; a change has none.
        file: The file, unless it is a change.
    """

    name: str
    tree: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    file: FilePath | None = None

    @classmethod
    def read(cls, path: FilePath, room: int = LARGEST) -> Layer:
        """Read a file of at most `room` bytes.

        Raises:
            Refused: It is missing, too large, not UTF-8, not TOML, or nested too deeply.
        """
        text = read_text(path, room)
        layer = cls(str(path), _parsed(text, str(path)), text, path)
        if huge := _huge_integers(layer.tree):
            raise Refused([Problem(TOO_LARGE, number, layer.origin(number, value=True)) for number in huge[:3]])
        return layer

    @classmethod
    def change(cls, change: str) -> Layer:
        """Read `key=value` as after --set; the value is TOML, or else a string.

        Raises:
            Refused: It is no `key=value`, or endless.
        """
        name = _shortened(f"--set {change}")
        key, equals, text = _key_and_value(change)
        if not equals or not key.strip():
            raise Refused(f"{name}: expected key=value")
        path = parse_key(key, name)
        try:
            check_text(text, name)
            found = tomllib.loads(f"value = {text}")
            value: Any = found["value"] if len(found) == 1 else text
        except (tomllib.TOMLDecodeError, ValueError, RecursionError):
            value = text
        if _huge_integers([value]):
            raise Refused(Problem(TOO_LARGE, path, Origin(name)))
        for part in reversed(path):
            value = {part: value}
        return cls(name, value)

    @classmethod
    def removal(cls, key: str) -> tuple[Layer, Path]:
        """Read a key as after --unset."""
        name = _shortened(f"--unset {key}")
        return cls(name), parse_key(key, name)

    @cached_property
    def _places(self) -> dict[Path, Span]:
        return key_spans(self.text or "")

    def origin(self, path: Path, value: bool = False) -> Origin:
        """Return where a key stands, or its value; for what does not stand here, the nearest table."""
        if self.text is None:
            return Origin(self.name)
        for end in range(len(path), 0, -1):
            span = self._places.get(path[:end])
            if span is not None:
                exact = end == len(path) or path[end:] == ("use",)  # a bare name is all that its table would hold
                return Origin.within(self.name, self.text, *(span.value if value and exact else span.key))
        return Origin(self.name)


def parse_key(key: str, who: str) -> Path:
    """Return the parts of `table.key`, each bare or quoted as in TOML.

    Raises:
        Refused: It is no key.
    """
    try:
        check_text(key, who)
        tree: Any = tomllib.loads(f"{key}=0")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        tree = {}
    path: Path = ()
    while isinstance(tree, dict) and len(tree) == 1:
        ((part, tree),) = tree.items()
        path = (*path, part)
    if tree != 0 or "\n" in key:
        raise Refused(f'{who}: "{key[:SHOWN]}" is no key; write it as table.key')
    return path


def _key_and_value(change: str) -> tuple[str, str, str]:
    """Cut at the first equals sign that does not stand in a quoted key."""
    match = re.match(r"""(?:[^"'=]++|"(?:[^"\\]++|\\.)*+"|'[^']*+')*+=""", change, re.DOTALL)
    return (change[: match.end() - 1], "=", change[match.end() :]) if match else change.partition("=")


def _shortened(name: str) -> str:
    return name if len(name) <= SHOWN else name[:SHOWN] + "..."


def _parsed(text: str, name: str) -> dict[str, Any]:
    check_text(text, name)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise Refused(syntax_problem(str(error), text, name)) from None
    except RecursionError:
        raise Refused(f"{name}: more than {DEEPEST} tables or arrays stand inside each other") from None


def _huge_integers(tree: Any, path: Path = ()) -> list[Path]:
    found: list[Path] = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            found += _huge_integers(value, (*path, key))
        elif type(value) is int and value not in INTEGERS:
            found.append((*path, key))
    return found
