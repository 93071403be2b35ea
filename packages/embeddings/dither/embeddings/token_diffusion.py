"""A small diffusion model per position, conditioned on the output of the transformer (MAR, Li et al., 2024).

The noise is a rotation: x = cos(angle) x_0 + sin(angle) eps, so that alpha is a squared cosine.
Letters: B batch, L length, M features, D width of the transformer, H width of this model, N
positions, K repeats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from einops import repeat
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from .timestep import TimestepEmbedding

__all__ = ["TokenDiffusion", "TokenDistribution"]

MAX_ANGLE = math.acos(math.sqrt(1e-3))
"""Angle of the most noise: a thousandth of the variance is signal there, so that x_0 can be
computed from eps."""


class TokenDiffusion(nn.Module):
    """An MLP with adaLN that denoises one position at a time; a `DistributionHead`.

    Args:
        features: M.
        width: D.
        hidden: H.
        depth: Blocks of the MLP.
        steps: Sampling steps.
        repeats: K, noise levels per position and training step.
        predict: "velocity" is cos(angle) eps - sin(angle) x_0.
    """

    def __init__(
        self,
        features: int,
        width: int,
        *,
        hidden: int,
        depth: int,
        steps: int,
        repeats: int,
        predict: Literal["velocity", "eps"],
    ) -> None:
        super().__init__()
        self.steps = steps
        self.repeats = repeats
        self.predict = predict
        self.angle = TimestepEmbedding(
            hidden,
            frequencies=256,
            max_period=10_000.0,
            layout="cos-sin",
            freq_shift=0,
            time_scale=1000.0,
        )
        # The condition of the MLP is the noise level plus the transformer's output.
        self.read = nn.Linear(width, hidden)
        self.enter = nn.Linear(features, hidden)
        self.blocks = nn.ModuleList(_Block(hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(hidden, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, features)
        # adaLN-Zero: the output is 0 at initialisation.
        for layer in (self.modulation, self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L M"]:
        """Return the expected values: the prediction of x_0 from pure noise."""
        zeros = h.new_zeros(*h.shape[:-1], self.out.out_features)
        x0, _ = self.x0_and_eps(zeros, largest_angle(h), h)
        return x0

    def distribution(self, h: Float[Tensor, "B L D"]) -> TokenDistribution:
        """Return the distributions of the positions."""
        return TokenDistribution(self, h)

    def denoise(
        self,
        x: Float[Tensor, "*N M"],
        angle: Float[Tensor, " *N"],
        h: Float[Tensor, "*N D"],
    ) -> Float[Tensor, "*N M"]:
        """Return the raw prediction for noised values."""
        # Condition: *N H
        level = self.angle(angle.flatten(), {})
        level = level.view(*angle.shape, self.enter.out_features)
        c = functional.silu(level + self.read(h))

        # *N M -> *N H -> *N M
        y = self.enter(x)
        for block in self.blocks:
            y = block(y, c)
        shift, scale = self.modulation(c).chunk(2, -1)
        raw: Tensor = self.out(self.norm(y) * (1 + scale) + shift)
        return raw

    def x0_and_eps(
        self,
        x: Float[Tensor, "*N M"],
        angle: Float[Tensor, " *N"],
        h: Float[Tensor, "*N D"],
    ) -> tuple[Float[Tensor, "*N M"], Float[Tensor, "*N M"]]:
        """Return the predicted x_0 and eps."""
        raw = self.denoise(x, angle, h)
        # x = a x_0 + b eps, velocity = a eps - b x_0, a^2 + b^2 = 1
        a = angle.cos()[..., None]
        b = angle.sin()[..., None]
        if self.predict == "eps":
            return (x - b * raw) / a, raw
        return a * x - b * raw, b * x + a * raw


def largest_angle(h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
    """Return the angle of pure noise at each position, in float32 or wider."""
    # bfloat16 would round it to another one, whose cosine is of another order of magnitude.
    dtype = torch.promote_types(h.dtype, torch.float32)
    return torch.full(h.shape[:-1], MAX_ANGLE, dtype=dtype, device=h.device)


@dataclass(frozen=True)
class TokenDistribution:
    """Distribution of the values of each position; a `ValueDistribution`."""

    head: TokenDiffusion
    h: Float[Tensor, "B L D"]

    def mean(
        self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return the expected masked values given the others: the prediction of x_0 from pure noise."""
        visible = x.masked_fill(masked, 0.0).to(self.h.dtype)
        x0, _ = self.head.x0_and_eps(visible, largest_angle(self.h), self.h)
        return x0

    def sample(
        self, x: Float[Tensor, "B L M"], masked: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Draw the masked values given the others (DDPM)."""
        # Only positions with a masked value pass through the MLP: B L M -> N M
        rows = masked.any(-1)
        h = self.h[rows]
        visible = x[rows]
        drawn = masked[rows]

        y = torch.where(drawn, torch.randn_like(visible), visible)
        wide = torch.promote_types(y.dtype, torch.float32)
        angles = torch.linspace(MAX_ANGLE, 0, self.head.steps + 1).tolist()
        for angle_t, angle_s in pairwise(angles):
            angle = torch.full_like(y[:, 0], angle_t, dtype=wide)
            x0, eps = self.head.x0_and_eps(y, angle, h)

            # Ancestral step: x_s = sqrt(alpha_s) x_0 + sqrt(1 - alpha_s - variance) eps + noise,
            # variance (1 - alpha_s) / (1 - alpha_t) (1 - alpha_t / alpha_s) (Ho et al., 2020).
            alpha_t = math.cos(angle_t) ** 2
            alpha_s = math.cos(angle_s) ** 2
            variance = (1 - alpha_s) * (1 - alpha_t / alpha_s) / (1 - alpha_t)
            eps_scale = math.sqrt(max(1 - alpha_s - variance, 0.0))
            new = math.sqrt(alpha_s) * x0 + eps_scale * eps
            # The last step ends in clean values.
            if angle_s:
                new = new + math.sqrt(variance) * torch.randn_like(new)

            # Visible values stay clean at every noise level.
            y = torch.where(drawn, new, visible)

        # N M -> B L M
        return x.masked_scatter(rows[..., None].expand_as(x), y.to(x.dtype))

    def squared_errors(
        self, x0: Float[Tensor, "B L M"], target_mask: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B L M"]:
        """Return the squared errors of the raw prediction, averaged over K noise levels; 0 outside the target mask."""
        # K noise levels share one pass of the transformer, whose output costs most.
        rows = target_mask.any(-1)
        repeats = self.head.repeats
        h = repeat(self.h[rows], "n d -> k n d", k=repeats)
        clean = repeat(x0[rows], "n m -> k n m", k=repeats)
        target = repeat(target_mask[rows], "n m -> k n m", k=repeats)

        # x = a x_0 + b eps at a noise level for each repeat and position: K N
        shape = clean.shape[:2]
        # As in sampling: in bfloat16 an angle times the time scale would be rounded to a multiple of 8.
        wide = torch.promote_types(self.h.dtype, torch.float32)
        angle = MAX_ANGLE * torch.rand(shape, device=x0.device, dtype=wide)
        eps = torch.randn_like(clean)
        a = angle.cos()[..., None]
        b = angle.sin()[..., None]
        noised = torch.where(target, a * clean + b * eps, clean).to(h.dtype)

        # Error of the predicted eps or velocity, averaged over the repeats: K N M -> N M
        raw = self.head.denoise(noised, angle, h)
        truth = eps
        if self.head.predict == "velocity":
            truth = a * eps - b * clean
        squares = torch.where(target, raw - truth, 0.0).square().mean(0)

        # N M -> B L M
        where = rows[..., None].expand_as(x0)
        return torch.zeros_like(x0).masked_scatter(where, squares.to(x0.dtype))


class _Block(nn.Module):
    """Residual block: norm, two linear layers with a SiLU between them, and a gate that starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.modulation = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(
        self, y: Float[Tensor, "*N H"], c: Float[Tensor, "*N H"]
    ) -> Float[Tensor, "*N H"]:
        shift, scale, gate = self.modulation(c).chunk(3, -1)
        out: Tensor = y + gate * self.mlp(self.norm(y) * (1 + scale) + shift)
        return out
