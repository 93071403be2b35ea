"""Convolutional block for ordered positions. Letters: B batch, L length, K taps, D width, C condition width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from .mlps import make_mlp
from .modulation import Modulation
from .norms import modulate, norm_of_block
from .options import ConvolutionalBlock

if TYPE_CHECKING:
    from .kv_cache import KVCache

__all__ = ["ConvBlock", "DepthwiseConvolution"]


class ConvBlock(nn.Module):
    """A depthwise-separable convolution and an MLP with adaLN-Zero: the identity at initialisation.

    The layers are those of ConvNeXt and of the dilated networks for DNA (Avdeyev et al., 2023), the
    modulation that of DiT (Peebles and Xie, 2023).

    Args:
        width: Width of the model.
        cond: Width of the condition.
        options: Options of convolution, norms and MLP.
    """

    def __init__(self, width: int, cond: int, options: ConvolutionalBlock) -> None:
        super().__init__()
        self.norm1 = norm_of_block(width, options)
        self.depthwise = DepthwiseConvolution(
            width, options.kernel, options.dilation[0]
        )
        self.pointwise = nn.Linear(width, width, options.bias)
        self.dropout = nn.Dropout(options.dropout)
        self.norm2 = norm_of_block(width, options)
        self.mlp = make_mlp(width, options)
        self.modulation = Modulation(cond, width, 6)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L1 C"],
        *,
        mask: Bool[Tensor, "#B 1 #L L"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        keep: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Apply the block; the model never gives a cache to a block without that trait.

        Args:
            x: The sequence.
            c: One condition per sample or per position, its SiLU applied.
            mask: True where a position (second to last axis) may read another.
            cache: None.
            layer: Ignored.
            keep: Ignored.
        """
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c)

        y = self.depthwise(modulate(self.norm1(x), shift1, scale1), mask)
        y = self.dropout(self.pointwise(functional.gelu(y)))
        x = x + gate1 * y

        out: Tensor = x + gate2 * self.mlp(modulate(self.norm2(x), shift2, scale2))
        return out


class DepthwiseConvolution(nn.Module):
    """Convolution of each feature with its own filter, centred, with zeros beyond the ends.

    Args:
        width: Number of features.
        kernel: Number of taps, odd.
        dilation: Distance between neighbouring taps.
    """

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        # Uniform on +-1/sqrt(K), as in torch's Conv1d.
        bound = 1 / math.sqrt(kernel)
        self.weight = nn.Parameter(torch.empty(kernel, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, x: Float[Tensor, "B L D"], mask: Bool[Tensor, "#B 1 #L L"] | None
    ) -> Float[Tensor, "B L D"]:
        length = x.shape[1]
        if mask is not None and mask.shape[2] == 1:
            # The same positions are hidden from all others: padding.
            x = x.masked_fill(~mask[:, 0, 0, :, None], 0.0)

        reach = self.weight.shape[0] // 2 * self.dilation
        padded = functional.pad(x, (0, 0, reach, reach))

        # A sum over taps, as fast as Conv1d here, which needs two transpositions.
        y = self.bias.expand_as(x)
        for tap, weight in enumerate(self.weight):
            start = tap * self.dilation
            read = padded[:, start : start + length]
            if mask is not None and mask.shape[2] > 1:
                read = read.masked_fill(~_visible(mask, start - reach), 0.0)
            y = torch.addcmul(y, read, weight)
        return y


def _visible(mask: Bool[Tensor, "#B 1 L L"], offset: int) -> Bool[Tensor, "#B L 1"]:
    """Return whether each position may read the one at an offset; anything beyond the ends."""
    query = torch.arange(mask.shape[2], device=mask.device)
    key = (query + offset).clamp(0, mask.shape[3] - 1)
    return mask[:, 0, query, key, None]
