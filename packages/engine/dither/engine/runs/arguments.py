"""Checks of the arguments of `System`, as users of Python get no types from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.config.nearest_name import did_you_mean
from dither.registry.contracts.spaces import Condition

__all__ = ["Labels", "labels_by_condition", "require_choice"]

Label = float | str | Sequence[float | str] | Tensor
"""One label or number for all samples, or one for each."""

Labels = Mapping[str, Label] | Label
"""Labels and numbers by condition; without a name, of the only condition of the task."""


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices."""
    choices = list(choices)
    # An array cannot be compared with a name.
    if not isinstance(value, str) or value not in choices:
        known = "known: " + ", ".join(choices)
        fix = did_you_mean(value, choices, known)
        raise Refused(f"unknown {name} {value!r}", help=fix, code="unknown-value")


def labels_by_condition(
    labels: Labels | None, conditions: Sequence[Condition], n: int
) -> dict[str, list[float | str]]:
    """Return the labels of n samples by condition.

    Raises:
        Refused: They have no name and the task has not exactly one condition, they are not as many
            as samples, or they are neither numbers nor texts.
    """
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        names = [condition.name for condition in conditions]
        if len(names) != 1:
            known = ", ".join(names) or "none"
            message = f"labels without the name of a condition; conditions: {known}"
            raise Refused(message, help='labels={"NAME": ...}', code="misfit")
        labels = {names[0]: labels}

    by_condition = {}
    for condition, given in labels.items():
        path = ("sample", "cond", condition)
        value = _plain(given)
        of_samples = [value] * n if isinstance(value, int | float | str) else value
        if not isinstance(of_samples, Sequence) or not all(
            isinstance(label, int | float | str) for label in of_samples
        ):
            message = f"labels are numbers or texts, got {given!r}"
            raise Refused(message, path, code="wrong-type")
        if len(of_samples) != n:
            message = f"{len(of_samples)} labels for {n} samples"
            raise Refused(message, path, code="wrong-shape")
        by_condition[condition] = list(of_samples)
    return by_condition


def _plain(given: Any) -> Any:
    """Return numbers of torch and NumPy, and lists of them, as those of Python."""
    if isinstance(given, Tensor | np.ndarray | np.generic):
        return given.tolist()
    if isinstance(given, list | tuple):
        return [_plain(label) for label in given]
    return given
