"""Float64 where it matters: schedules, probabilities of one id, cumulative sums.

One number per sample or per position costs nothing in float64, and decides whether 1 - exp(-1e-4)
is accurate. Tensors with one entry per id stay in the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Shaped
from torch import Tensor

from dither.registry.contracts.protocols import Schedule
from dither.registry.contracts.records import Noise

__all__ = ["Constant", "wide", "wide_dtype", "wide_schedule"]


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float that a device computes with: float64, but float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Return `x` in the widest float of its device."""
    return x.to(wide_dtype(x.device))


class Constant:
    """A constant tensor with one copy per device, for a copy from the host makes a training step wait."""

    def __init__(self, value: Shaped[Tensor, "..."]) -> None:
        self._copies: dict[torch.device, Tensor] = {torch.device("cpu"): value.cpu()}

    def on(self, device: torch.device | str | None) -> Shaped[Tensor, "..."]:
        """Return the tensor on a device, floats as wide as it allows."""
        device = torch.device(device or "cpu")
        if device not in self._copies:
            value = self._copies[torch.device("cpu")]
            dtype = wide_dtype(device) if value.is_floating_point() else value.dtype
            with torch.inference_mode(False):  # the copy outlives this call
                self._copies[device] = value.to(device, dtype)
        return self._copies[device]


def wide_schedule(curve: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Schedule:
    """Return t -> Noise for a function t -> (sigma, rate), evaluated in float64."""

    def schedule(t: Tensor) -> Noise:
        sigma, rate = curve(wide(t))
        return Noise(sigma.to(t.dtype), rate.to(t.dtype))

    return schedule
