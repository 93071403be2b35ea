"""Rotary positions. Letters: B batch, H heads, L length, E head width."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn

__all__ = ["Rotary"]


class Rotary(nn.Module):
    """Turns queries and keys by angles that grow with their position (RoPE; Su et al., 2021, equation 34).

    The pair (x_j, x_{j+E/2}) turns by position * theta^(-2j/E): the half-split pairing of GPT-NeoX. The product of a
    query and a key then depends on the distance of their positions alone. Positions are indices, or any numbers, such
    as places along a chromosome.

    Args:
        head_width: Width of a head; even.
        theta: Sets the slowest turn.
        unit: What positions that are given are counted in.

    Raises:
        ValueError: The head width is odd.
    """

    def __init__(self, head_width: int, theta: float = 10_000.0, unit: float = 1.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"rotary positions turn pairs of numbers, and a head of width {head_width} is odd")
        self.head_width, self.theta, self.unit = head_width, theta, unit
        # Neither a buffer nor saved: casting the model to bfloat16 must leave the angles alone.
        self._turns: Float[Tensor, "2 N half"] | None = None

    def forward(
        self, x: Float[Tensor, "B H L E"], start: int = 0, positions: Shaped[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B H L E"]:
        """Turn x, whose first position is `start`, or whose positions are given, in float32 or better."""
        cos, sin = self._turns_of(x, start, positions).unbind()
        a, b = rearrange(x, "B H L (two half) -> two B H L half", two=2).unbind()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)

    def _turns_of(
        self, x: Float[Tensor, "B H L E"], start: int, positions: Shaped[Tensor, "B L"] | None
    ) -> Float[Tensor, "2 *#B1 L half"]:
        if positions is None:
            return self._between(start, start + x.shape[-2], x.device)
        exact = torch.float32 if x.device.type == "mps" else torch.float64  # which knows no other
        return self._turn(positions[:, None].to(exact) / self.unit).to(torch.float32)

    def _between(self, start: int, stop: int, device: torch.device) -> Float[Tensor, "2 L half"]:
        """Return cosine and sine of every angle; they are kept for next time, except in a graph under compilation."""
        if torch.compiler.is_compiling():
            return self._turn(torch.arange(start, stop, device=device, dtype=torch.float32))
        if self._turns is None or self._turns.shape[1] < stop or self._turns.device != device:
            with torch.no_grad(), torch.inference_mode(False):
                positions = torch.arange(1 << (stop - 1).bit_length(), dtype=torch.float64)
                self._turns = self._turn(positions).to(device, torch.float32)
        return self._turns[:, start:stop]

    def _turn(self, positions: Float[Tensor, "*B1 L"]) -> Float[Tensor, "2 *B1 L half"]:
        exponent = torch.arange(0, self.head_width, 2, device=positions.device, dtype=positions.dtype) / self.head_width
        angle = positions[..., None] * self.theta**-exponent
        return torch.stack([angle.cos(), angle.sin()])
