"""Block diffusion (BD3-LM, Arriola et al., 2025): consecutive blocks of a sample are noised independently.

Letters: B batch, L length, N blocks of a sample, S positions of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from dither.registry.contracts.protocols import Loss, Process
from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State
from dither.registry.contracts.spaces import Space, TokenSpace
from dither.registry.kinds import ModelFacts

__all__ = ["BlockDiffusion"]


@dataclass(frozen=True)
class BlockDiffusion:
    """The division of samples of length L into N blocks of size S.

    Given the blocks before it, a block is a sample of its own. So a process receives blocks as the
    rows of a batch, and its times, estimators and bound hold for a block. A shorter last block is
    padded with invalid positions.
    """

    length: int
    size: int

    @classmethod
    def of(cls, space: Space, model: ModelFacts) -> Self | None:
        """Return the blocks that a model over this space is trained on, or None."""
        size = model.trained_blocks(space)
        if size is None or not isinstance(space, TokenSpace):
            return None
        return cls(space.length, size)

    @property
    def count(self) -> int:
        """Blocks of a sample, N."""
        return -(-self.length // self.size)

    def times(
        self, process: Process, n: int, device: Any = None
    ) -> Float[Tensor, "n L"]:
        """Draw times for n samples, one per block, stratified over all blocks and then shuffled."""
        t = process.times(n * self.count, device)
        # Shuffled: `times` returns strata in order, and neighbouring blocks would have similar
        # noise.
        return self.spread(t[torch.randperm(len(t), device=device)])

    def corrupt(
        self, process: Process, clean: Clean, t: Float[Tensor, "B *L"]
    ) -> tuple[Float[Tensor, "B L"], Noised]:
        """Noise each block; return the times that the model receives, per position, and the noised batch."""
        rows = self.clean(clean)
        times, noised = process.estimate(rows, self.block_times(t))
        return self.spread(times), self.noised(noised)

    def bound(
        self,
        process: Process,
        clean: Clean,
        measured: Measured,
        denoise: Callable[[State, Float[Tensor, " BN"]], Any],
    ) -> Measured:
        """Return the bound on -log p(x_0), summed over blocks given the blocks before them.

        `measured` is the loss per position; `denoise` predicts from state and times of blocks.
        """
        loss = Measured(self.rows(measured.values), self.rows(measured.weights))
        return self._measured(process.bound(self.clean(clean), loss, denoise))

    def draw_diffusion(
        self,
        process: Process,
        clean: Clean,
        t: Float[Tensor, "B *L"],
        loss: Loss,
        denoise: Callable[[State, Float[Tensor, " BN"]], Any],
    ) -> Measured:
        """Draw the same bound without its ends, with the noise of each block, of low variance."""
        rows = self.clean(clean)
        return self._measured(
            process.draw_diffusion(rows, self.block_times(t), loss, denoise)
        )

    def draw_ends(
        self,
        process: Process,
        clean: Clean,
        denoise: Callable[[State, Float[Tensor, " BN"]], Any],
    ) -> dict[str, Float[Tensor, "B L"]]:
        """Draw the ends of the bound of each block."""
        ends = process.draw_ends(self.clean(clean), denoise)
        return {name: self.whole(part) for name, part in ends.items()}

    def draw_whole_bound(
        self,
        process: Process,
        clean: Clean,
        t: Float[Tensor, "B *L"],
        denoise: Callable[[State, Float[Tensor, " BN"]], Any],
    ) -> Float[Tensor, "B L"] | None:
        """Draw the bound of each block with its ends, if the process can."""
        nats = process.draw_whole_bound(self.clean(clean), self.block_times(t), denoise)
        return None if nats is None else self.whole(nats)

    def _measured(self, rows: Measured) -> Measured:
        """Join the values of blocks into those of samples."""
        parts = {name: self.whole(part) for name, part in rows.parts.items()}
        return Measured(self.whole(rows.values), self.whole(rows.weights), parts=parts)

    def known_behind_gap(self, clean: Clean) -> Bool[Tensor, " B"]:
        """Return the samples with a known position in a block after one that has a free position.

        Blocks do not see later ones, so that neither samples nor bounds depend on it.
        """
        known, free = self._known_and_free(clean)
        # The sum up to a block exceeds its own value if an earlier block has free positions.
        free_before = free.cumsum(1) > free
        return (known & free_before).any(1)

    def known_beside_free(self, clean: Clean) -> Bool[Tensor, " B"]:
        """Return the samples with a block of both known and free positions."""
        known, free = self._known_and_free(clean)
        return (known & free).any(1)

    def _known_and_free(
        self, clean: Clean
    ) -> tuple[Bool[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """Return which blocks have known, and which have free positions."""
        shape = (len(clean.valid), self.count, self.size)
        known = self.rows(clean.known & clean.valid).view(shape).any(2)
        free = self.rows(~clean.fixed).view(shape).any(2)
        return known, free

    def clean(self, clean: Clean) -> Clean:
        """Split clean samples into blocks, without conditions, which a process does not use."""
        # The last block repeats its last position where the sample ends before it.
        exists = (
            torch.arange(self.count * self.size, device=clean.valid.device)
            < self.length
        )
        exists = exists.view(self.count, -1).repeat(len(clean.valid), 1)
        return Clean(
            x0=self.rows(clean.x0),
            valid=self.rows(clean.valid) & exists,
            known=self.rows(clean.known),
        )

    def noised(self, rows: Noised) -> Noised:
        """Join noised blocks into samples, with a noise level per position."""
        prior = rows.prior
        if prior is not None and prior.ndim > 2:
            prior = self.whole(prior.expand(*rows.x0.shape, -1))
        return Noised(
            x0=self.whole(rows.x0),
            state=self.state(rows.state),
            noise=Noise(self.spread(rows.noise.sigma), self.spread(rows.noise.rate)),
            target_mask=self.whole(rows.target_mask),
            valid=self.whole(rows.valid),
            fixed=self.whole(rows.fixed),
            prior=prior,
        )

    def state(self, rows: State) -> State:
        """Join the states of blocks into those of samples."""
        return State(self.whole(rows.x), self.whole(rows.masked))

    def block_times(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, " BN"]:
        """Return the time of each block: that of its first position, or of its sample."""
        if t.ndim == 1:
            t = t[:, None].expand(-1, self.length)
        return t[:, :: self.size].flatten()

    def rows(self, x: Shaped[Tensor, "B L *V"]) -> Shaped[Tensor, "BN S *V"]:
        """Split samples into blocks; a shorter last block repeats its last position."""
        if self.length % self.size:
            positions = torch.arange(self.count * self.size, device=x.device)
            x = x[:, positions.clamp_max(self.length - 1)]
        return x.reshape(-1, self.size, *x.shape[2:])

    def whole(self, rows: Shaped[Tensor, "BN S *V"]) -> Shaped[Tensor, "B L *V"]:
        """Join blocks into samples, the inverse of `rows`."""
        return rows.reshape(-1, self.count * self.size, *rows.shape[2:])[
            :, : self.length
        ]

    def spread(self, values: Shaped[Tensor, "BN *S"]) -> Shaped[Tensor, "B L"]:
        """Repeat the value of each block at its positions; values of positions are joined."""
        return self.whole(values.reshape(len(values), -1).expand(-1, self.size))
