"""Masks: which values of a sample are taken away together.

Letters: B batch, L length (regions), M features, U units that are taken as one.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional

from dither.registry.config.errors import nearest
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import FeatureSpace

from ..precision import Constant

__all__ = ["Mask", "Masks", "columns", "pick"]

Mask = Literal["region", "block", "column", "element", "group", "tss"]


class Masks:
    """Cuts what may be taken from a sample into units, and picks a share of them.

    Args:
        space: What a sample is.
        mask: What a unit is: a region (position), a block of consecutive regions, a column over all regions, an
            element, the columns of a group in a region (group), or a region at which a transcription starts (tss:
            where the condition "tss" is not 0; the others are never taken).
        group: Name of the only columns that may be taken; None for all.
        exact: Take the rounded expected number of units of a sample, not each unit by itself.
        block: Regions of a block; the first block begins at the first region.
    """

    def __init__(
        self, space: FeatureSpace, mask: Mask = "region", group: str | None = None, exact: bool = False, block: int = 8
    ) -> None:
        if mask not in get_args(Mask):
            close = nearest(mask, get_args(Mask))
            hint = f'; did you mean "{close}"?' if close else ""
            raise ValueError(f"mask must be one of {', '.join(get_args(Mask))}, not {mask!r}{hint}")
        if (mask == "group") != (group is not None) and mask in ("group", "region"):
            raise ValueError('a group is to be named with mask = "group", and with mask = "region" none')
        if block < 1:
            raise ValueError(f"a block needs at least 1 region, not {block}")
        self.mask, self.exact, self.block, self.shape = mask, exact, block, (space.length, space.width)
        self._columns = Constant(columns(space, group))

    def maskable(self, clean: Clean) -> Bool[Tensor, "B L M"]:
        """True where a value may be taken: not on padding, known values, and columns of other groups.

        Raises:
            ValueError: The mask asks where transcription starts, and the batch does not tell.
        """
        free = ~clean.fixed & self._columns.on(clean.x0.device)
        if self.mask != "tss":
            return free
        if "tss" not in clean.cond:
            told = ", ".join(clean.cond) or "nothing"
            raise ValueError(f'mask "tss" needs the condition "tss", and the batch tells: {told}')
        return free & (clean.cond["tss"] != 0)[..., None]

    def pick(self, among: Bool[Tensor, "B L M"], share: Float[Tensor, "..."]) -> Bool[Tensor, "B L M"]:
        """Pick a share of the units of `among`: each by itself, or the rounded expected number of each sample."""
        return among & self.spread(pick(self.units(among), self.shares(share, among), self.exact))

    def units(self, elements: Bool[Tensor, "B L M"]) -> Bool[Tensor, "B U"]:
        """True for the units of which any element is True."""
        return self.sums(elements) > 0

    def sums(self, values: Shaped[Tensor, "B L M"]) -> Shaped[Tensor, "B U"]:
        """Add up the elements of each unit."""
        if self.mask == "element":
            return rearrange(values, "b l m -> b (l m)")
        if self.mask == "column":
            return values.sum(1)
        regions = values.sum(-1)
        if self.mask != "block":
            return regions
        filled = functional.pad(regions, (0, -regions.shape[1] % self.block))
        return rearrange(filled, "b (u s) -> b u s", s=self.block).sum(-1)

    def shares(self, share: Float[Tensor, "..."], like: Bool[Tensor, "B L M"]) -> Float[Tensor, "B U"]:
        """From a share per sample or per position to one per unit; a unit of many positions goes by its first."""
        each = share.expand(like.shape)
        if self.mask == "element":
            return rearrange(each, "b l m -> b (l m)")
        if self.mask == "column":
            return each[:, 0]
        return each[:, :: self.block if self.mask == "block" else 1, 0]

    def spread(self, units: Bool[Tensor, "B U"]) -> Bool[Tensor, "B L M"]:
        """From units back to elements."""
        length, width = self.shape
        if self.mask == "element":
            return rearrange(units, "b (l m) -> b l m", m=width)
        if self.mask == "column":
            return repeat(units, "b m -> b l m", l=length)
        if self.mask == "block":
            units = repeat(units, "b u -> b (u s)", s=self.block)[:, :length]
        return repeat(units, "b l -> b l m", m=width)


def pick(units: Bool[Tensor, "B U"], share: Float[Tensor, "B U"], exact: bool) -> Bool[Tensor, "B U"]:
    """Pick a share of the True units: each by itself, or exactly the rounded expected number of a sample."""
    u = torch.rand(units.shape, dtype=share.dtype, device=units.device)
    if not exact:
        return units & (u < share)
    count = (share * units).sum(1, keepdim=True).round()
    rank = u.masked_fill(~units, 2.0).argsort(1).argsort(1)
    return units & (rank < count)


def columns(space: FeatureSpace, group: str | None) -> Bool[Tensor, " M"]:
    """True for the columns of a group, or for all.

    Raises:
        ValueError: There is no such group.
    """
    if group is None:
        return torch.ones(space.width, dtype=torch.bool)
    for known in space.groups:
        if known.name == group:
            place = torch.arange(space.width)
            return (place >= known.start) & (place < known.stop)
    names = [known.name for known in space.groups]
    close = nearest(group, names)
    hint = f', did you mean "{close}"?' if close else ""
    raise ValueError(f'no group is named "{group}"{hint}; groups: {", ".join(names) or "none"}')
