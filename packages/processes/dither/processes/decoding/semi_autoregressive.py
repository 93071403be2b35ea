"""Semi-autoregressive decoding of a model with full attention (LLaDA, Nie et al. 2025, appendix B.4).

Blocks are unmasked from left to right while all later positions stay masked and visible to the model, which sees whole
samples as in training; nothing is cached. Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit, Slot, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

from ..samplers.options import ProcessSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
    from torch import Tensor

    from dither.registry.flow.protocols import Process, Sampler, Session, TokenProcess
    from dither.registry.flow.records import Clean, State

__all__ = ["SemiAutoregressive"]


class SemiAutoregressive(ProcessSampler):
    """Block after block from left to right without a block-trained model: later blocks stay masked (LLaDA).

    The model is given the time at which the share of masked tokens in the whole sample is expected. Sampler "blocks"
    is faster for a model with model.block_size, whose finished blocks it caches.
    """

    name: ClassVar[str] = "semi-autoregressive"
    requires = "mask"
    size: int = Field(32, ge=1)
    """Positions per block. The last block may be shorter."""
    inner: Slot[SamplerSpec] = named("ordered")
    """Sampler of a block; its steps are per block."""

    def traits(self) -> frozenset[str]:
        """Declare samples as exact as those of the inner sampler."""
        return self.inner.traits() & {"exact-distribution"}

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process masks tokens and the model sees whole samples."""
        yield from super().check(process, model)
        if model.trained_blocks(process.space) is not None:
            message = f"a model with block_size = {model.block_size} does not see later blocks"
            yield Misfit(message, (), ("model", "block_size"), 'use sampler "blocks"')
        if getattr(self.inner, "blockwise", False) or self.inner.name == self.name:
            yield Misfit(f'sampler "{self.name}" cannot have the inner sampler "{self.inner.name}"', ("inner",))
        yield from below("inner", self.inner.check(process, model))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        yield from below("inner", self.inner.warn(process, model))

    def build(self) -> Sampler:
        return partial(self.run, inner=self.inner.build())

    def sample(
        self, process: TokenProcess, model: Session, like: Clean, *, inner: Sampler
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state of the whole sample, the clean sample last."""
        import torch

        from ..tokens.unmasking import fully_masked

        whole, free = fully_masked(process, like, self.name)
        session = _WholeSession(process, model, free, whole.masked_fill(~free, -1))
        for start in range(0, whole.shape[1], self.size):
            block = torch.zeros_like(free)
            block[:, start : start + self.size] = True
            if bool((block & free).any()):
                known = like.known | ~(block & free)
                for x in inner(process, session, replace(like, x0=whole, known=known)):
                    yield x
                whole = x
        if not free.any():
            yield whole


class _WholeSession:
    """A session whose times follow from the share of masked tokens in the whole sample."""

    def __init__(self, process: Process, model: Session, free: Bool[Tensor, "B L"], masks: Int[Tensor, "B L"]) -> None:
        self.process, self.model, self.free, self.masks = process, model, free, masks

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> object:
        import torch

        from ..precision import wide
        from ..timestep_sampling import time_of

        share = wide((self.free & (state.x == self.masks)).sum(1)) / self.free.sum(1).clamp_min(1)
        return self.model(state, time_of(self.process.schedule, share).to(torch.get_default_dtype()))

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        """Finished positions stay in the state."""
