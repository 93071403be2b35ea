"""The noise level as a condition. Letters: B batch, L length, C condition width, F number of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.spec.misfit import raise_misfits

from .options import Layout, misfit_frequencies

__all__ = ["TimestepEmbedding", "check_layout", "sinusoids"]


def sinusoids(
    values: Shaped[Tensor, "*N"],
    size: int,
    *,
    max_period: float = 10_000.0,
    layout: Layout = "cos-sin",
    freq_shift: int = 0,
) -> Float[Tensor, "*N F"]:
    """Return cosines and sines of numbers at frequencies from 1 down to about 1 / max_period.

    Frequency i of n = size // 2 is max_period^(-i / (n - freq_shift)) (Vaswani et al., 2017; Peebles and Xie, 2023).

    Args:
        values: The numbers; read in float32 or better.
        size: How many cosines and sines; if it is odd, a 0 follows.
        max_period: The longest period is 2 pi times this.
        layout: "cos-sin" and "sin-cos" put one half before the other, "interleaved" has sin, cos, sin, cos, ...
        freq_shift: 1 makes the slowest frequency exactly 1 / max_period.

    Raises:
        ValueError: The layout is unknown.
    """
    check_layout(layout)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    half = size // 2
    step = math.log(max_period) / max(half - freq_shift, 1)
    frequency = torch.exp(-step * torch.arange(half, device=values.device, dtype=values.dtype))
    angle = values[..., None] * frequency
    if layout == "interleaved":
        out = rearrange(torch.stack([angle.sin(), angle.cos()], -1), "... half two -> ... (half two)")
    else:
        halves = [angle.cos(), angle.sin()]
        out = torch.cat(halves if layout == "cos-sin" else halves[::-1], -1)
    return functional.pad(out, (0, size % 2))


def check_layout(layout: str) -> None:
    """Refuse an unknown layout.

    Raises:
        ValueError: The layout is unknown.
    """
    if layout not in get_args(Layout):
        raise ValueError(f'layout may be "cos-sin", "sin-cos" or "interleaved", not "{layout}"')


class TimestepEmbedding(nn.Module):
    """Sinusoids of the level, then Linear, SiLU, Linear.

    Args:
        width: Width of the condition.
        frequencies: How many cosines and sines.
        max_period: The longest period is 2 pi times this.
        layout: Their order; see `sinusoids`.
        freq_shift: 0 or 1; see `sinusoids`.
        time_scale: What the level is multiplied with first.

    Raises:
        ValueError: There are too few frequencies for the shift, or the layout is unknown.
    """

    def __init__(
        self,
        width: int,
        *,
        frequencies: int = 256,
        max_period: float = 10_000.0,
        layout: Layout = "cos-sin",
        freq_shift: int = 0,
        time_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_layout(layout)
        raise_misfits(misfit_frequencies(frequencies, freq_shift))
        self.frequencies, self.max_period, self.layout = frequencies, max_period, layout
        self.freq_shift, self.time_scale = freq_shift, time_scale
        self.enter, self.leave = nn.Linear(frequencies, width), nn.Linear(width, width)

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Return one condition per level: per sample, or per position."""
        waves = sinusoids(
            level * self.time_scale,
            self.frequencies,
            max_period=self.max_period,
            layout=self.layout,
            freq_shift=self.freq_shift,
        )
        c: Tensor = self.leave(functional.silu(self.enter(waves.to(self.enter.weight.dtype))))
        return c
