"""Layers of an experiment: files and command-line overrides, with the place of each value."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from ..spec.misfit import Path
from .errors import Origin, Problem, Refused
from .toml_reader import MAX_BYTES, parse_toml, read_text, syntax_problem, too_large_integers
from .toml_spans import Span, key_spans

__all__ = ["Layer"]

SHOWN = 80
"""Characters of an override that messages show."""
TOO_LARGE = "integer too large: TOML integers have at most 64 bits"
KEY_AND_EQUALS = re.compile(r"""(?:[^"'=]++|"(?:[^"\\]++|\\.)*+"|'[^']*+')*+=""", re.DOTALL)


@dataclass(frozen=True)
class Layer:
    """Values from one source.

    Attributes:
        name: The file or the override: `--set train.lr=1`, `--unset train.lr`.
        tree: The values.
        text: The text of the file; None for an override.
        file: The file; None for an override.
    """

    name: str
    tree: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    file: FilePath | None = None

    @classmethod
    def read(cls, path: FilePath, room: int = MAX_BYTES) -> Layer:
        """Read a file of at most `room` bytes.

        Raises:
            Refused: It is missing, too large, not UTF-8, invalid TOML, or nested too deeply.
        """
        text = read_text(path, room)
        try:
            layer = cls(str(path), parse_toml(text, str(path)), text, path)
        except tomllib.TOMLDecodeError as error:
            raise Refused(syntax_problem(error, text, str(path))) from None
        if wrong := too_large_integers(layer.tree):
            places = [(number, layer.origin(number, value=True)) for number in wrong[:3]]
            raise Refused([Problem(TOO_LARGE, number, place, code="out-of-range") for number, place in places])
        return layer

    @classmethod
    def override(cls, text: str) -> Layer:
        """Parse `key=value` of --set; a value that is not TOML is a string.

        Raises:
            Refused: It is not of the form `key=value`, or nested too deeply.
        """
        name = _truncated(f"--set {text}")
        match = KEY_AND_EQUALS.match(text)  # up to the first equals sign outside of quotes
        key, equals, given = (text[: match.end() - 1], "=", text[match.end() :]) if match else text.partition("=")
        if not equals or not key.strip():
            raise Refused(f"{name}: expected key=value", code="usage")
        path = parse_key(key, name)
        value: Any = given
        try:
            tree = parse_toml(f"value = {given}", name)
            value = tree["value"] if len(tree) == 1 else given
        except tomllib.TOMLDecodeError:
            pass
        if too_large_integers([value]):
            raise Refused(Problem(TOO_LARGE, path, Origin(name), code="out-of-range"))
        for part in reversed(path):
            value = {part: value}
        return cls(name, value)

    @classmethod
    def removal(cls, key: str) -> tuple[Layer, Path]:
        """Parse the key of --unset."""
        name = _truncated(f"--unset {key}")
        return cls(name), parse_key(key, name)

    @cached_property
    def _spans(self) -> dict[Path, Span]:
        return key_spans(self.text or "")

    def origin(self, path: Path, value: bool = False) -> Origin:
        """Return the place of a key or its value; for one that is not given here, of the nearest table."""
        if self.text is None:
            return Origin(self.name)
        for end in range(len(path), 0, -1):
            span = self._spans.get(path[:end])
            if span is not None:
                exact = end == len(path) or path[end:] == ("use",)  # a bare name is given without `use`
                return Origin.within(self.name, self.text, *(span.value if value and exact else span.key))
        return Origin(self.name)


def parse_key(key: str, option: str) -> Path:
    """Return the parts of `table.key`, each bare or quoted as in TOML.

    Raises:
        Refused: It is not a key.
    """
    try:
        tree: Any = parse_toml(f"{key}=0", option)
    except tomllib.TOMLDecodeError:
        tree = {}
    path: Path = ()
    while isinstance(tree, dict) and len(tree) == 1:
        ((part, tree),) = tree.items()
        path = (*path, part)
    if tree != 0 or "\n" in key:
        raise Refused(f'{option}: "{key[:SHOWN]}" is not a key; write table.key', code="usage")
    return path


def _truncated(name: str) -> str:
    return name if len(name) <= SHOWN else name[:SHOWN] + "..."
