"""Masks: which values of a sample are masked together.

Letters: B batch, L length (regions), M features, U units that are masked as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional

from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import FeatureSpace

from ..precision import Constant

if TYPE_CHECKING:
    from ..options import Mask

__all__ = ["Masks", "columns", "pick"]


class Masks:
    """Divides a sample into units and picks a share of them.

    Args:
        space: Of the samples.
        mask: The unit: a region (position), a block of consecutive regions, a column over all
            regions, an element, the columns of a group in a region (group), or a region with a
            transcription start (tss: where the condition "tss" is not 0; other regions are never
            masked).
        group: Name of the only columns that may be masked; None for all.
        exact: Pick the rounded expected number of units of a sample, not each unit independently.
        block: Regions of a block; the first block begins at the first region.
    """

    def __init__(
        self,
        space: FeatureSpace,
        mask: Mask = "region",
        group: str | None = None,
        exact: bool = False,
        block: int = 8,
    ) -> None:
        self.mask = mask
        self.exact = exact
        self.block = block
        self.shape = (space.length, space.width)
        self.columns = Constant(columns(space, group))

    def maskable(self, clean: Clean) -> Bool[Tensor, "B L M"]:
        """True where a value may be masked: not on padding, known values, and columns of other groups.

        Raises Refused if the mask is "tss", and the batch has no such condition.
        """
        free = ~clean.fixed & self.columns.on(clean.x0.device)
        if self.mask != "tss":
            return free
        if "tss" not in clean.cond:
            conditions = ", ".join(clean.cond) or "none"
            message = f'mask "tss" requires the condition "tss"; conditions of the batch: {conditions}'
            raise Refused(message, code="missing-array")
        return free & (clean.cond["tss"] != 0)[..., None]

    def pick(
        self, among: Bool[Tensor, "B L M"], share: Float[Tensor, "..."]
    ) -> Bool[Tensor, "B L M"]:
        """Pick a share of the units of `among`: each independently, or the rounded expected number of each sample."""
        # B L M -> B U, where the draw is made, and back
        units = self.units(among)
        picked = pick(units, self.shares(share, among), self.exact)
        # A unit may have elements that are not in `among`, such as known values.
        return among & self.spread(picked)

    def units(self, elements: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        """Return the units with any True element."""
        return self.sums(elements) > 0

    def sums(self, values: Shaped[Tensor, "B L M"]) -> Shaped[Tensor, "B U"]:
        """Sum the elements of each unit."""
        if self.mask == "element":
            return rearrange(values, "b l m -> b (l m)")
        if self.mask == "column":
            return values.sum(1)
        regions = values.sum(-1)
        if self.mask != "block":
            return regions
        # The last block may be shorter; zeros do not change its sum.
        missing = -regions.shape[1] % self.block
        filled = functional.pad(regions, (0, missing))
        return rearrange(filled, "b (u s) -> b u s", s=self.block).sum(-1)

    def shares(
        self, share: Float[Tensor, "..."], like: Bool[Tensor, "B L M"]
    ) -> Float[Tensor, "B U"]:
        """Return the share of each unit from shares per sample or position; long units take the first."""
        shares = share.expand(like.shape)
        if self.mask == "element":
            return rearrange(shares, "b l m -> b (l m)")
        if self.mask == "column":
            return shares[:, 0]
        if self.mask == "block":
            return shares[:, :: self.block, 0]
        return shares[:, :, 0]

    def spread(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        """Copy the value of each unit to its elements."""
        length, width = self.shape
        if self.mask == "element":
            return rearrange(units, "b (l m) -> b l m", m=width)
        if self.mask == "column":
            return repeat(units, "b m -> b l m", l=length)
        if self.mask == "block":
            units = repeat(units, "b u -> b (u s)", s=self.block)[:, :length]
        return repeat(units, "b l -> b l m", m=width)


def pick(
    units: Bool[Tensor, "B U"], share: Float[Tensor, "B U"], exact: bool
) -> Bool[Tensor, "B U"]:
    """Pick a share of the True units: each independently, or exactly the rounded expected number of a sample."""
    u = torch.rand(units.shape, dtype=share.dtype, device=units.device)
    if not exact:
        return units & (u < share)
    # The units with the smallest numbers; others than the given ones come last.
    count = (share * units).sum(1, keepdim=True).round()
    rank = u.masked_fill(~units, 2.0).argsort(1).argsort(1)
    return units & (rank < count)


def columns(space: FeatureSpace, group: str | None) -> Bool[Tensor, " M"]:
    """Return the mask of the columns of a group, or of all; ValueError if there is no such group."""
    if group is None:
        return torch.ones(space.width, dtype=torch.bool)
    for known in space.groups:
        if known.name == group:
            column = torch.arange(space.width)
            return (column >= known.start) & (column < known.stop)
    names = ", ".join(known.name for known in space.groups)
    raise ValueError(f'unknown group "{group}"; groups: {names or "none"}')
