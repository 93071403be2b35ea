"""The kinds of part that make up a model; `kinds` offers them beside all others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import PrivateAttr

from ..flow.spaces import Condition, Space
from ..spec.base import Spec
from ..spec.misfit import Misfit
from .component_info import ModelFacts
from .costs import Cost, Matrix, Stage
from .space_compatibility import OverSpace, unserved_space

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["BlockSpec", "ConditionSpec", "EmbeddingSpec", "HeadSpec", "ModelSpec", "PositionSpec"]


class ModelSpec(OverSpace):
    """Raw output per position; an nn.Module with the methods of `parts.Denoiser`."""

    kind: ClassVar[str] = "model"
    layouts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names that weights from elsewhere may have, each set of them by a name, and whose they are."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the model cannot serve the space."""
        yield from unserved_space(self, self.serves, space, ("process",))

    def facts(self) -> ModelFacts:
        """Tell what samplers need to know."""
        return ModelFacts()

    def rename(self, layout: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of one of the `layouts` under the names of this model; names of neither stay as they are.

        Raises:
            Refused: They are of another layout.
        """
        raise NotImplementedError(f'model "{self.name}" has no layouts')

    def stages(self, space: Space) -> Sequence[Stage]:
        """What its parts take, in the order of the forward pass; by default it does not say."""
        return (Stage("model", Cost.unsaid(self.kind, self.name)),)

    def matrices(self, space: Space) -> Iterable[Matrix]:
        """Name the matrices that make up most of the stage "blocks"; by default it does not say."""
        return ()

    @abstractmethod
    def build(self, space: Space) -> nn.Module:
        """Return the model."""


class BlockSpec(Spec):
    """One layer: forward(x `B L D`, c `B C` or `B L C`, mask=, cache=, layer=, keep=) -> `B L D`."""

    kind: ClassVar[str] = "block"

    def check(self, width: int, cond: int) -> Iterable[Misfit]:
        """Yield why the block cannot have these widths."""
        return ()

    def at(self, layer: int, depth: int) -> Self:
        """Return the options of layer 0 .. depth-1; by default they are the same for all."""
        return self

    def cost(self, width: int, cond: int, length: int) -> Cost:
        """What one layer takes for `length` positions; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    def matrices(self, width: int, cond: int) -> Iterable[Matrix]:
        """Name the matrices of one layer; by default it does not say."""
        return ()

    @abstractmethod
    def build(self, width: int, cond: int) -> nn.Module:
        """Return one layer."""


class EmbeddingSpec(OverSpace):
    """Into the model: forward(state, cond, start) -> (`B extra+L D`, extra); `start` is the first position's index."""

    kind: ClassVar[str] = "embedding"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield why the space cannot be embedded."""
        yield from unserved_space(self, self.serves, space, ("process",))

    def extra(self) -> int:
        """Tokens that it puts in front of the positions, such as a class token."""
        return 0

    def cost(self, space: Space, width: int) -> Cost:
        """What it takes; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the embedding."""


class PositionSpec(OverSpace):
    """What a position is: forward(start, length, cond) -> `1 L D` or `B L D`, added to the embedded values."""

    kind: ClassVar[str] = "position"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield why positions of this space cannot be told."""
        yield from unserved_space(self, self.serves, space, ("process",))

    def cost(self, space: Space, width: int) -> Cost:
        """What it takes; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the positions."""


class ConditionSpec(Spec):
    """Noise level and conditions: forward(level `B` or `B L`, cond) -> `B C` or `B L C`."""

    kind: ClassVar[str] = "condition"
    _told: tuple[Condition, ...] = PrivateAttr(())

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the task tells beside each sample, where `over` has said so."""
        return self._told

    def with_space(self, space: Space) -> Self:
        """Return the same part, told of a space, as a model does first; `told` then lists what the task tells."""
        part = self.model_copy()
        part._told = space.conditions
        return part

    def dropped(self) -> tuple[str, ...]:
        """Names of conditions that training leaves out at times, so that guidance may do so as well."""
        return ()

    def check(self, width: int) -> Iterable[Misfit]:
        """Yield why the condition cannot have this width."""
        return ()

    def cost(self, width: int) -> Cost:
        """What it takes; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Return the embedding of the condition."""


class HeadSpec(OverSpace):
    """Out of the model: forward(h `B L D`) -> `B L M` or `B L V`, ids outside a field's vocabulary at -inf."""

    kind: ClassVar[str] = "head"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield why the head cannot serve the space."""
        yield from unserved_space(self, self.serves, space, ("process",))

    def cost(self, space: Space, width: int) -> Cost:
        """What it takes; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the head."""
