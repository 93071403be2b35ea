"""Block after block from left to right (BD3-LM, Arriola et al. 2025, algorithm 2).

Finished blocks go into the KV cache of the session. Known positions stay, so that a prompt is known
positions at the start; blocks of which everything is known are not drawn. Letters: B batch, L
length, S block size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from pydantic import Field

from dither.registry import Misfit, Slot, TokenSpace, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

from .options import no_reward_of_parts

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Sampler, Session
    from dither.registry.contracts.records import Clean

__all__ = ["Blocks"]


class Blocks(SamplerSpec):
    """Block after block from left to right, each drawn by another sampler; finished blocks are cached as context.

    A model with a block_size is trained on a noised block after clean ones (BD3-LM): its output
    after cached keys and values is that of training. Blocks of which everything is known are not
    drawn.
    """

    name = "blocks"
    blockwise = True
    size: int = Field(16, ge=1)
    """Positions per block: the model's block_size. The last block may be shorter."""
    inner: Slot[SamplerSpec] = named("ancestral")
    """Sampler of a block."""
    approximate: bool = False
    """Allow a model without block-causal attention, or blocks of another size than in training."""
    context: int | None = Field(None, ge=1)
    """Positions before a block that it attends to, a multiple of size; all of a sample of the length
    of training, and in longer ones as many as in training. Earlier ones are dropped from the cache
    and reach a block only through those between."""
    stop: bool = False
    """End a sample at the first id that ends a text, and fill the rest with that id."""

    def traits(self) -> frozenset[str]:
        """Declare samples as exact as those of the inner sampler."""
        return self.inner.traits() & {"exact-distribution"}

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a single field of tokens, and a model whose cache is exact for these blocks."""
        space = process.space
        if not isinstance(space, TokenSpace) or len(space.fields) > 1:
            yield Misfit(
                f'sampler "blocks" requires a single field of tokens, not {space}',
                related=("task",),
            )
        elif self.stop and space.fields[0].end is None:
            message = (
                "stop = true requires an id that ends a text; "
                f'field "{space.fields[0].name}" has none'
            )
            yield Misfit(message, ("stop",), ("task",))
        yield from self._check_model(model)
        if self.context is not None and self.context % self.size:
            message = (
                f"context = {self.context} is not a multiple of size = {self.size}"
            )
            yield Misfit(message, ("context",), ("sampler", "size"))
        if self.inner.name == self.name:
            yield Misfit('sampler "blocks" cannot be its own inner sampler', ("inner",))
        yield from no_reward_of_parts(self.inner)
        yield from below("inner", self.inner.check(process, model))

    def _check_model(self, model: ModelFacts) -> Iterable[Misfit]:
        """Require a cache, and unless samples may be approximate one that is exact."""
        if not model.cache:
            yield Misfit(
                'sampler "blocks" requires a model with a KV cache', related=("model",)
            )
        elif model.block_size is None and not self.approximate:
            message = (
                "cached sampling is exact only for block-causal attention: "
                "set model.block_size"
            )
            yield Misfit(
                message, related=("model",), help="or set sampler.approximate = true"
            )
        # A model that reads clean positions only has learned nothing about those of its own block.
        approximate = self.approximate and model.reads_noised
        if model.block_size not in (None, self.size) and not approximate:
            message = (
                "the model was trained on blocks of "
                f"block_size = {model.block_size}, not of size = {self.size}"
            )
            yield Misfit(
                message,
                ("size",),
                ("model", "block_size"),
                f"set sampler.size = {model.block_size}",
            )

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Warn about a cache that differs from a full pass."""
        if model.block_size is None:
            message = (
                "without model.block_size cached blocks do not see later ones: "
                "samples are approximate"
            )
            yield Misfit(message, ("approximate",), ("model",))
        elif model.block_size != self.size:
            message = (
                f"the model was not trained on size = {self.size}: "
                "samples are approximate"
            )
            yield Misfit(message, ("size",), ("model", "block_size"))
        yield from below("inner", self.inner.warn(process, model))

    def beyond(self, window: int) -> Self:
        """Let blocks of longer samples attend to no greater distances than in training."""
        if "context" in self.model_fields_set:
            return self
        blocks = max(window // self.size - 1, 1)
        return self.model_copy(update={"context": blocks * self.size})

    def build(self) -> Sampler:
        return partial(self.sample, inner=self.inner.build())

    def sample(
        self,
        process: Process,
        model: Session,
        like: Clean,
        *,
        inner: Sampler,
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state of the whole sequence, the clean sample last; later blocks are as at t = 1.

        ValueError if `stop` is set, and no id ends a sample.
        """
        import torch

        end = _end_id(process) if self.stop else None
        rows, length = like.valid.shape
        whole = process.prior(like).x
        cached = 0
        yielded = None
        # Samples in which an end was drawn: B
        ended = torch.zeros(rows, dtype=torch.bool, device=like.valid.device)
        # Read once, for reading waits for the device.
        complete = like.fixed.all(0).tolist()
        for start in range(0, length, self.size):
            block = slice(start, min(start + self.size, length))
            piece = like.slice_positions(block.start, block.stop)
            done = all(complete[block])
            if end is not None:
                done = bool((piece.fixed | ended[:, None]).all())

            # Nothing to draw: known ids, and the end id in samples that have ended.
            if done:
                x = torch.where(piece.fixed, piece.x0, end or 0)
                whole = _with(whole, block, x)
                continue

            # The blocks before this one are finished, and become context of all later calls.
            if cached < start:
                self._append(model, whole, cached, start)
                cached = start
            for x in inner(process, model, _fix_ended(piece, ended, end)):
                whole = _with(whole, block, x)
                yielded = whole
                yield whole

            # The rest of a block after an end id was drawn together with it.
            if end is not None:
                x = whole[:, block]
                after = _after_end(x, piece.fixed, end)
                x = x.masked_fill(after & ~piece.fixed, end)
                whole = _with(whole, block, x)
                ended = ended | ((x == end) & ~piece.fixed).any(1)
        if yielded is not whole:
            yield whole

    def _append(
        self, model: Session, whole: Int[Tensor, "B L"], cached: int, start: int
    ) -> None:
        """Append the blocks from `cached` to `start` to the cache, which keeps `context` positions."""
        if self.context is None:
            model.append(whole[:, cached:start])
            return
        # One after the other, so that those of a prompt see no more than those that were drawn.
        for first in range(cached, start, self.size):
            stop = first + self.size
            model.append(whole[:, first:stop])
            if stop > self.context:
                model.drop(self.size)


def _end_id(process: Process) -> int:
    space = process.space
    end = None
    if isinstance(space, TokenSpace):
        end = space.fields[0].end
    if end is None:
        raise ValueError(f"stop requires an id that ends a sample: {space}")
    return end


def _with(
    whole: Int[Tensor, "B L"], block: slice, x: Int[Tensor, "B S"]
) -> Int[Tensor, "B L"]:
    import torch

    return torch.cat([whole[:, : block.start], x, whole[:, block.stop :]], 1)


def _after_end(
    x: Int[Tensor, "B S"], fixed: Bool[Tensor, "B S"], end: int
) -> Bool[Tensor, "B S"]:
    """Return the positions after the first drawn end id."""
    import torch

    # The end id itself is not after itself: the count is shifted by one.
    count = ((x == end) & ~fixed).cumsum(1)
    return torch.cat([torch.zeros_like(count[:, :1]), count[:, :-1]], 1) > 0


def _fix_ended(piece: Clean, ended: Bool[Tensor, " B"], end: int | None) -> Clean:
    """In rows that have ended, declare all free positions as known end ids."""
    if end is None:
        return piece
    rest = ended[:, None] & ~piece.fixed
    return replace(piece, x0=piece.x0.masked_fill(rest, end), known=piece.known | rest)
