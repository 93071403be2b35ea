"""Semi-autoregressive decoding of a model with full attention (LLaDA, Nie et al. 2025, appendix B.4).

Blocks are unmasked from left to right while all later positions stay masked and visible to the
model, which sees whole samples as in training. Letters: B batch, L length, S positions of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Misfit, Slot, TokenSpace, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

from .options import ProcessSampler, no_reward_of_parts

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from dither.registry.contracts.protocols import Sampler, Session, TokenProcess
    from dither.registry.contracts.records import Clean, State

__all__ = ["SemiAutoregressive"]


class SemiAutoregressive(ProcessSampler):
    """Block after block from left to right without a block-trained model: later blocks stay masked (LLaDA).

    The model is given the time at which the share of masked tokens in the whole sample is expected.
    Sampler "blocks" is faster for a model with model.block_size, whose finished blocks it caches.
    """

    name = "semi-autoregressive"
    rev = 2
    requires = "mask"
    size: int = Field(32, ge=1)
    """Positions per block. The last block may be shorter."""
    inner: Slot[SamplerSpec] = named("ordered")
    """Sampler of a block; its steps are per block."""
    approximate: bool = False
    """While a block is decoded, keep the keys and values of all other positions as they were at its
    start: the dual cache of Fast-dLLM (Wu et al. 2025). Calls after the first of a block compute
    only its positions."""

    def traits(self) -> frozenset[str]:
        """Declare samples as exact as those of the inner sampler, unless keys and values are outdated."""
        if self.approximate:
            return frozenset()
        return self.inner.traits() & {"exact-distribution"}

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that masks tokens, and a model that sees whole samples."""
        yield from super().check(process, model)
        if model.trained_blocks(process.space) is not None:
            message = f"a model with block_size = {model.block_size} does not see later blocks"
            yield Misfit(message, (), ("model", "block_size"), 'use sampler "blocks"')
        if self.approximate and not model.cache:
            yield Misfit(
                "approximate = true requires a model with a KV cache",
                ("approximate",),
                ("model",),
            )
        if (
            self.approximate
            and isinstance(process.space, TokenSpace)
            and len(process.space.fields) > 1
        ):
            message = (
                "approximate = true requires a single field of tokens, "
                f"not {process.space}"
            )
            yield Misfit(message, ("approximate",), ("task",))
        if self.inner.blockwise or self.inner.name == self.name:
            yield Misfit(
                f'sampler "{self.name}" cannot have the inner sampler "{self.inner.name}"',
                ("inner",),
            )
        yield from no_reward_of_parts(self.inner)
        yield from below("inner", self.inner.check(process, model))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Warn about a cache that differs from a full pass."""
        if self.approximate:
            message = "keys and values are those of the start of a block: samples are approximate"
            yield Misfit(message, ("approximate",), ("model",))
        yield from below("inner", self.inner.warn(process, model))

    def build(self) -> Sampler:
        return partial(self.run, inner=self.inner.build())

    def sample(
        self,
        process: TokenProcess,
        model: Session,
        like: Clean,
        *,
        inner: Sampler,
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state of the whole sample, the clean sample last."""
        import torch

        from ..tokens.unmasking import fully_masked

        whole, free = fully_masked(process, like, self.name)
        # MASK at the positions to draw, -1 elsewhere: B L
        masks = whole.masked_fill(~free, -1)
        for start in range(0, whole.shape[1], self.size):
            block = torch.zeros_like(free)
            block[:, start : start + self.size] = True
            drawn = block & free
            if not drawn.any():
                continue

            # For the inner sampler all other positions are known, later blocks as MASK.
            template = replace(like, x0=whole, known=like.known | ~drawn)
            if self.approximate:
                template = template.slice_positions(start, start + self.size)
            session = _BlockSession(
                process, model, whole, masks, start, self.approximate
            )
            for x in inner(process, session, template):
                whole = session.join(x)
                yield whole

        # A sample whose positions are all known is yielded once.
        if not free.any():
            yield whole


class _BlockSession:
    """A session for one block, whose times follow from the share of masked tokens in the whole sample.

    States are whole, or with `cached` those of the block from `start` on.
    """

    def __init__(
        self,
        process: TokenProcess,
        model: Session,
        whole: Int[Tensor, "B L"],
        masks: Int[Tensor, "B L"],
        start: int,
        cached: bool,
    ) -> None:
        self.process = process
        self.model = model
        self.whole = whole
        self.masks = masks
        self.start = start
        self.refresh_due = cached

    def join(self, x: Int[Tensor, "B S"]) -> Int[Tensor, "B L"]:
        """Return the whole sample with a state of the block."""
        import torch

        if x.shape == self.whole.shape:
            return x
        end = self.start + x.shape[1]
        return torch.cat([self.whole[:, : self.start], x, self.whole[:, end:]], 1)

    def __call__(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        at: Bool[Tensor, "B L"] | None = None,
    ) -> Any:
        import torch

        from ..precision import wide
        from ..timestep_sampling import time_of

        # The inner sampler's time is that of the block alone; the model gets the time at which
        # training masks the share of the whole sample that is masked now.
        whole = self.join(state.x)
        free = self.masks >= 0
        masked = (free & (whole == self.masks)).sum(1)
        share = wide(masked) / free.sum(1).clamp_min(1)
        t = time_of(self.process.schedule, share).to(torch.get_default_dtype())

        # The first call of a block caches the keys and values of all positions.
        if self.refresh_due:
            self.model.refresh(whole, t, self.start)
            self.refresh_due = False
        return self.model(state, t, at)

    @property
    def previous(self) -> Float[Tensor, "B L V"] | None:
        return self.model.previous

    @previous.setter
    def previous(self, previous: Float[Tensor, "B L V"] | None) -> None:
        self.model.previous = previous

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        """Finished positions stay in the state."""

    def drop(self, count: int) -> None:
        """Finished positions stay in the state."""

    def refresh(
        self, x: Shaped[Tensor, "B L"], t: Float[Tensor, "B *L"], start: int
    ) -> None:
        self.model.refresh(x, t, start)
