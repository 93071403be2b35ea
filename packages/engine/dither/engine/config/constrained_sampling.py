"""The experiment of a run with other constraints or options of sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.layers import Layer

from .load_experiment import Loaded, check_experiment, load_experiment, open_experiment

__all__ = ["load_constrained", "load_for_sampling"]

ALLOWED = (("task", "constraints"), ("sampler",), ("sample", "tries"))
"""Keys allowed in a file of constraints: nothing that affects the weights."""
TABLES = ("sample", "sampler")
"""Tables of options that only affect sampling."""


def load_for_sampling(
    experiment: Path,
    constraints: Path | None = None,
    changes: Iterable[str] = (),
    select: Sequence[str] | None = None,
) -> Loaded:
    """Read the experiment of a run, with constraints from a file and overrides of sampling options.

    Args:
        experiment: resolved.toml of the run.
        constraints: As for `load_constrained`.
        changes: `key=value` as after --set, of the tables sample and sampler.
        select: Plugins as after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
    """
    changes = list(changes)
    keys = [tuple(change.partition("=")[0].strip().split(".")) for change in changes]
    message = "does not affect sampling"
    problems = [Problem(message, key, help="override sample.* or sampler") for key in keys if key[0] not in TABLES]
    if problems:
        raise Refused(problems)
    if constraints is None:
        return load_experiment(experiment, changes, select=select)
    return load_constrained(experiment, constraints, changes, select)


def load_constrained(
    experiment: Path, constraints: Path, changes: Iterable[str] = (), select: Sequence[str] | None = None
) -> Loaded:
    """Read the experiment of a run with the constraints of a file in place of its own.

    Args:
        experiment: resolved.toml of the run.
        constraints: A TOML file with [task.constraints] as in an experiment file, and optionally [sampler] and
            sample.tries.
        changes: `key=value` as after --set.
        select: Plugins as after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
    """
    document, plugins = open_experiment(experiment, changes, select=select)
    layer = Layer.read(constraints)
    if problems := _invalid_keys(layer):
        raise Refused(problems)
    _drop(document, ("task", "constraints"))
    document.merge(layer)
    return check_experiment(document, plugins)


def _invalid_keys(layer: Layer) -> list[Problem]:
    """Return a problem for every key that is not allowed, or for missing constraints."""
    allowed = "a file of constraints has [task.constraints], and optionally sampler and sample.tries"
    keys: list[tuple[str, ...]] = []
    for key, value in layer.tree.items():
        inner = (key,) in ALLOWED or not isinstance(value, dict)
        keys += [(key,)] if inner else [(key, below) for below in value]
    message = "not allowed in a file of constraints"
    problems = [
        Problem(message, key, layer.origin(key), allowed, code="unknown-key") for key in keys if key not in ALLOWED
    ]
    if not problems and ("task", "constraints") not in keys:
        problems.append(Problem("missing [task.constraints]", (), layer.origin(()), allowed, code="missing-key"))
    return problems


def _drop(document: Document, path: tuple[str, str]) -> None:
    table = document.at(path[:1])
    if isinstance(table, dict) and path[1] in table:
        document.merge(Layer("", {path[0]: {path[1]: {}}}))
        del table[path[1]]
