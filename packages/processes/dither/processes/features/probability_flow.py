"""The probability flow of Gaussian diffusion and flow matching (Song et al. 2021; Lipman et al. 2022).

With factors a of x_0 and b of eps, z = x / (a + b) follows dz/du = eps - x_0 in u = b / (a + b),
for every schedule and without a singularity; flow matching has z = x. Letters: B batch, L length, M
features, K times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.contracts.protocols import GaussianProcess
from dither.registry.contracts.records import Clean, State

from ..precision import one_minus_exp, wide, wide_dtype
from ..timestep_sampling import time_of
from .signal import path_norm

__all__ = ["ProbabilityFlow", "solve"]

Velocity = Callable[[Float[Tensor, ""], Float[Tensor, "..."]], Float[Tensor, "..."]]


class ProbabilityFlow:
    """The flow of a batch under a model.

    Attributes:
        state: The state it starts from; its values that are not noisy never change.
        moves: True where values change.
    """

    def __init__(
        self,
        process: GaussianProcess,
        model: Callable[[State, Float[Tensor, " B"]], Any],
        state: State,
        like: Clean,
    ) -> None:
        self.process = process
        self.model = model
        self.state = state
        self.like = like
        self.moves = ~like.fixed if state.noisy is None else state.noisy

    def velocity(
        self, u: Float[Tensor, ""], z: Float[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return dz/du = eps - x_0, 0 at given values."""
        u = wide(u)
        x = self.process.replace(self.state, self.x(u, z), self.like)
        pred = self.model(x, self.time(u))
        difference: Tensor = pred.eps - pred.x0
        return difference.to(z.dtype).masked_fill(~self.moves, 0.0)

    def x(
        self, u: Float[Tensor, ""], z: Float[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return the values of a state in the coordinates of the process."""
        return z * self.factor(u).to(z.dtype)

    def z(
        self, u: Float[Tensor, ""], x: Float[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return the values of a state in those of the flow."""
        return x / self.factor(u).to(x.dtype)

    def factor(self, u: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return x / z: 1 / sqrt(u^2 + (1 - u)^2), or 1 on the straight line of flow matching."""
        if self.process.linear_path:
            return torch.ones_like(u)
        return 1 / (u.square() + (1 - u).square()).sqrt()

    def time(self, u: Float[Tensor, ""]) -> Float[Tensor, " B"]:
        """Return t with sqrt(1 - alpha) / sqrt(alpha) = u / (1 - u)."""
        one_minus_alpha = u.square() / (u.square() + (1 - u).square())
        t = time_of(self.process.schedule, one_minus_alpha)
        return t.to(self.like.x0.dtype).expand(len(self.like.valid))

    def even_steps(self, start: float, stop: float, steps: int) -> Float[Tensor, " K"]:
        """Return K = steps + 1 values of u from that of time `start` to that of time `stop`."""
        device = self.like.x0.device
        ends = torch.tensor([start, stop], dtype=wide_dtype(device), device=device)
        noise = self.process.schedule(ends)
        b = one_minus_exp(noise.sigma).sqrt()
        first, last = (b / path_norm(noise, noise.sigma)).unbind()
        share = torch.linspace(0, 1, steps + 1, dtype=ends.dtype, device=device)
        us: Tensor = first + (last - first) * share
        return us


def solve(
    velocity: Velocity,
    z: Float[Tensor, "..."],
    us: Float[Tensor, " K"],
    solver: str = "heun",
    tolerance: float = 1e-5,
) -> Iterator[tuple[Float[Tensor, ""], Float[Tensor, "..."]]]:
    """Yield each u after the first with the solution there; `solver` and `tolerance` are those of sampler "ode"."""
    if solver == "dopri5":
        from torchdiffeq import odeint

        path = odeint(
            velocity,
            z,
            us.to(z.dtype),
            rtol=tolerance,
            atol=tolerance,
            method="dopri5",
        )
        yield from zip(us[1:], path[1:], strict=True)
        return

    for u, v in pairwise(us):
        h = (v - u).to(z.dtype)
        first = velocity(u, z)
        if solver == "euler":
            z = z + h * first
        elif solver == "midpoint":
            z = z + h * velocity((u + v) / 2, z + h / 2 * first)
        else:
            z = z + h / 2 * (first + velocity(v, z + h * first))
        yield v, z
