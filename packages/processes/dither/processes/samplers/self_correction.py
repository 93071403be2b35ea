"""Self-correction of finished samples (GIDD, von Ruette et al. 2025, algorithm 2).

A model that was trained on wrong tokens judges every token of a sample, and replaces the one that
it is surest to be wrong, again and again. Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit, Slot, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

from .options import TokenSampler

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Sampler, Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["SelfCorrect"]


class SelfCorrect(TokenSampler):
    """Sample with another sampler, then replace tokens that the model finds unlikely in their context (GIDD).

    At each iteration a replacement is drawn for every token, and the likeliest of those that differ
    are accepted. Samples no longer follow the model: they are likelier and less varied. A sample
    ends when nothing is replaced.
    """

    name = "self-correct"
    requires = "tokens"
    inner: Slot[SamplerSpec] = named("ancestral")
    """Sampler of the first draft."""
    temperature: float = Field(0.1, ge=0, le=100)
    """Divides log p of replacements: below 1 they are likelier, at 0 the likeliest."""
    iterations: int = Field(32, ge=1, le=1_000_000)
    """Maximum number of calls of the model."""
    tokens: int = Field(1, ge=1)
    """Maximum number of tokens of a sample that one iteration replaces."""
    t: float = Field(0.01, gt=0, lt=1)
    """Time that the model is given: a share of about 1 - alpha of the tokens is expected to be
    wrong."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a model that has seen wrong tokens in training."""
        yield from super().check(process, model)
        if process.prior == "mask":
            message = (
                f'sampler "{self.name}" requires a model that has seen wrong tokens, '
                f'not process "{process.name}"'
            )
            yield Misfit(
                message,
                (),
                ("process",),
                'use process "hybrid" or "uniform"',
                code="process-mismatch",
            )
        if self.inner.name == self.name:
            yield Misfit(
                f'sampler "{self.name}" cannot be its own inner sampler', ("inner",)
            )
        yield from below("inner", self.inner.check(process, model))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
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
        """Yield every state of the draft and of its corrections, the corrected sample last."""
        import torch

        from dither.registry.contracts.records import State
        from dither.registry.contracts.tensors import at_ids

        from ..tokens.categorical import draw_log
        from ..tokens.temperature import warp_options
        from ..tokens.unmasking import top_positions

        for x in inner(process, model, like):
            yield x

        t = torch.full((len(x),), self.t, device=x.device)
        free = ~like.fixed
        # Samples in which the last iteration replaced a token: B
        active = free.any(1)
        for _ in range(self.iterations):
            if not bool(active.any()):
                return

            # A replacement for every token: N V -> N
            where = free & active[:, None]
            log_p = warp_options(model(State.of(x), t, at=where).log_clean()[0], self)
            ids = draw_log(log_p)
            draft = x.masked_scatter(where, ids)

            # Of the tokens that would change, the likeliest replacements are accepted.
            log_p_draft = at_ids(log_p, ids)
            score = torch.zeros_like(x, dtype=log_p.dtype)
            score = score.masked_scatter(where, log_p_draft)
            accepted = active * self.tokens
            chosen = top_positions(score, where & (draft != x), accepted)
            x = torch.where(chosen, draft, x)
            active = active & chosen.any(1)
            yield x
