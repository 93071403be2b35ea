"""The exact denoiser of a known distribution of tokens, by enumeration of all samples.

Letters: B batch, L length, V vocabulary, O samples of the distribution, P positions before a block.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Context, State

__all__ = ["ExactDenoiser", "random_joint"]


def random_joint(
    ids: int, length: int, seed: int = 0, power: float = 2.0
) -> Float[Tensor, "..."]:
    """Return the probabilities of a random distribution, of `length` dimensions of `ids`; skewed by the power."""
    generator = torch.Generator().manual_seed(seed)
    shape = (ids,) * length
    u = torch.rand(shape, dtype=torch.float64, generator=generator)
    joint = u.pow(power) + 0.02
    return joint / joint.sum()


class _Cache:
    """Clean positions before a block."""

    def __init__(self) -> None:
        self.x: Int[Tensor, "B P"] | None = None

    @property
    def length(self) -> int:
        if self.x is None:
            return 0
        return self.x.shape[1]


class ExactDenoiser(nn.Module):
    """A model that returns log p(x_0 | x_t) of each position, given the clean blocks before its own.

    Known tokens count as clean. Samples are of one field.

    Args:
        process: Whose states it is given; its level is the time.
        joint: Probability of each sample, with one dimension per position.
        size: Positions of a block; None for one block.
    """

    def __init__(
        self,
        process: TokenProcess,
        joint: Float[Tensor, "..."],
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.process = process
        self.length = joint.ndim
        self.size = size or joint.ndim
        # All samples, and their probabilities: O L and O
        self.outcomes = torch.cartesian_prod(*map(torch.arange, joint.shape))
        self.outcomes = self.outcomes.view(-1, self.length)
        self.probabilities = joint.flatten().double() / joint.sum()
        self.head = nn.Identity()
        # A system takes its device from the parameters.
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(
        self,
        state: State,
        level: Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: dict[str, Tensor],
        *,
        context: Context | None = None,
        cache: Any = None,
        keep: bool = False,
    ) -> Float[Tensor, "B L V"]:
        x = state.x
        t = level
        if t.ndim == 1:
            t = level[:, None].expand(x.shape)
        noisy = state.noisy
        if noisy is None:
            noisy = torch.ones_like(x, dtype=torch.bool)
        if context is None:
            past = x[:, :0]
            if cache is not None and cache.x is not None:
                past = cache.x
            if keep:
                cache.x = torch.cat([past, x], 1)
            return self._block(past, x, t, noisy)

        blocks = []
        for start in range(0, self.length, self.size):
            stop = start + self.size
            block = self._block(
                context.state.x[:, :start],
                x[:, start:stop],
                t[:, start:stop],
                noisy[:, start:stop],
            )
            blocks.append(block)
        return torch.cat(blocks, 1)

    trunk = forward

    def new_cache(self) -> _Cache:
        return _Cache()

    def _block(
        self,
        before: Int[Tensor, "B P"],
        x: Int[Tensor, "B S"],
        t: Float[Tensor, "B S"],
        noisy: Bool[Tensor, "B S"],
    ) -> Float[Tensor, "B S V"]:
        """Return log p(x_0 | x_t) of a block, given all ids before it."""
        first = before.shape[1]
        process = self.process
        prior = process.prior_probs()
        # Known tokens and those at sigma = 0 are what they are.
        alpha = (-process.schedule(t.double()).sigma).exp()
        alpha = alpha.where(noisy, 1.0)
        positions = torch.arange(first, first + x.shape[1])
        prior_prob = prior.double().expand(self.length, -1)[positions, x]

        weight = self.probabilities.expand(len(x), -1)
        if first:
            past = self.outcomes[None, :, :first] == before[:, None]
            weight = weight * past.all(-1)
        # A token of the block keeps its id, or is drawn from the prior.
        outcomes = self.outcomes[:, first:]
        changed = (1 - alpha) * prior_prob
        for place in range(x.shape[1]):
            same = outcomes[:, place] == x[:, place, None]
            unchanged = alpha[:, place, None] * same
            weight = weight * (unchanged + changed[:, place, None])

        vocab = prior.shape[-1]
        clean = torch.zeros(*x.shape, vocab, dtype=torch.float64)
        for place in range(x.shape[1]):
            clean[:, place].index_add_(1, outcomes[:, place], weight)
        return (clean + self.weight).log()
