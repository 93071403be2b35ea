"""Rotary position embedding. Letters: B batch, H heads, L length, E head width."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Rotary"]


class Rotary(nn.Module):
    """RoPE (Su et al., 2021, equation 34): rotates queries and keys by angles proportional to their position.

    The pair (x_j, x_{j+E/2}) is rotated by position * theta^(-2j/E), the half-split pairing of
    GPT-NeoX. The product of a query and a key depends only on the distance of their positions,
    which are indices or any coordinates.

    Args:
        head_width: Width of a head; even.
        unit: Unit of coordinates; indices are not scaled.
        theta: Base of the frequencies.
        axes: 1 for a line. On a grid 2: the first half of the pairs is rotated by the column, the
            other by the row (axial RoPE), as if each half were a head; a sequence is one row.
    """

    def __init__(
        self,
        head_width: int,
        unit: float = 1.0,
        theta: float = 10_000.0,
        axes: int = 1,
    ) -> None:
        super().__init__()
        self.head_width = head_width
        self.axes = axes
        self.unit = unit
        self.theta = theta
        # Not a buffer: casting the model to bfloat16 must not round the angles.
        self._table: Float[Tensor, "2 N half"] | None = None

    def forward(
        self,
        x: Float[Tensor, "B H L E"],
        start: int = 0,
        positions: Shaped[Tensor, "B L *axes"] | None = None,
    ) -> Float[Tensor, "B H L E"]:
        """Rotate x, whose positions are `start`, `start + 1`, ... or the coordinates given, in float32 or better.

        On a grid coordinates are column and row.
        """
        if positions is None:
            cos, sin = self._indexed(start, start + x.shape[-2], x.device)
        else:
            # float32 would round coordinates of a chromosome to 16 bases; mps has no float64.
            exact = torch.float64
            if x.device.type == "mps":
                exact = torch.float32
            # B L -> B 1 L, the same for all heads
            coordinates = positions[:, None].to(exact) / self.unit
            if self.axes == 1:
                coordinates = coordinates[..., None]
            cos, sin = self._cos_sin(coordinates).to(torch.float32)

        # Each pair (x_j, x_{j+E/2}) is a point of the plane, rotated by the angle of frequency j.
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def _indexed(
        self, start: int, stop: int, device: torch.device
    ) -> Float[Tensor, "2 L half"]:
        """Return cosine and sine for indices, from a table except in a compiled graph."""
        # A compiled graph fuses the sinusoids, and must not depend on a table that grows.
        if torch.compiler.is_compiling():
            indices = torch.arange(start, stop, device=device, dtype=torch.float32)
            return self._cos_sin(self._one_row(indices))

        table = self._table
        if table is None or table.shape[1] < stop or table.device != device:
            # Made under inference_mode, the table could not be used in training.
            with torch.no_grad(), torch.inference_mode(False):
                # A power of two, so that block after block makes few tables.
                size = 1 << (stop - 1).bit_length()
                positions = torch.arange(size, dtype=torch.float64)
                table = self._cos_sin(self._one_row(positions))
                table = table.to(device, torch.float32)
            self._table = table
        return table[:, start:stop]

    def _one_row(self, indices: Float[Tensor, " L"]) -> Float[Tensor, "L axes"]:
        """Return indices as coordinates: on a grid columns of row 0."""
        return functional.pad(indices[:, None], (0, self.axes - 1))

    def _cos_sin(
        self, coordinates: Float[Tensor, "*B1 L axes"]
    ) -> Float[Tensor, "2 *B1 L half"]:
        # Frequency j is theta^(-2j/E), from 1 down to about 1 / theta.
        width = self.head_width // self.axes
        two_j = torch.arange(
            0, width, 2, device=coordinates.device, dtype=coordinates.dtype
        )
        frequency = self.theta ** -(two_j / width)
        # L axes -> L E/2
        angle = (coordinates[..., None] * frequency).flatten(-2)
        return torch.stack([angle.cos(), angle.sin()])
