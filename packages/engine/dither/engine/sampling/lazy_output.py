"""A model that is called when its word is needed, and whose head is applied where it is needed.

Letters: B batch, L length, V vocabulary, D width, N chosen positions, n some of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.flow.records import Clean, State

from ..training.diffusion import Diffusion
from .classifier_free_guidance import guided

__all__ = ["GuidedLazyOutput", "LazyOutput", "ModelCalls", "RowHead"]

HELD = 1 << 22
"""Most numbers of raw output that are made at once where fewer would do."""

CHUNK = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Numbers that the head makes at a time. Fewer would read its weights too often, more would take memory."""


@dataclass
class ModelCalls:
    """What drawing took.

    Attributes:
        rows: Rows that went through the model: samples times calls.
    """

    rows: int = 0


class RowHead:
    """A head that is one linear map, applied to single positions; in bfloat16 its weights are converted only once.

    Args:
        linear: The map.
        precision: Of the product; what comes out is float32 at least.
    """

    def __init__(self, linear: nn.Linear, precision: str) -> None:
        dtype = torch.bfloat16 if precision == "bfloat16" else linear.weight.dtype
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    @classmethod
    def of(cls, system: Diffusion) -> RowHead | None:
        """Return the head of a model where it is one linear map (`linear` of the head says so), or None."""
        linear = getattr(getattr(system.model, "head", None), "linear", None)
        return cls(linear, system.precision) if isinstance(linear, nn.Linear) else None

    def __call__(self, h: Float[Tensor, "N D"]) -> Iterator[Float[Tensor, "1 n V"]]:
        """Yield raw output, some positions at a time."""
        size = max(1, CHUNK.get(h.device.type, CHUNK["cpu"]) // len(self.weight))
        for part in torch.split(h.to(self.weight.dtype), size):
            raw = functional.linear(part, self.weight, self.bias)[None]
            yield raw.to(torch.promote_types(raw.dtype, torch.float32))


class LazyOutput:
    """The raw output of a model that was not called yet; a `RawLater`.

    Args:
        system: What denoises.
        state: What the model sees.
        t: The time.
        clean: Of it, valid and cond are looked at.
        cache: Finished positions.
        head: The head, if it can be applied to single positions.
        spent: Where calls are counted.
    """

    def __init__(
        self,
        system: Diffusion,
        state: State,
        t: Float[Tensor, "B *L"],
        clean: Clean,
        cache: Any,
        head: RowHead | None,
        spent: ModelCalls,
    ) -> None:
        self.system, self.t, self.clean, self.cache, self.head, self.spent = system, t, clean, cache, head, spent
        self.state = replace(state, x=state.x.clone())  # the caller may go on with its own
        self.by_rows = head is not None and state.x.numel() * len(head.weight) > HELD
        self._h: Tensor | None = None
        self._asked: Tensor | None = None

    def call(self) -> None:
        """Call the model now, if that was not done."""
        if not self.by_rows:
            _ = self._raw
        elif self._h is None:
            self._trunk(None)

    def whole(self) -> Float[Tensor, "B L V"]:
        """Return the output at every position."""
        if not self.by_rows:
            return self._raw
        everywhere = torch.ones_like(self.state.x, dtype=torch.bool)
        return torch.cat(list(self.rows(everywhere)), 1).view(*self.state.x.shape, -1)

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "1 n V"]]:
        """Yield the output at the chosen positions in order, some at a time."""
        if self.head is None or not self.by_rows:
            yield self._raw[where][None]
            return
        first = self._h is None
        if self._h is None or (self._asked is not None and bool((where & ~self._asked).any())):
            self._trunk(where if first else None)
        assert self._h is not None
        yield from self.head(self._h[where])

    @cached_property
    def _raw(self) -> Float[Tensor, "B L V"]:
        self.spent.rows += len(self.state.x)
        raw: Tensor = self.system.raw(self.state, self.t, self.clean, self.cache)
        return raw

    def _trunk(self, asked: Bool[Tensor, "B L"] | None) -> None:
        """Call the model up to its head; it may leave out the positions that are not asked for."""
        system, model = self.system, self.system.model
        self.spent.rows += len(self.state.x)
        state = replace(self.state, requested=asked)
        with system.autocast(state):
            self._h = model.trunk(  # type: ignore[operator]
                state, system.process.level(self.t), self.clean.valid, self.clean.cond, cache=self.cache
            )
        self._asked = asked


class GuidedLazyOutput:
    """The guided output of a model that was not called yet; a `RawLater`.

    Args:
        told: What the model says with the condition.
        plain: What it says without.
        weight: Of the difference.
    """

    def __init__(self, told: LazyOutput, plain: LazyOutput, weight: float) -> None:
        self.told, self.plain, self.weight = told, plain, weight
        self.state, self.by_rows = told.state, told.by_rows

    def call(self) -> None:
        """Call the model now, both times, if that was not done."""
        self.told.call()
        self.plain.call()

    def whole(self) -> Float[Tensor, "B L V"]:
        """Return the output at every position."""
        return guided(self.told.whole(), self.plain.whole(), self.weight)

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "1 n V"]]:
        """Yield the output at the chosen positions in order, some at a time."""
        for told, plain in zip(self.told.rows(where), self.plain.rows(where), strict=True):
            yield guided(told, plain, self.weight)
