"""Weights that training leaves as they are."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from dither.registry.problems import Problem, Refused, nearest

__all__ = ["freeze"]


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Let the weights whose names fit a pattern stay as they are in training; return the names.

    Args:
        model: Its parameters want no gradient any more where a pattern fits.
        patterns: Names with * and ?, such as "embedding.*".

    Raises:
        Refused: A pattern fits no weight, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    problems = []
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            close = nearest(pattern, parameters)
            hint = f'did you mean "{close}"?' if close else f"weights are called {', '.join(parameters)}"
            problems.append(Problem(f'no weight is called "{pattern}"', ("train", "freeze"), help=hint))
    frozen = [name for name in parameters if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if len(frozen) == len(parameters):
        problems.append(Problem("nothing is left to train", ("train", "freeze")))
    if problems:
        raise Refused(problems)
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen
