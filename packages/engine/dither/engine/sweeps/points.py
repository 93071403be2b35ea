"""The points of a sweep: values from the `[sweep]` table, each of which keeps its position in the file."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from dither.registry.config.document import Document, Layer
from dither.registry.config.errors import Origin, Problem, Refused, dotted
from dither.registry.config.validation import validate
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Path

from ..config.options import Sweep

__all__ = [
    "Point",
    "add_axes",
    "differing_keys",
    "folder_name",
    "format_value",
    "iter_keys",
    "key_error",
    "make_point",
    "points_with_each_value",
    "read_groups",
    "read_points",
    "short_keys",
    "sweep_of",
]

FIXED = {"sweep", "compare", "plugins", "extends", "name"}
"""Top-level keys that cannot be swept."""
MAX_POINTS = 10_000
MAX_TRIED = 256
"""Points up to which `dither validate` checks all: about a second."""
MAX_NAME = 100
UNSAFE = re.compile(r"[^A-Za-z0-9_.+=,-]+")
"""Characters that a folder name does not keep."""


class _SweepTable(Options):
    """The part of an experiment file that defines a sweep."""

    sweep: Sweep


class _Axis(NamedTuple):
    """A key of the experiment, the path of its list in the document, and the values."""

    path: Path
    place: Path
    values: list[Any]


Groups = Sequence[Sequence[_Axis]]
"""Lists of values; those of a group advance together."""


@dataclass(frozen=True)
class Point:
    """One assignment of values: key, value, and the path of the value in the document or None.

    `name` is that of its folder: the number, then the values under short keys.
    """

    name: str
    values: tuple[tuple[Path, Any, Path | None], ...]

    @property
    def by_key(self) -> dict[str, Any]:
        return {dotted(path): value for path, value, _ in self.values}

    def __str__(self) -> str:
        return ", ".join(
            f"{key} = {format_value(value)}" for key, value in self.by_key.items()
        )

    def document(self, base: Document) -> Document:
        """Return the experiment at this point; the origin of a swept value is its position in the sweep."""
        tables = ("sweep", "compare")
        rest = {key: value for key, value in base.tree.items() if key not in tables}
        # Merging changes tables in place.
        document = Document(deepcopy(rest), list(base.files), dict(base.given))
        # One layer for each value: a message about it then shows its line in the sweep.
        for path, value, place in self.values:
            tree = deepcopy(value)
            for part in reversed(path):
                tree = {part: tree}
            origin = base.origin(place, value=True) if place is not None else None
            document.merge(_SweptValue(dotted(path), tree, given=origin))
        return document


@dataclass(frozen=True)
class _SweptValue(Layer):
    """A layer with one swept value, whose origin is the sweep."""

    given: Origin | None = None

    def origin(self, path: Path, value: bool = False) -> Origin:
        return self.given or Origin(self.name)


def sweep_of(document: Document) -> Sweep:
    """Validate the `[sweep]` table alone."""
    alone = Document(
        {"sweep": document.at(("sweep",))}, list(document.files), document.given
    )
    return validate(_SweepTable, alone).sweep


def add_axes(document: Document, texts: Iterable[str]) -> None:
    """Add `key=[values]`, as given after --sweep, to the grid of a document."""
    for text in texts:
        for path, (_, values) in iter_keys(Layer.override(text).tree, ()):
            tree = {"sweep": {"grid": {dotted(path): values}}}
            # The name of a layer is part of messages, which a long list would fill.
            document.merge(Layer(f"--sweep {text}"[:100], tree))


def read_points(document: Document) -> list[Point]:
    """Return the points of a grid and of lists that advance together, the last ones fastest.

    Raises:
        Refused: With the problems of the lists, or as there are none.
    """
    groups, problems = read_groups(document)
    if problems:
        raise Refused(problems)
    if not groups:
        example = '[sweep.grid] with a line such as "train.optimizer.lr" = [1e-4, 3e-4]'
        hint = f"add {example}, or --sweep 'KEY=[VALUES]'"
        raise Refused(Problem("the file has no sweep", help=hint, code="missing-key"))
    return _crossed(groups)


def points_with_each_value(groups: Groups) -> list[Point]:
    """Return all points if they are at most `MAX_TRIED`, else those with at most one value that is not a first one."""
    if not groups:
        return []
    sizes = [len(group[0].values) for group in groups]
    if math.prod(sizes) <= MAX_TRIED:
        return _crossed(groups)
    first = [0] * len(groups)
    points = [_point(groups, first)]
    for number, size in enumerate(sizes):
        for index in range(1, size):
            indices = list(first)
            indices[number] = index
            points.append(_point(groups, indices))
    return points


def read_groups(document: Document) -> tuple[Groups, list[Problem]]:
    """Return the valid lists of `[sweep]`, and the problems of the others.

    Keys of a group advance together; groups are crossed.
    """
    problems: list[Problem] = []
    sweep = Sweep()
    if document.at(("sweep",)) is not None:
        try:
            sweep = sweep_of(document)
        except Refused as refused:
            return [], list(refused.problems)

    axes = _axes(sweep.grid, ("sweep", "grid"), document, problems)
    groups = [[axis] for axis in axes]
    for index, table in enumerate(sweep.zip):
        place: Path = ("sweep", "zip", index)
        group = _axes(table, place, document, problems)
        axes += group
        lengths = {dotted(axis.path): len(axis.values) for axis in group}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            message = f"lists of different length: {listed}"
            problems.append(
                Problem(message, place, document.origin(place), code="misfit")
            )
        elif group:
            groups.append(group)

    problems += _repeated(axes, document)
    count = math.prod(len(group[0].values) for group in groups)
    if count > MAX_POINTS:
        message = f"the sweep has {count:,} points; at most {MAX_POINTS:,} are allowed"
        problems.append(Problem(message, code="too-large"))
    return groups, problems


def _repeated(axes: Sequence[_Axis], document: Document) -> Iterator[Problem]:
    """Yield the keys that are swept twice."""
    seen = set()
    for axis in axes:
        if axis.path in seen:
            message = f"{dotted(axis.path)} is swept twice"
            origin = document.origin(axis.place)
            yield Problem(message, axis.place, origin, code="duplicate")
        seen.add(axis.path)


def _crossed(groups: Groups) -> list[Point]:
    """Return a point for each combination of one index into the values of each group."""
    sizes = [len(group[0].values) for group in groups]
    combinations = itertools.product(*map(range, sizes))
    return [_point(groups, indices) for indices in combinations]


def _point(groups: Groups, indices: Sequence[int]) -> Point:
    number = 0
    count = 1
    values: list[tuple[Path, Any, Path | None]] = []
    for group, index in zip(groups, indices, strict=True):
        size = len(group[0].values)
        number = number * size + index
        count *= size
        values += [
            (axis.path, axis.values[index], (*axis.place, index)) for axis in group
        ]
    # Leading zeros, so that folders are in the order of points.
    digits = len(str(count - 1))
    return make_point(f"{number:0{digits}}", values)


def iter_keys(
    tree: Mapping[str, Any], place: Path, path: Path = ()
) -> Iterator[tuple[Path, tuple[Path, Any]]]:
    """Yield every key of nested tables in full, with its path in the document and its value."""
    for key, value in tree.items():
        full: Path = (*path, *str(key).split("."))
        # A table with one of these keys is a range of a search, which is a value.
        is_range = isinstance(value, dict) and not {"low", "high"}.isdisjoint(value)
        if isinstance(value, dict) and not is_range:
            yield from iter_keys(value, (*place, key), full)
        else:
            yield full, ((*place, key), value)


def key_error(path: Path) -> str | None:
    """Return why a key cannot be swept, or None."""
    if path[0] in FIXED:
        return f"{path[0]} cannot be swept: it is the same for all points"
    return None


def _axes(
    table: Mapping[str, Any],
    at: Path,
    document: Document,
    problems: list[Problem],
) -> list[_Axis]:
    axes = []
    for path, (place, values) in iter_keys(table, at):
        message = key_error(path)
        code = "invalid-value"
        if message is None and not isinstance(values, list):
            message = f"expected a list of values, got {values!r}"
            code = "wrong-type"
        elif message is None and not values:
            message = "the list of values is empty"
            code = "out-of-range"
        if message:
            problems.append(Problem(message, place, document.origin(place), code=code))
        else:
            axes.append(_Axis(path, place, values))
    return axes


def make_point(number: str, values: Iterable[tuple[Path, Any, Path | None]]) -> Point:
    """Return a point with a readable name; a table is set before keys inside it."""
    ordered = tuple(sorted(values, key=lambda item: len(item[0])))
    keys = short_keys([path for path, _, _ in ordered])
    words = []
    for key, (_, value, _) in zip(keys, ordered, strict=True):
        words.append(f"{key}={format_value(value)}")
    return Point(folder_name(number, ",".join(words)), ordered)


def folder_name(number: str, text: str) -> str:
    """Return a name of a folder that starts with a number."""
    return UNSAFE.sub("_", f"{number}-{text}")[:MAX_NAME].rstrip(".,_")


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all mappings; a missing one is None."""
    keys = dict.fromkeys(itertools.chain.from_iterable(configs))
    first, *others = configs
    return [
        key for key in keys if any(one.get(key) != first.get(key) for one in others)
    ]


def short_keys(paths: Sequence[Path]) -> list[str]:
    """Return the shortest suffix of each path that identifies it."""
    names = []
    for path in paths:
        others = [other for other in paths if other != path]
        length = 1
        while any(
            other[-length:] == path[-length:] for other in others
        ) and length < len(path):
            length += 1
        names.append(dotted(path[-length:]))
    return names


def format_value(value: Any) -> str:
    """Return a compact text for a value: `1e-4`, `true`, `cosine+final=0.5`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        # 1e-4 rather than 1e-04, as people write it.
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.6g}").replace("e+", "e")
    if isinstance(value, dict):
        words = []
        if "use" in value:
            words.append(format_value(value["use"]))
        words += [
            f"{key}={format_value(item)}" for key, item in value.items() if key != "use"
        ]
        return "+".join(words)
    if isinstance(value, list):
        return "+".join(map(format_value, value))
    return str(value)
