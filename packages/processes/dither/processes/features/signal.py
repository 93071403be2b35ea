"""Signal and noise in a state. Letters: B batch, L length, M features."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.contracts.protocols import GaussianProcess
from dither.registry.contracts.records import Noise, over

from ..precision import one_minus_exp, wide

__all__ = ["diffusion_norm", "path_norm", "scales"]


def scales(
    noise: Noise, like: Float[Tensor, "B L M"]
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return sqrt(alpha) and sqrt(1 - alpha), exact at both ends, to broadcast over `like`."""
    sigma = wide(over(noise.sigma, like))
    a = (-sigma / 2).exp()
    b = one_minus_exp(sigma).sqrt()
    return a.to(like.dtype), b.to(like.dtype)


def path_norm(noise: Noise, like: Float[Tensor, "B L M"]) -> Float[Tensor, "..."]:
    """Return sqrt(alpha) + sqrt(1 - alpha), the ratio of x_t under diffusion to x_t on the straight line."""
    sigma = wide(over(noise.sigma, like))
    return (-sigma / 2).exp() + one_minus_exp(sigma).sqrt()


def diffusion_norm(
    process: GaussianProcess, noise: Noise, like: Float[Tensor, "B L M"]
) -> Float[Tensor, "..."]:
    """Return the ratio of x_t under diffusion to that of the process, in the precision of `like`."""
    if process.linear_path:
        return path_norm(noise, like).to(like.dtype)
    return torch.ones((), dtype=like.dtype, device=like.device)
