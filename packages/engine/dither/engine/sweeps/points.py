"""What a sweep varies: keys with their values, read from the document so that every value keeps its place."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import Origin, Problem, Refused, dotted
from dither.registry.config.layers import Layer
from dither.registry.config.validation import validate
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Path

from ..config.sweep import Sweep

__all__ = [
    "MAX_POINTS",
    "Axis",
    "Point",
    "expand",
    "iter_keys",
    "make_point",
    "read_axes",
    "short_keys",
    "sweep_of",
    "with_sweeps",
]

FIXED = {"sweep", "plugins", "extends", "name"}
"""Keys at the top of an experiment that are the same for all points."""


class _SweepTable(Options):
    """What of an experiment a sweep is read from."""

    sweep: Sweep


@dataclass(frozen=True)
class Axis:
    """One key and the values that it takes.

    Attributes:
        path: The key in the experiment.
        place: The list in the document, for the origin of each value.
        values: What is tried.
    """

    path: Path
    place: Path
    values: tuple[Any, ...]

    @property
    def key(self) -> str:
        """The key as it is written after --set."""
        return dotted(self.path)


def with_sweeps(document: Document, sweeps: list[str]) -> None:
    """Take `key=[values]`, as after --sweep, into the grid of a document.

    Raises:
        Refused: One is no `key=value`.
    """
    for text in sweeps:
        try:
            tree = Layer.change(text).tree
        except Refused as refused:
            raise Refused(str(refused.problems[0].message).replace("--set", "--sweep")) from None
        for path, (_, values) in iter_keys(tree, ()):
            document.lay(Layer(f"--sweep {text}"[:100], {"sweep": {"grid": {dotted(path): values}}}))


def read_axes(document: Document) -> list[list[Axis]]:
    """Return the groups of axes of a document: each group is crossed with the others, and walked along in step.

    Raises:
        Refused: With every problem of the table.
    """
    sweep = sweep_of(document) if document.at(("sweep",)) is not None else Sweep()
    if not (sweep.grid or sweep.zip):
        example = "[sweep.grid] with a line such as \"train.optimizer.lr\" = [1e-4, 3e-4], or --sweep 'KEY=[VALUES]'"
        raise Refused(Problem("the file has no sweep", help=f"write {example}"))
    problems: list[Problem] = []
    groups = [[axis] for axis in _axes(sweep.grid, ("sweep", "grid"), document, problems)]
    for index, inner in enumerate(sweep.zip):
        place: Path = ("sweep", "zip", index)
        group = _axes(inner, place, document, problems)
        lengths = {axis.key: len(axis.values) for axis in group}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            problems.append(Problem(f"lists of one table are of equal length: {said}", place, document.origin(place)))
        groups += [group] if group else []
    problems += _duplicates(groups, document)
    if problems:
        raise Refused(problems)
    return groups


def sweep_of(document: Document) -> Sweep:
    """Return the sweep of a document, whatever else is right or wrong with it.

    Raises:
        Refused: The table is wrong.
    """
    alone = Document({"sweep": document.at(("sweep",))}, list(document.files), document.given)
    return validate(_SweepTable, alone).sweep


def iter_keys(tree: Mapping[str, Any], place: Path, path: Path = ()) -> Iterator[tuple[Path, tuple[Path, Any]]]:
    """Yield every key in tables, in full, and with it the place where it stands and its value."""
    for key, value in tree.items():
        here: Path = (*path, *str(key).split("."))
        if isinstance(value, dict):
            yield from iter_keys(value, (*place, key), here)
        else:
            yield here, ((*place, key), value)


def _axes(table: Mapping[str, Any], at: Path, document: Document, problems: list[Problem]) -> list[Axis]:
    axes = []
    for path, (place, values) in iter_keys(table, at):
        wrong = _axis_error(path, values)
        if wrong:
            problems.append(Problem(wrong, place, document.origin(place)))
        else:
            axes.append(Axis(path, place, tuple(values)))
    return axes


def _axis_error(path: Path, values: Any) -> str | None:
    if not all(path):
        return f'"{dotted(path)}" is no key; write it as table.key'
    if path[0] in FIXED:
        return f"{path[0]} is the same for all points, and cannot be swept"
    if not isinstance(values, list):
        return f"expected a list of values, got {values!r}"
    return None if values else "the list of values is empty"


def _duplicates(groups: list[list[Axis]], document: Document) -> list[Problem]:
    seen: dict[Path, Axis] = {}
    problems = []
    for axis in (axis for group in groups for axis in group):
        before = seen.setdefault(axis.path, axis)
        if before is not axis:
            other = document.origin(before.place)
            related = (("it is given first at", other),) if other else ()
            message = f"{axis.key} is swept twice"
            problems.append(Problem(message, axis.place, document.origin(axis.place), related=related))
    return problems


MAX_POINTS = 10_000
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
        return ", ".join(f"{dotted(path)} = {format_value(value)}" for path, value, _ in self.values)

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
            document.lay(_SweptValue(dotted(path), _nested(path, value), given=origin))
        return document


@dataclass(frozen=True)
class _SweptValue(Layer):
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
    if count > MAX_POINTS:
        raise Refused(f"the sweep has {count:,} points; at most {MAX_POINTS:,} can be run from one directory")
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
    words = (f"{key}={format_value(value)}" for key, (_, value, _) in zip(keys, ordered, strict=True))
    name = UNSAFE.sub("_", f"{number}-{','.join(words)}")
    return Point(name[:LONGEST].rstrip(".,_"), ordered)


def short_keys(paths: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that is the end of no other."""
    format_value = []
    for path in paths:
        others = [other for other in paths if other != path]
        ends = (path[start:] for start in range(len(path) - 1, -1, -1))
        format_value.append(dotted(next((e for e in ends if all(other[-len(e) :] != e for other in others)), path)))
    return format_value


def format_value(value: Any) -> str:
    """Return a value in few characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.6g}").replace("e+", "e")
    if isinstance(value, dict):
        rest = [f"{key}={format_value(inner)}" for key, inner in value.items() if key != "use"]
        return "+".join([format_value(value["use"])] * ("use" in value) + rest)
    if isinstance(value, list):
        return "+".join(map(format_value, value))
    return str(value)
