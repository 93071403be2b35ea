"""Float64 where it matters: schedules, probabilities of one id, cumulative sums.

One number per sample or per position costs nothing in float64, and decides whether 1 - exp(-1e-4)
is accurate. Tensors with one entry per id stay in the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry.contracts.protocols import Schedule
from dither.registry.contracts.records import Noise

__all__ = [
    "Constant",
    "one_minus_exp",
    "piece_size",
    "wide",
    "wide_dtype",
    "wide_schedule",
]

CPU_PIECE = 1 << 20
"""Numbers of a piece of rows that stays in the caches of a CPU."""

GPU_PIECE = 1 << 27
"""Numbers of a piece on a GPU, where each piece costs the launch of every kernel."""


def piece_size(device: torch.device) -> int:
    """Return how many numbers of a large tensor to work on at a time."""
    return GPU_PIECE if device.type == "cuda" else CPU_PIECE


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float that a device computes with: float64, but float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return `x` in the widest float of its device."""
    return x.to(wide_dtype(x.device))


def one_minus_exp(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return 1 - exp(-x): 1 - alpha of a sigma, or the probability of a jump at a rate."""
    # expm1 keeps the digits that 1 - exp(-x) loses for small x.
    return -(-x).expm1()


class Constant:
    """A constant tensor with one copy per device, for a copy from the host makes a training step wait."""

    def __init__(self, value: Shaped[Tensor, "..."]) -> None:
        self._copies: dict[torch.device, Tensor] = {torch.device("cpu"): value.cpu()}

    def on(self, device: torch.device | str | None) -> Shaped[Tensor, "..."]:
        """Return the tensor on a device, floats as wide as it allows."""
        device = torch.device(device or "cpu")
        if device not in self._copies:
            value = self._copies[torch.device("cpu")]
            # Of the constants only floats depend on what the device computes with.
            dtype = value.dtype
            if value.is_floating_point():
                dtype = wide_dtype(device)
            # The copy outlives this call, and a tensor of inference mode cannot be trained on.
            with torch.inference_mode(False):
                self._copies[device] = value.to(device, dtype)
        return self._copies[device]


def wide_schedule(curve: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Schedule:
    """Return t -> Noise for a function t -> (sigma, rate), evaluated in float64."""

    def schedule(t: Tensor) -> Noise:
        sigma, rate = curve(wide(t))
        # The model receives t in its own precision, and so the noise.
        return Noise(sigma.to(t.dtype), rate.to(t.dtype))

    return schedule
