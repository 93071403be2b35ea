"""A run's experiment with other constraints on what is drawn from it, or drawn in another way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.layers import Layer

from .load_experiment import Loaded, check_experiment, load_experiment, open_experiment

__all__ = ["load_constrained", "load_for_sampling"]

ALLOWED = (("task", "constraints"), ("sampler",), ("sample", "tries"))
"""What a file of constraints may say: nothing that the weights depend on."""
TABLES = ("sample", "sampler")
"""What may be changed for another drawing."""


def load_for_sampling(
    experiment: Path,
    constraints: Path | None = None,
    changes: Iterable[str] = (),
    select: Sequence[str] | None = None,
) -> Loaded:
    """Read the experiment of a run, with constraints from a file and changes to how samples are drawn.

    Args:
        experiment: What was trained.
        constraints: As for `load_constrained`.
        changes: `key=value` as after --set, of the tables sample and sampler.
        select: Plugins as after -p.

    Raises:
        Refused: Everything that is wrong, each with its place.
    """
    changes = list(changes)
    keys = [tuple(change.partition("=")[0].strip().split(".")) for change in changes]
    what = "does not change how samples are drawn"
    wrong = [Problem(what, key, help="change sample.* or sampler") for key in keys if key[0] not in TABLES]
    if wrong:
        raise Refused(wrong)
    if constraints is None:
        return load_experiment(experiment, changes, select=select)
    return load_constrained(experiment, constraints, changes, select)


def load_constrained(
    experiment: Path, constraints: Path, changes: Iterable[str] = (), select: Sequence[str] | None = None
) -> Loaded:
    """Read the experiment of a run with the constraints of a file in place of its own.

    Args:
        experiment: What was trained.
        constraints: A TOML file with the table [task.constraints] as it would stand in an experiment file, and a
            [sampler] if it is to be another.
        changes: `key=value` as after --set.
        select: Plugins as after -p.

    Raises:
        Refused: Everything that is wrong, each with its place.
    """
    document, plugins = open_experiment(experiment, changes, select=select)
    layer = Layer.read(constraints)
    if wrong := list(_others(layer)):
        raise Refused(wrong)
    _drop(document, ("task", "constraints"))
    document.merge(layer)
    return check_experiment(document, plugins)


def _others(layer: Layer) -> list[Problem]:
    """Return a problem for every key that says something else, and one where there are no constraints."""
    allowed = "a file of constraints has [task.constraints], and sampler or sample.tries if these are to be others"
    keys: list[tuple[str, ...]] = []
    for key, value in layer.tree.items():
        inner = (key,) in ALLOWED or not isinstance(value, dict)
        keys += [(key,)] if inner else [(key, below) for below in value]
    wrong = [Problem("has no place here", key, layer.origin(key), allowed) for key in keys if key not in ALLOWED]
    if not wrong and ("task", "constraints") not in keys:
        wrong.append(Problem("there is no table [task.constraints]", (), layer.origin(()), allowed))
    return wrong


def _drop(document: Document, path: tuple[str, str]) -> None:
    table = document.at(path[:1])
    if isinstance(table, dict) and path[1] in table:
        document.merge(Layer("", {path[0]: {path[1]: {}}}))
        del table[path[1]]
