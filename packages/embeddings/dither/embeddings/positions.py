"""What a position is. Letters: B batch, L length, D width."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .options import Layout
from .timestep import check_layout, sinusoids

__all__ = ["GenomicPositions", "LearnedPositions", "NoPositions", "SinusoidPositions"]


class NoPositions(nn.Module):
    """Nothing is said of positions.

    Args:
        width: Size of a vector.
    """

    zero: Float[Tensor, "1 1 D"]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(1, 1, width), persistent=False)

    def forward(self, start: int, length: int, cond: Mapping[str, Tensor]) -> Float[Tensor, "1 L D"]:
        """Return zeros."""
        return self.zero.expand(1, length, -1)


class SinusoidPositions(nn.Module):
    """Cosines and sines of the index (Vaswani et al., 2017, section 3.5).

    Args:
        width: Size of a vector.
        max_period: The longest period is 2 pi times this.
        layout: Their order; see `sinusoids`.

    Raises:
        ValueError: The layout is unknown.
    """

    anchor: Float[Tensor, "0"]

    def __init__(self, width: int, *, max_period: float = 10_000.0, layout: Layout = "interleaved") -> None:
        super().__init__()
        check_layout(layout)
        self.width, self.max_period, self.layout = width, max_period, layout
        self.register_buffer("anchor", torch.empty(0), persistent=False)  # tells device and dtype

    def forward(self, start: int, length: int, cond: Mapping[str, Tensor]) -> Float[Tensor, "1 L D"]:
        """Return one vector per index from `start` on."""
        index = torch.arange(start, start + length, device=self.anchor.device)
        waves = sinusoids(index, self.width, max_period=self.max_period, layout=self.layout)
        return waves[None].to(self.anchor.dtype)


class GenomicPositions(nn.Module):
    """Cosines and sines of the distance from the first position of the sample, as a condition tells where each lies.

    Distances are taken before anything is rounded: moving all of a sample along changes nothing.

    Args:
        width: Size of a vector.
        of: Name of the condition, one number per position (`B L`). What it says of padding reaches nobody.
        unit: What distances are counted in.
        max_period: The longest period is 2 pi times this, in units.
        layout: Order of the numbers; see `sinusoids`.

    Raises:
        ValueError: The layout is unknown.
    """

    anchor: Float[Tensor, "0"]

    def __init__(
        self,
        width: int,
        *,
        of: str = "centre",
        unit: float = 1000.0,
        max_period: float = 10_000.0,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        check_layout(layout)
        self.width, self.of, self.unit = width, of, unit
        self.max_period, self.layout = max_period, layout
        self.register_buffer("anchor", torch.empty(0), persistent=False)  # tells the dtype

    def forward(self, start: int, length: int, cond: Mapping[str, Tensor]) -> Float[Tensor, "B L D"]:
        """Return one vector for each position of each sample, from `start` on.

        Raises:
            ValueError: It is not told where positions lie.
        """
        if self.of not in cond:
            raise ValueError(f'positions need the condition "{self.of}", which is not told')
        places = cond[self.of]
        distance = (places[:, start : start + length] - places[:, :1]) / self.unit
        waves = sinusoids(distance, self.width, max_period=self.max_period, layout=self.layout)
        return waves.to(self.anchor.dtype)


class LearnedPositions(nn.Module):
    """A learned vector per position.

    Args:
        length: Number of positions of a sample.
        width: Size of a vector.
        std: Standard deviation of the vectors at the start.
    """

    def __init__(self, length: int, width: int, *, std: float = 0.02) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, start: int, length: int, cond: Mapping[str, Tensor]) -> Float[Tensor, "1 L D"]:
        """Return the vectors from `start` on.

        Raises:
            ValueError: The sample has fewer positions.
        """
        if start + length > self.table.num_embeddings:
            known = self.table.num_embeddings
            raise ValueError(f"positions {start}..{start + length - 1} are asked for, but a sample has {known}")
        return self.table.weight[None, start : start + length]
