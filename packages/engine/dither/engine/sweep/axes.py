"""What a sweep varies: keys with their values, read from the document so that every value keeps its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dither.registry.document import Document
from dither.registry.layers import Layer
from dither.registry.problems import Problem, Refused, dotted
from dither.registry.spec import Options, Path
from dither.registry.validation import validate

from .tables import Sweep

__all__ = ["Axis", "leaves", "read_axes", "sweep_of", "with_sweeps"]

FIXED = {"sweep", "plugins", "extends", "name"}
"""Keys at the top of an experiment that are the same for all points."""


class _Swept(Options):
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
        for path, (_, values) in leaves(tree, ()):
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
    problems += _twice(groups, document)
    if problems:
        raise Refused(problems)
    return groups


def sweep_of(document: Document) -> Sweep:
    """Return the sweep of a document, whatever else is right or wrong with it.

    Raises:
        Refused: The table is wrong.
    """
    alone = Document({"sweep": document.at(("sweep",))}, list(document.files), document.given)
    return validate(_Swept, alone).sweep


def leaves(tree: Mapping[str, Any], place: Path, path: Path = ()) -> Iterator[tuple[Path, tuple[Path, Any]]]:
    """Yield every key in tables, in full, and with it the place where it stands and its value."""
    for key, value in tree.items():
        here: Path = (*path, *str(key).split("."))
        if isinstance(value, dict):
            yield from leaves(value, (*place, key), here)
        else:
            yield here, ((*place, key), value)


def _axes(table: Mapping[str, Any], at: Path, document: Document, problems: list[Problem]) -> list[Axis]:
    axes = []
    for path, (place, values) in leaves(table, at):
        wrong = _wrong(path, values)
        if wrong:
            problems.append(Problem(wrong, place, document.origin(place)))
        else:
            axes.append(Axis(path, place, tuple(values)))
    return axes


def _wrong(path: Path, values: Any) -> str | None:
    if not all(path):
        return f'"{dotted(path)}" is no key; write it as table.key'
    if path[0] in FIXED:
        return f"{path[0]} is the same for all points, and cannot be swept"
    if not isinstance(values, list):
        return f"expected a list of values, got {values!r}"
    return None if values else "the list of values is empty"


def _twice(groups: list[list[Axis]], document: Document) -> list[Problem]:
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
