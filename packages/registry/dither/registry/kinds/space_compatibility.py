"""Which sort of data a part serves, for every kind that is built for a space."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ..config.errors import nearest
from ..flow.spaces import Condition, Data, Space
from ..spec.base import Spec
from ..spec.misfit import Misfit, Path

__all__ = ["ANY", "FEATURES", "TOKENS", "OverSpace", "missing_condition", "unserved_space"]

ANY: frozenset[Data] = frozenset({"tokens", "features"})
"""Tokens and features alike."""
TOKENS: frozenset[Data] = frozenset({"tokens"})
"""Tokens alone."""
FEATURES: frozenset[Data] = frozenset({"features"})
"""Features alone."""


def unserved_space(spec: Spec, serves: frozenset[Data], space: Space, related: Path) -> Iterable[Misfit]:
    """Yield if the space is of a sort that the part does not serve; `related` says where the space comes from."""
    if space.data not in serves:
        (wanted,) = serves
        yield Misfit(f'{spec.kind} "{spec.name}" is for {wanted}, but here a sample is {space}', related=related)


def missing_condition(told: Iterable[Condition], name: str, path: Path, *, labels: bool = False) -> Iterable[Misfit]:
    """Yield if a task tells no condition of this name, or one of the other sort.

    Args:
        told: The conditions of the space.
        name: The one that is wanted.
        path: The option that names it.
        labels: Whether it is to be one label per sample, not one number per position.
    """
    known = {condition.name: condition for condition in told}
    if name not in known:
        listed = ", ".join(f'"{other}"' for other in known) or "nothing"
        close = nearest(name, known)
        message = f'the task tells no "{name}" beside a sample; it tells {listed}'
        yield Misfit(message, path, ("task",), f'did you mean "{close}"?' if close else None)
    elif labels != (known[name].size is not None):
        sorts = ("one label per sample", "one number per position")
        is_, wanted = sorts if known[name].size is not None else sorts[::-1]
        yield Misfit(f'the task tells "{name}" as {is_}, and {wanted} is needed here', path, ("task",))


class OverSpace(Spec):
    """A part that is built for a space, and may serve one sort of data only."""

    serves: ClassVar[frozenset[Data]] = ANY
