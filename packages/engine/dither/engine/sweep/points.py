"""The points of a sweep: which values each has, and what it is called."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dither.registry.document import Document
from dither.registry.layers import Layer
from dither.registry.problems import Origin, Refused, dotted
from dither.registry.spec import Path

from .axes import Axis

__all__ = ["MOST_POINTS", "Point", "expand", "make_point", "short_keys"]

MOST_POINTS = 10_000
"""Points of a sweep; more are a mistake."""
UNSAFE = re.compile(r"[^A-Za-z0-9_.+=,-]+")
LONGEST = 100
"""Characters of a name."""


@dataclass(frozen=True)
class Point:
    """One set of values.

    Attributes:
        name: What its folder is called: its number, and its values under short keys.
        values: Path -> value, and the place of the value in the document or None.
    """

    name: str
    values: tuple[tuple[Path, Any, Path | None], ...]

    @property
    def by_key(self) -> dict[str, Any]:
        """The values by their keys."""
        return {dotted(path): value for path, value, _ in self.values}

    @property
    def shown(self) -> str:
        """The values as a person writes them."""
        return ", ".join(f"{dotted(path)} = {short(value)}" for path, value, _ in self.values)

    def tree(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tables of the experiment at this point."""
        document = Document(deepcopy(dict(base)))
        for path, value, _ in self.values:
            document.lay(Layer("", _nested(path, value)))
        return document.tree

    def document(self, base: Document) -> Document:
        """Return the experiment at this point; a swept value keeps its place in the sweep as its origin."""
        rest = {key: value for key, value in base.tree.items() if key != "sweep"}
        document = Document(deepcopy(rest), list(base.files), dict(base.given))
        for path, value, place in self.values:
            origin = base.origin(place, value=True) if place is not None else None
            document.lay(_Swept(dotted(path), _nested(path, value), given=origin))
        return document


@dataclass(frozen=True)
class _Swept(Layer):
    """One swept value; wherever one looks in it, it was given in the sweep."""

    given: Origin | None = None

    def origin(self, path: Path, value: bool = False) -> Origin:
        """Return its place in the sweep."""
        return self.given or Origin(self.name)


def _nested(path: Path, value: Any) -> dict[str, Any]:
    tree = deepcopy(value)
    for part in reversed(path):
        tree = {part: tree}
    return dict(tree)


def expand(groups: Sequence[Sequence[Axis]]) -> list[Point]:
    """Return every point: the product of the groups, the last one changing fastest.

    Raises:
        Refused: There are too many.
    """
    count = math.prod(len(group[0].values) for group in groups)
    if count > MOST_POINTS:
        raise Refused(f"the sweep has {count:,} points; at most {MOST_POINTS:,} can be run from one directory")
    steps = [range(len(group[0].values)) for group in groups]
    width = len(str(count - 1))
    points = []
    for number, chosen in enumerate(itertools.product(*steps)):
        picked = zip(groups, chosen, strict=True)
        values = [(a.path, a.values[i], (*a.place, i)) for group, i in picked for a in group]
        points.append(make_point(f"{number:0{width}}", values))
    return points


def make_point(number: str, values: Iterable[tuple[Path, Any, Path | None]]) -> Point:
    """Return a point with a readable name; values of outer tables come before values inside them."""
    ordered = tuple(sorted(values, key=lambda item: len(item[0])))
    keys = short_keys([path for path, _, _ in ordered])
    words = (f"{key}={short(value)}" for key, (_, value, _) in zip(keys, ordered, strict=True))
    name = UNSAFE.sub("_", f"{number}-{','.join(words)}")
    return Point(name[:LONGEST].rstrip(".,_"), ordered)


def short_keys(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that is the end of no other."""
    short = []
    for path in paths:
        others = [other for other in paths if other != path]
        ends = (path[start:] for start in range(len(path) - 1, -1, -1))
        short.append(dotted(next((e for e in ends if all(other[-len(e) :] != e for other in others)), path)))
    return short


def short(value: Any) -> str:
    """Return a value in few characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.6g}").replace("e+", "e")
    if isinstance(value, dict):
        rest = [f"{key}={short(inner)}" for key, inner in value.items() if key != "use"]
        return "+".join([short(value["use"])] * ("use" in value) + rest)
    if isinstance(value, list):
        return "+".join(map(short, value))
    return str(value)
