"""Position embeddings. Letters: B batch, L length, D width."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .options import Layout
from .timestep import sinusoids

__all__ = ["GridPositions", "LearnedPositions", "NoPositions", "SinusoidPositions"]


class NoPositions(nn.Module):
    """Zeros.

    Args:
        width: Size of a vector.
    """

    zero: Float[Tensor, "1 1 D"]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(1, 1, width), persistent=False)

    def forward(
        self, start: int, length: int, cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "1 L D"]:
        return self.zero.expand(1, length, -1)


class SinusoidPositions(nn.Module):
    """Sinusoids of the index (Vaswani et al., 2017, section 3.5) or of the distance from the first position.

    Args:
        width: Size of a vector.
        max_period: The longest period is 2 pi times this, in units.
        layout: See `sinusoids`.
        of: Name of the condition with the coordinates (`B L`); None for indices.
        unit: Unit of distances. They are computed before rounding: shifting all coordinates changes
            nothing.
    """

    anchor: Float[Tensor, "0"]

    def __init__(
        self,
        width: int,
        *,
        max_period: float,
        layout: Layout,
        of: str | None = None,
        unit: float = 1.0,
    ) -> None:
        super().__init__()
        self.width = width
        self.max_period = max_period
        self.layout = layout
        self.of = of
        self.unit = unit
        # Has the device and dtype of the model.
        self.register_buffer("anchor", torch.empty(0), persistent=False)

    def forward(
        self, start: int, length: int, cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "#B L D"]:
        """Return one vector per position from `start` on.

        Raises:
            ValueError: The condition with the coordinates is missing.
        """
        if self.of is None:
            # The same for all samples: 1 L
            stop = start + length
            values = torch.arange(start, stop, device=self.anchor.device)[None]
        elif self.of in cond:
            # Subtracted as integers: float32 would round coordinates of a chromosome to 16 bases.
            coordinates = cond[self.of]
            distances = coordinates[:, start : start + length] - coordinates[:, :1]
            values = distances / self.unit
        else:
            raise ValueError(f'position embedding requires the condition "{self.of}"')
        waves = sinusoids(
            values, self.width, max_period=self.max_period, layout=self.layout
        )
        return waves.to(self.anchor.dtype)


class GridPositions(nn.Module):
    """Sinusoids of the column, then of the row, of positions that run row by row (He et al., 2022).

    Args:
        grid: Numbers of rows and columns.
        width: Size of a vector, divisible by 4.
        max_period: The longest period is 2 pi times this.
    """

    table: Float[Tensor, "L D"]

    def __init__(self, grid: tuple[int, int], width: int, *, max_period: float) -> None:
        super().__init__()
        rows, columns = grid
        index = torch.arange(rows * columns, dtype=torch.float64)
        halves = [
            sinusoids(values, width // 2, max_period=max_period, layout="sin-cos")
            for values in (index % columns, index // columns)
        ]
        # The options determine it, so that no checkpoint holds it.
        table = torch.cat(halves, -1).float()
        self.register_buffer("table", table, persistent=False)

    def forward(
        self, start: int, length: int, cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "1 L D"]:
        return self.table[None, start : start + length]


class LearnedPositions(nn.Module):
    """A learned vector per position.

    Args:
        length: Number of positions of a sample.
        width: Size of a vector.
        std: Initial standard deviation of the vectors.
    """

    def __init__(self, length: int, width: int, *, std: float) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(
        self, start: int, length: int, cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "1 L D"]:
        """Return the vectors from `start` on.

        Raises:
            ValueError: The sample has fewer positions.
        """
        if start + length > self.table.num_embeddings:
            known = self.table.num_embeddings
            raise ValueError(
                f"positions {start}..{start + length - 1} are out of range for length {known}"
            )
        return self.table.weight[None, start : start + length]
