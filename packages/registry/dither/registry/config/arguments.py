"""Checks of the arguments of Python functions, as users of Python get no types from a file."""

from __future__ import annotations

from operator import index
from typing import Any

from .errors import Problem, Refused

__all__ = ["require_integers"]


def require_integers(**arguments: tuple[Any, int]) -> None:
    """Refuse arguments, given as (value, smallest), that are no integers or too small."""
    problems = []
    for name, (value, least) in arguments.items():
        if not _is_integer(value):
            message = f"{name}: expected an integer, got {value!r}"
            problems.append(Problem(message, code="wrong-type"))
        elif value < least:
            message = f"{name}: expected at least {least}, got {value}"
            problems.append(Problem(message, code="out-of-range"))
    if problems:
        raise Refused(problems)


def _is_integer(value: Any) -> bool:
    # True and False are integers of Python, but no counts.
    if isinstance(value, bool):
        return False
    try:
        index(value)
    except TypeError:
        return False
    return True
