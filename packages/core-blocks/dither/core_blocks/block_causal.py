"""Block-causal attention (BD3-LM, Arriola et al., 2025): who sees whom, and a clean sample beside the noised one.

Letters: B batch, H heads, L tokens, K keys, D width, C condition width, E head width. Extra tokens, such as a class
token, stand in the first block, so that all see them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = ["CleanAndNoised", "number_blocks"]


def number_blocks(tokens: int, extra: int, size: int, device: torch.device) -> Int[Tensor, " L"]:
    """Return the number of the block in which each token stands; the first `extra` belong to no position."""
    index = torch.arange(tokens, device=device) - extra
    return index.clamp_min(0).div(size, rounding_mode="floor")


@dataclass(frozen=True)
class CleanAndNoised:
    """Runs layers over a noised sample and the clean one beside it: [x_t | x_0], of which each half begins at 0.

    A clean block sees clean ones up to itself; a noised block sees itself and clean ones before it. The halves go
    through a layer one after the other, and keys and values of the clean one are handed on as from a cache, so that
    this is what sampling does, for all blocks at once. What a clean token makes of noised ones is never computed.

    Attributes:
        c: Condition of the noised half.
        clean_c: Condition of the clean half.
        clean_mask: What clean tokens see of clean ones.
        mask: What noised tokens see of clean ones and of noised ones.
    """

    c: Float[Tensor, "B *L C"]
    clean_c: Float[Tensor, "B *L C"]
    clean_mask: Bool[Tensor, "#B 1 L L"]
    mask: Bool[Tensor, "#B 1 L K"]

    @classmethod
    def of(
        cls,
        c: Float[Tensor, "B *L C"],
        clean_c: Float[Tensor, "B *L C"],
        block: Int[Tensor, " L"],
        real: Bool[Tensor, "B L"] | None,
    ) -> CleanAndNoised:
        """Make the masks out of the numbers of blocks; `real` is True on tokens that may be seen, None for all."""
        own, clean = block[:, None] == block, block[:, None] >= block
        mask = torch.cat([clean & ~own, own], 1)[None, None]
        clean = clean[None, None]
        if real is not None:
            clean, mask = clean & real[:, None, None], mask & torch.cat([real, real], 1)[:, None, None]
        return cls(c, clean_c, clean, mask)

    def layer(
        self,
        block: nn.Module,
        number: int,
        h: Float[Tensor, "B L D"],
        clean: Float[Tensor, "B L D"],
        requested: Bool[Tensor, "B L"] | None = None,
        clean_requested: Bool[Tensor, "B L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L D"]]:
        """Return what a layer makes of both halves; `requested` as for a block, for each half."""
        keys, told = _Keys(), {"requested": requested} if requested is not None else {}
        clean_told = {"requested": clean_requested} if clean_requested is not None else {}
        given = {"cache": keys, "layer": number}
        clean = block(clean, self.clean_c, mask=self.clean_mask, keep=True, **given, **clean_told)
        return block(h, self.c, mask=self.mask, keep=False, **given, **told), clean


class _Keys:
    """Stands in for a cache in one layer: first the clean half is joined, and sees itself, then the noised half."""

    length = extra = held = 0

    def __init__(self) -> None:
        self._clean: tuple[Tensor, Tensor] | None = None

    def join(
        self, layer: int, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L E"]
    ) -> tuple[Float[Tensor, "B H K E"], Float[Tensor, "B H K E"]]:
        """Return the keys and values that stand there."""
        if self._clean is None:
            self._clean = k, v
            return k, v
        return torch.cat([self._clean[0], k], 2), torch.cat([self._clean[1], v], 2)
