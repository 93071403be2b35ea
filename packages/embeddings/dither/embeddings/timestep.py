"""Sinusoids and the timestep embedding. Letters: B batch, L length, C condition width, F number of sinusoids."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.contracts.tensors import at_least_float32

from .options import Layout

__all__ = ["TimestepEmbedding", "sinusoids"]


def sinusoids(
    values: Shaped[Tensor, "*N"],
    size: int,
    *,
    max_period: float,
    layout: Layout,
    freq_shift: int = 0,
) -> Float[Tensor, "*N F"]:
    """Return cosines and sines of numbers at frequencies from 1 down to about 1 / max_period.

    Frequency i of n = size // 2 is max_period^(-i / (n - freq_shift)) (Vaswani et al., 2017;
    Peebles and Xie, 2023).

    Args:
        values: The numbers; converted to float32 at least.
        size: Number of cosines and sines; an odd size is padded with a 0.
        max_period: The longest period is 2 pi times this.
        layout: "cos-sin" and "sin-cos" concatenate the two halves, "interleaved" is sin, cos, sin,
            cos, ...
        freq_shift: 1 makes the lowest frequency exactly 1 / max_period.
    """
    values = at_least_float32(values)
    half = size // 2
    # max_period^(-i / (n - freq_shift)), i = 0 .. n - 1
    step = math.log(max_period) / max(half - freq_shift, 1)
    index = torch.arange(half, device=values.device, dtype=values.dtype)
    frequency = torch.exp(-step * index)
    # *N -> *N F/2
    angle = values[..., None] * frequency
    cos = angle.cos()
    sin = angle.sin()

    if layout == "interleaved":
        out = rearrange(torch.stack([sin, cos], -1), "... half two -> ... (half two)")
    elif layout == "cos-sin":
        out = torch.cat([cos, sin], -1)
    else:
        out = torch.cat([sin, cos], -1)
    return functional.pad(out, (0, size % 2))


class TimestepEmbedding(nn.Module):
    """Sinusoids of the noise level, then Linear, SiLU, Linear.

    Args:
        width: Width of the condition.
        frequencies: Number of cosines and sines.
        max_period: The longest period is 2 pi times this.
        layout: See `sinusoids`.
        freq_shift: 0 or 1; see `sinusoids`.
        time_scale: Factor applied to the level first.
    """

    def __init__(
        self,
        width: int,
        *,
        frequencies: int,
        max_period: float,
        layout: Layout,
        freq_shift: int,
        time_scale: float,
    ) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.time_scale = time_scale
        self.max_period = max_period
        self.layout = layout
        self.freq_shift = freq_shift
        self.enter = nn.Linear(frequencies, width)
        self.leave = nn.Linear(width, width)

    def forward(
        self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "B *L C"]:
        waves = sinusoids(
            level * self.time_scale,
            self.frequencies,
            max_period=self.max_period,
            layout=self.layout,
            freq_shift=self.freq_shift,
        )
        # The sinusoids are float32 at least; the model may be in bfloat16.
        hidden = functional.silu(self.enter(waves.to(self.enter.weight.dtype)))
        c: Tensor = self.leave(hidden)
        return c
