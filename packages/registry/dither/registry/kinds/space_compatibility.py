"""Checks that a component serves the space it is built for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ..config.errors import nearest
from ..flow.spaces import Condition, Data, Space
from ..spec.base import Spec
from ..spec.misfit import Misfit, Path

__all__ = ["ANY", "FEATURES", "TOKENS", "OverSpace", "missing_condition", "unserved_space"]

ANY: frozenset[Data] = frozenset({"tokens", "features"})
"""Tokens and features."""
TOKENS: frozenset[Data] = frozenset({"tokens"})
"""Tokens only."""
FEATURES: frozenset[Data] = frozenset({"features"})
"""Features only."""


def unserved_space(spec: Spec, serves: frozenset[Data], space: Space, related: Path) -> Iterable[Misfit]:
    """Yield a misfit if the component does not serve the space; `related` is the path to where the space comes from."""
    if space.data not in serves:
        (wanted,) = serves
        yield Misfit(f'{spec.kind} "{spec.name}" is for {wanted}, but a sample is {space}', related=related)


def missing_condition(
    conditions: Iterable[Condition], name: str, path: Path, *, labels: bool = False
) -> Iterable[Misfit]:
    """Yield a misfit if a task has no condition of this name, or one of the other type.

    Args:
        conditions: The conditions of the space.
        name: The required one.
        path: The option that names it.
        labels: Whether it must be one label per sample, instead of one number per position.
    """
    known = {condition.name: condition for condition in conditions}
    if name not in known:
        listed = ", ".join(f'"{other}"' for other in known) or "none"
        close = nearest(name, known)
        message = f'the task has no condition "{name}"; conditions: {listed}'
        yield Misfit(message, path, ("task",), f'did you mean "{close}"?' if close else None)
    elif labels != (known[name].size is not None):
        types = ("one label per sample", "one number per position")
        actual, required = types if known[name].size is not None else types[::-1]
        yield Misfit(f'condition "{name}" of the task is {actual}; {required} is required', path, ("task",))


class OverSpace(Spec):
    """A component that is built for a space, and may serve one type of data only."""

    serves: ClassVar[frozenset[Data]] = ANY
