"""The last linear map in tiles: what it gives for some rows and ids, and the gradients of whatever is made of that.

A row is one position of one sample. Letters: N rows, D width, V vocabulary, n rows and v ids of one tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..costs import CPU_TILE

__all__ = ["TiledLinear"]

TILE = {"cpu": CPU_TILE}
"""Numbers in a tile by device."""
LARGE_TILE = 2**25
"""Numbers in a tile on any other device."""
ROWS = 1024
"""Most rows of a tile that may be cut along the ids."""


class TiledLinear:
    """h W' + b for rows of h, tile by tile, and its gradients, which are added up on the way there.

    Autograd does not record this: consumers of an output tile pass its gradient to `backward_tile`, and `joined`
    ties that number to h, W and b.

    Args:
        h: What the map reads.
        linear: The map.
        half: Whether products are taken in bfloat16. Their sums, and all else, stay in float32.
    """

    def __init__(self, h: Float[Tensor, "N D"], linear: nn.Linear, *, half: bool = False) -> None:
        self.source, self.linear = h, linear
        dtype = torch.promote_types(h.dtype, linear.weight.dtype)
        self.h, self.weight = h.detach().to(dtype), linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.half = half and dtype == torch.float32
        self._read = self.h.bfloat16() if self.half else self.h
        self._kept: dict[str, Tensor] = {}
        followed = torch.is_grad_enabled()
        self.grad_h = torch.zeros_like(self.h) if followed and h.requires_grad else None
        self.grad_weight = torch.zeros_like(self.weight) if followed and linear.weight.requires_grad else None
        biased = followed and linear.bias is not None and linear.bias.requires_grad
        self.grad_bias = torch.zeros_like(self.bias) if biased and self.bias is not None else None

    @property
    def followed(self) -> bool:
        """Whether anyone asks for a gradient."""
        return any(slope is not None for slope in (self.grad_h, self.grad_weight, self.grad_bias))

    def tiles(self) -> Iterator[tuple[slice, list[slice]]]:
        """Yield ids, with all rows in blocks: each part of the weights is gone through once."""
        most = min(ROWS * (1 if self.h.device.type == "cpu" else 4), max(len(self.h), 1))
        width = max(TILE.get(self.h.device.type, LARGE_TILE) // most, 1)
        blocks = _cut(len(self.h), most)
        for ids in _cut(len(self.weight), width):
            yield ids, blocks

    def rows(self) -> Iterator[slice]:
        """Yield rows in blocks whose tiles have all ids."""
        size = TILE.get(self.h.device.type, LARGE_TILE) * 2 // len(self.weight)
        yield from _cut(len(self.h), max(size, 1))

    def weights(self, ids: slice) -> Float[Tensor, "v D"]:
        """Return weights as they go into products; they stay until the next ones are asked for."""
        some = self.weight[ids]
        return self._room("weights", some.shape, torch.bfloat16).copy_(some) if self.half else some

    def output(
        self, rows: slice, ids: slice, weights: Float[Tensor, "v D"], less: Float[Tensor, "n 1"] | None = None
    ) -> Float[Tensor, "n v"]:
        """Return h W' + b of a tile, less a number per row; it stays until the next one is asked for."""
        read, shape = self._read[rows], (rows.stop - rows.start, ids.stop - ids.start)
        out = self._room("tile", shape, self.h.dtype)
        bias = out.new_zeros(1).expand(shape[1]) if self.bias is None else self.bias[ids]
        if not self.half:
            out.copy_(bias) if less is None else torch.sub(bias, less, out=out)
            return out.addmm_(read, weights.T)
        out.copy_(torch.mm(read, weights.T, out=self._room("half tile", shape, torch.bfloat16)))
        return (out if less is None else out.sub_(less)).add_(bias)

    def table(self, rows: slice) -> Float[Tensor, "n V"]:
        """Return h W' + b of some rows at all ids; it stays until the next one is asked for."""
        if not self.half:
            return self.output(rows, slice(0, len(self.weight)), self.weight)
        out = self._room("table", (rows.stop - rows.start, len(self.weight)), self.h.dtype)
        for ids, _ in self.tiles():
            out[:, ids] = self.output(rows, ids, self.weights(ids))
        return out

    def backward_rows(self, slope: Float[Tensor, "n V"], share: Float[Tensor, "n 1"], rows: slice) -> None:
        """Do what `backward_tile` does with the slope of some rows at all ids."""
        for ids, _ in self.tiles():
            self.backward_tile(slope[:, ids], share, rows, ids, self.weights(ids))

    def output_at(self, ids: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return h W' + b of every row at one id, never in bfloat16."""
        out = torch.cat([
            (self.h[rows] * self.weight[ids[rows]]).sum(-1) for rows in _cut(len(self.h), ROWS)
        ] or [self.h.new_zeros(0)])  # fmt: skip
        return out if self.bias is None else out + self.bias[ids]

    def backward_tile(
        self,
        slope: Float[Tensor, "n v"],
        share: Float[Tensor, "n 1"],
        rows: slice,
        ids: slice,
        weights: Float[Tensor, "v D"],
    ) -> None:
        """Add what follows from the slope of a tile, of which each row counts `share`; `scale` does it to h."""
        if self.grad_bias is not None:
            self.grad_bias[ids].addmv_(slope.T, share[:, 0])
        if self.half:
            slope = self._room("half tile", slope.shape, torch.bfloat16).copy_(slope)
        if self.grad_h is not None:
            self._add_product(self.grad_h[rows], slope, weights)
        if self.grad_weight is not None:
            self._add_product(self.grad_weight[ids], slope.T, (self.h[rows] * share).to(slope.dtype))

    def scale(self, share: Float[Tensor, "N 1"]) -> None:
        """Count each row of the slope of h by its share, once all tiles are pulled."""
        if self.grad_h is not None:
            self.grad_h.mul_(share)

    def backward_at(self, slope: Float[Tensor, " N"], ids: Int[Tensor, " N"]) -> None:
        """Add what follows from the slope of every row at one id, never in bfloat16; after `scale`."""
        if self.grad_bias is not None:
            self.grad_bias.index_add_(0, ids, slope)
        for rows in _cut(len(self.h), ROWS):
            part = slope[rows, None]
            if self.grad_h is not None:
                self.grad_h[rows].addcmul_(part, self.weight[ids[rows]])
            if self.grad_weight is not None:
                self.grad_weight.index_add_(0, ids[rows], part * self.h[rows])

    def _add_product(self, into: Float[Tensor, "a c"], a: Float[Tensor, "a b"], b: Float[Tensor, "b c"]) -> None:
        """Add a product in the precision of what it is added to."""
        if self.half:
            into.add_(torch.mm(a, b, out=self._room("product", into.shape, torch.bfloat16)))
        else:
            into.addmm_(a, b)

    def _room(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory that is used again and again: on a CPU new pages take longer than what is written to them."""
        size = prod(shape)
        if name not in self._kept or len(self._kept[name]) < size:
            self._kept[name] = torch.empty(size, dtype=dtype, device=self.h.device)
        return self._kept[name][:size].view(*shape)

    def joined(self, total: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the number whose slopes were pulled, tied to h, W and b; only one way back is possible."""
        if not self.followed:
            return total
        slopes = [self.grad_h, self.grad_weight, self.grad_bias]
        self.grad_h = self.grad_weight = self.grad_bias = None
        joined: Tensor = _Joined.apply(total, slopes, self.source, self.linear.weight, self.linear.bias)  # type: ignore[no-untyped-call]
        return joined


class _Joined(torch.autograd.Function):
    """A number whose gradients are known already."""

    @staticmethod
    def forward(
        ctx: Any,
        total: Float[Tensor, ""],
        slopes: list[Tensor | None],
        h: Float[Tensor, "N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, " V"] | None,
    ) -> Float[Tensor, ""]:
        ctx.slopes, ctx.dtypes = slopes, [None if x is None else x.dtype for x in (h, weight, bias)]
        return total.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        if ctx.slopes is None:
            raise RuntimeError("a fused loss can be gone back through once only")
        slopes, ctx.slopes = ctx.slopes, None  # so that a gradient becomes .grad without being copied
        if grads[0].device.type != "cpu" or grads[0] != 1:
            for slope in slopes:
                if slope is not None:
                    slope.mul_(grads[0])
        every = zip(slopes, ctx.dtypes, strict=True)
        return None, None, *(None if slope is None else slope.to(dtype) for slope, dtype in every)


def _cut(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
