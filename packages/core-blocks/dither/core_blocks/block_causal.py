"""Block-causal attention (BD3-LM, Arriola et al., 2025), and training on [x_t | x_0].

Letters: B batch, H heads, L tokens, K keys, D width, C condition width, E head width. Extra tokens,
such as a class token, belong to the first block, so that every block attends to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .attention import with_keys

__all__ = ["CleanAndNoised", "number_blocks"]


def number_blocks(
    tokens: int,
    extra: int,
    size: int,
    device: torch.device,
    first: int = 0,
) -> Int[Tensor, " L"]:
    """Return the block index of each token; the first `extra` tokens belong to the block of position `first`."""
    # Extra tokens have negative indices, which count as those of the first position.
    index = torch.arange(tokens, device=device) - extra
    return (index.clamp_min(0) + first).div(size, rounding_mode="floor")


@dataclass(frozen=True)
class CleanAndNoised:
    """Runs layers over a noised sample and its clean context, [x_t | x_0].

    A clean block attends to clean blocks up to itself; a noised block attends to itself and to
    earlier clean blocks. Both go through each layer one after the other, and the clean keys and
    values are passed on like a cache. This computes sampling with a cache for all blocks together;
    clean tokens never attend to noised ones.

    Attributes:
        c: Condition of the noised sample.
        clean_c: Condition of the clean sample.
        clean_mask: Attention mask of clean queries over clean keys.
        mask: Attention mask of noised queries over clean and noised keys.
    """

    c: Float[Tensor, "B *L C"]
    clean_c: Float[Tensor, "B *L C"]
    clean_mask: Bool[Tensor, "B 1 L L"]
    mask: Bool[Tensor, "B 1 L K"]

    @classmethod
    def of(
        cls,
        c: Float[Tensor, "B *L C"],
        clean_c: Float[Tensor, "B *L C"],
        block: Int[Tensor, " L"],
        keys: Bool[Tensor, "B #L L"],
    ) -> CleanAndNoised:
        """Build the masks from block indices, and the keys that each query may attend to."""
        # Queries in rows, keys in columns: L L
        same = block[:, None] == block
        earlier = block[:, None] > block
        # The same for all heads
        keys = keys[:, None]
        return cls(
            c=c,
            clean_c=clean_c,
            clean_mask=with_keys((earlier | same) & keys),
            mask=with_keys(torch.cat([earlier & keys, same & keys], -1)),
        )

    def layer(
        self,
        block: nn.Module,
        number: int,
        h: Float[Tensor, "B L D"],
        clean: Float[Tensor, "B L D"],
        requested: Bool[Tensor, "B L"] | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L D"]]:
        """Apply a block to the clean and then to the noised sample; return (noised, clean).

        `requested` is given to the last block, whose clean output is not used: True on the
        positions of the noised sample whose output is. `options` are further arguments.
        """
        # Together in one function, so that activation checkpointing recomputes both. The clean
        # sample goes first, for the noised one attends to its keys and values.
        keys = _CleanKeys()
        clean_options = dict(options)
        if requested is not None:
            options["requested"] = requested
            clean_options["requested"] = torch.zeros_like(requested)

        clean = block(
            clean,
            self.clean_c,
            mask=self.clean_mask,
            cache=keys,
            layer=number,
            keep=True,
            **clean_options,
        )
        h = block(
            h, self.c, mask=self.mask, cache=keys, layer=number, keep=False, **options
        )
        return h, clean


class _CleanKeys:
    """Cache of one layer: the first `join` stores clean keys and values, the second appends to them."""

    num_tokens = 0

    def __init__(self) -> None:
        self._clean: tuple[Tensor, Tensor] | None = None

    def join(
        self, layer: int, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L E"]
    ) -> tuple[Float[Tensor, "B H K E"], Float[Tensor, "B H K E"]]:
        if self._clean is None:
            self._clean = k, v
            return k, v
        clean_k, clean_v = self._clean
        return torch.cat([clean_k, k], 2), torch.cat([clean_v, v], 2)
