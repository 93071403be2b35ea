"""Facts that components need about each other before anything is built, and checks of spaces. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..config.errors import nearest
from ..flow.spaces import Condition, Data, Space, TokenSpace
from ..spec.base import Spec
from ..spec.misfit import Misfit, Path

__all__ = [
    "ANY", "FEATURES", "TOKENS", "ModelFacts", "OverSpace", "ProcessFacts", "missing_condition", "unserved_space",
]  # fmt: skip

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


@dataclass(frozen=True)
class ProcessFacts:
    """Properties of a process for losses and samplers.

    Attributes:
        name: Registered name of the process.
        space: The space the model must serve, MASK included.
        predict: Meaning of the raw output: posterior, plug-in, score; x0, eps, velocity.
        prior: The distribution at t = 1.
        timeless: Whether states are independent of time; see `TimelessProcess`.
        masked: Whether noise is added only to a mask's selection, next to values that stay clean.
    """

    name: str
    space: Space
    predict: str
    prior: Literal["mask", "uniform", "frequencies", "gaussian", "hidden"]
    timeless: bool = False
    masked: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model for samplers.

    Attributes:
        block_size: Positions per block under block-causal attention; None for full attention. A model with a block size
            takes `context=`: over tokens of a single field it is trained block by block, each after the clean ones.
        cache: Whether it supports a key-value cache (`new_cache`, and `cache=` of its forward).
        dropped_conditions: Conditions that training drops at random, which classifier-free guidance requires.
    """

    block_size: int | None = None
    cache: bool = True
    dropped_conditions: tuple[str, ...] = ()

    def trained_blocks(self, space: Space) -> int | None:
        """Return the block size of training over this space, or None if it is trained on whole samples.

        For features or several fields, block-causal attention only restricts what a position attends to.
        """
        return self.block_size if isinstance(space, TokenSpace) and len(space.fields) == 1 else None
