"""Labels and other conditions. Letters: B batch, L length, C condition width, P points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.contracts.protocols import DropsConditions
from dither.registry.contracts.records import over
from dither.registry.contracts.tensors import at_least_float32

__all__ = [
    "ConditionSum",
    "LabelEmbedding",
    "NumberEmbedding",
    "OutlineEmbedding",
    "Unconditional",
]


class LabelEmbedding(nn.Module):
    """A vector per label and one for no label (DiT's LabelEmbedder; Peebles and Xie, 2023).

    A label is missing if its condition is absent or -1. Training drops it at random, so that the
    same model also learns the unconditional distribution (classifier-free guidance; Ho and
    Salimans, 2022).

    Args:
        condition: Name of the condition.
        size: Number of labels.
        width: Width of the condition.
        dropout: Probability with which `drop_conditions` drops a label.
        std: Initial standard deviation of the vectors.
    """

    def __init__(
        self,
        condition: str,
        size: int,
        width: int,
        *,
        dropout: float,
        std: float,
    ) -> None:
        super().__init__()
        self.condition = condition
        self.size = size
        self.dropout = dropout
        self.table = nn.Embedding(size + 1, width)
        nn.init.normal_(self.table.weight, std=std)
        if not dropout:
            # The vector for no label is never trained.
            nn.init.zeros_(self.table.weight[-1].detach())

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _drop(cond, self.condition, self.dropout)

    def forward(
        self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "B *L C"]:
        """Return the vector of each sample's label, repeated per position if the level is per position."""
        # The last row is the vector for no label: B -> B C
        label = cond.get(self.condition)
        if label is None:
            c = self.table.weight[-1].expand(len(level), -1)
        else:
            c = self.table(torch.where(label < 0, self.size, label))
        return _per_position(c, level)


def _per_position(
    c: Float[Tensor, "B C"], level: Float[Tensor, "B *L"]
) -> Float[Tensor, "B *L C"]:
    """Repeat a vector per sample at each position if the level is per position."""
    if level.ndim == 1:
        return c
    # B C -> B L C
    return c[:, None].expand(*level.shape, -1)


def _drop(
    cond: Mapping[str, Tensor], name: str, dropout: float, fill: float = -1
) -> Mapping[str, Tensor]:
    """Replace a condition by `fill` in random samples."""
    value = cond.get(name)
    if value is None or not dropout:
        return cond
    # One draw per sample, also where the condition has several numbers
    dropped = torch.rand(value.shape[:1], device=value.device) < dropout
    return {**cond, name: value.masked_fill(over(dropped, value), fill)}


class NumberEmbedding(nn.Module):
    """Two linear layers on a standardised number, and a vector for a missing one, which is NaN.

    Args:
        condition: Name of the condition.
        width: Width of the condition.
        mean: Mean of the data, stored with the weights as `std`, their standard deviation.
        dropout: Probability with which `drop_conditions` drops a number.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        condition: str,
        width: int,
        *,
        mean: float,
        std: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.condition = condition
        self.dropout = dropout
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))
        self.mlp = nn.Sequential(
            nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.missing = nn.Parameter(torch.zeros(width))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        mean = self.mean
        std = self.std
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # A model cast to bfloat16 would have a mean of 100.5 in place of 100.3; the statistics only
        # change device. Those of the meta device have no values to keep.
        if not mean.is_meta:
            self.mean = mean.to(self.mean.device)
            self.std = std.to(self.std.device)
        return self

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _drop(cond, self.condition, self.dropout, fill=math.nan)

    def forward(
        self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "B *L C"]:
        """Return a vector per sample, repeated per position if the level is per position."""
        value = cond.get(self.condition)
        if value is None:
            return _per_position(self.missing.expand(len(level), -1), level)
        known = ~value.isnan()
        # NaN in either branch would make gradients NaN.
        number = torch.where(known, at_least_float32(value), self.mean)
        standardised = ((number - self.mean) / self.std).to(self.missing.dtype)
        c = self.mlp(standardised[:, None])
        return _per_position(torch.where(known[:, None], c, self.missing), level)


class OutlineEmbedding(nn.Module):
    """Sum of a vector per wall of a polygon and one for its door (deep sets; Zaheer et al., 2017).

    Args:
        condition: Name of the condition, `B 2P`: x and y of the two ends of the door, then of the
            corners; -1 after the last corner, and everywhere for a missing outline.
        width: Width of the condition.
        dropout: Probability with which `drop_conditions` drops an outline.
    """

    def __init__(self, condition: str, width: int, *, dropout: float) -> None:
        super().__init__()
        self.condition = condition
        self.dropout = dropout
        # Two ends and whether it is the door.
        self.wall = nn.Linear(5, width)
        self.out = nn.Linear(width, width)
        self.missing = nn.Parameter(torch.zeros(width))

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return _drop(cond, self.condition, self.dropout)

    def forward(
        self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "B *L C"]:
        """Return a vector per sample, repeated per position if the level is per position."""
        outline = cond.get(self.condition)
        if outline is None:
            return _per_position(self.missing.expand(len(level), -1), level)

        # B 2P -> B P 2: the two ends of the door, then the corners
        points = at_least_float32(outline).view(len(outline), -1, 2)
        known = (points >= 0).all(-1)
        door_known = known[:, :2].all(1, keepdim=True)
        corner_known = known[:, 2:]
        points = _centred(points, known)

        # A segment per corner, and one for the door
        door = _segment(points[:, :1], points[:, 1:2], is_door=True)
        corners = points[:, 2:]
        ends = _next_corner(corners, corner_known)
        walls = _segment(corners, ends, is_door=False)
        segments = torch.cat([door, walls], 1).to(self.missing.dtype)
        used = torch.cat([door_known, corner_known], 1)

        # Sum over segments, whose order does not matter: B P C -> B C
        vectors = functional.silu(self.wall(segments)) * used[..., None]
        summed = self.out(vectors.sum(1))
        has_outline = corner_known.any(1)[:, None]
        c = torch.where(has_outline, summed, self.missing)
        return _per_position(c, level)


PIXELS = 64.0
"""Pixels per unit of the coordinates that the model gets, which are then of order 1."""


def _centred(
    points: Float[Tensor, "B P 2"], known: Bool[Tensor, "B P"]
) -> Float[Tensor, "B P 2"]:
    """Move the centre of the corners' bounding box to 0, so that translations do not matter."""
    corners = points[:, 2:]
    unknown = ~known[:, 2:, None]
    low = corners.masked_fill(unknown, float("inf")).amin(1, keepdim=True)
    high = corners.masked_fill(unknown, float("-inf")).amax(1, keepdim=True)

    # Without any corner the extremes are infinite.
    low = torch.where(low.isfinite(), low, 0.0)
    high = torch.where(high.isfinite(), high, 0.0)
    return (points - (low + high) / 2) / PIXELS


def _next_corner(
    corners: Float[Tensor, "B P 2"], real: Bool[Tensor, "B P"]
) -> Float[Tensor, "B P 2"]:
    """Return the other end of the wall that starts at each corner; the last wall closes the polygon."""
    # The last corner is real, and the one after it is not.
    last = real & ~functional.pad(real[:, 1:], (0, 1))
    return torch.where(last[..., None], corners[:, :1], corners.roll(-1, 1))


def _segment(
    start: Float[Tensor, "B P 2"], end: Float[Tensor, "B P 2"], *, is_door: bool
) -> Float[Tensor, "B P 5"]:
    flag = torch.full_like(start[..., :1], float(is_door))
    return torch.cat([start, end, flag], -1)


class ConditionSum(nn.Module):
    """Sum of several conditions, as DiT adds noise level and label.

    Args:
        parts: (level, cond) -> `B C` or `B L C`, at least one.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        for part in self.parts:
            if isinstance(part, DropsConditions):
                cond = part.drop_conditions(cond)
        return cond

    def forward(
        self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "B *L C"]:
        """Add the parts; a condition per sample is repeated per position where another one is per position."""
        vectors: list[Tensor] = [part(level, cond) for part in self.parts]
        ndim = max(c.ndim for c in vectors)
        # B C and B L C add up to B L C.
        first, *others = (c[:, None] if c.ndim < ndim else c for c in vectors)
        return sum(others, first)


class Unconditional(nn.Module):
    """Zeros for any level and conditions.

    Args:
        width: Width of the condition.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(
        self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]
    ) -> Float[Tensor, "B *L C"]:
        return level.new_zeros(*level.shape, self.width)
