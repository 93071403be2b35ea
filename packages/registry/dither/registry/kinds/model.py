"""Kinds of components of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import PrivateAttr

from ..flow.spaces import Condition, Space
from ..spec.base import Spec
from ..spec.misfit import Misfit
from .compatibility import ModelFacts, OverSpace, unserved_space

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["BlockSpec", "ConditionSpec", "EmbeddingSpec", "HeadSpec", "ModelSpec", "PositionSpec"]


class ModelSpec(OverSpace):
    """A model from states to raw output per position: an nn.Module with the methods of `flow.Denoiser`."""

    kind: ClassVar[str] = "model"
    layouts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Naming schemes of external weights that `rename` understands, each with its origin."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield reasons why the model cannot serve the space."""
        yield from unserved_space(self, self.serves, space, ("process",))

    def facts(self) -> ModelFacts:
        """Return the properties that samplers need."""
        return ModelFacts()

    def rename(self, layout: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of one of the `layouts` under the names of this model; unknown names stay.

        Raises:
            Refused: They are of another layout.
        """
        raise NotImplementedError(f'model "{self.name}" has no layouts')

    @abstractmethod
    def build(self, space: Space) -> nn.Module:
        """Return the model."""


class BlockSpec(Spec):
    """One layer: forward(x `B L D`, c `B C` or `B L C`, mask=, cache=, layer=, keep=) -> `B L D`."""

    kind: ClassVar[str] = "block"

    def check(self, width: int, cond: int) -> Iterable[Misfit]:
        """Yield reasons why the block cannot have these widths."""
        return ()

    def at(self, layer: int, depth: int) -> Self:
        """Return the options of layer 0 .. depth-1; by default they are the same for all."""
        return self

    @abstractmethod
    def build(self, width: int, cond: int) -> nn.Module:
        """Return one layer."""


class EmbeddingSpec(OverSpace):
    """Embedding of a state: forward(state, cond, start) -> (`B extra+L D`, extra); `start` is the first index."""

    kind: ClassVar[str] = "embedding"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield reasons why the space cannot be embedded."""
        yield from unserved_space(self, self.serves, space, ("process",))

    def extra(self) -> int:
        """Return the number of tokens put before the positions, such as a class token."""
        return 0

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the embedding."""


class PositionSpec(OverSpace):
    """Position embedding: forward(start, length, cond) -> `1 L D` or `B L D`, added to the embedded values."""

    kind: ClassVar[str] = "position"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield reasons why positions of this space cannot be embedded."""
        yield from unserved_space(self, self.serves, space, ("process",))

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the position embedding."""


class ConditionSpec(Spec):
    """Embedding of noise level and conditions: forward(level `B` or `B L`, cond) -> `B C` or `B L C`."""

    kind: ClassVar[str] = "condition"
    _conditions: tuple[Condition, ...] = PrivateAttr(())

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of the space, after `with_space`."""
        return self._conditions

    def with_space(self, space: Space) -> Self:
        """Return a copy that knows the conditions of a space; a model calls this first."""
        part = self.model_copy()
        part._conditions = space.conditions
        return part

    def dropped(self) -> tuple[str, ...]:
        """Return the conditions that training drops at random, which guidance requires."""
        return ()

    def check(self, width: int) -> Iterable[Misfit]:
        """Yield reasons why the condition cannot have this width."""
        return ()

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Return the embedding of noise level and conditions."""


class HeadSpec(OverSpace):
    """Output layer: forward(h `B L D`) -> `B L M` or `B L V`, ids outside a field's vocabulary at -inf."""

    kind: ClassVar[str] = "head"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield reasons why the head cannot serve the space."""
        yield from unserved_space(self, self.serves, space, ("process",))

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the head."""
