"""The last linear layer in tiles: its output for some rows and ids, and the gradients of functions of it.

A row is one position of one sample. Letters: N rows, D width, V vocabulary, n rows and v ids of one
tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["TiledLinear", "fill_outside"]

TILE = {"cpu": 2**22}
"""Numbers in a tile by device: on a CPU 16 MiB of float32, beyond which products gain nothing."""
LARGE_TILE = 2**25
"""Numbers in a tile on any other device."""
ROWS = 1024
"""Most rows of a tile that has a part of the ids."""


class TiledLinear:
    """h W' + b for rows of h, tile by tile, with accumulated gradients.

    Autograd does not record this: consumers of an output tile pass its gradient to `backward_tile`,
    and `attach_grads` connects the final number with h, W and b.

    Args:
        h: Input of the layer.
        linear: The layer.
        half: Run matrix products in bfloat16; sums and everything else stay in float32.
    """

    def __init__(self, h: Float[Tensor, "N D"], linear: nn.Linear, *, half: bool = False) -> None:
        self.source = h
        self.linear = linear
        dtype = torch.promote_types(h.dtype, linear.weight.dtype)
        self.h = h.detach().to(dtype)
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.half = half and dtype == torch.float32
        self._read = self.h.bfloat16() if self.half else self.h
        self._half_weight: Tensor | None = None
        self._buffers: dict[str, Tensor] = {}
        needs_grad = torch.is_grad_enabled()
        self.grad_h = torch.zeros_like(self.h) if needs_grad and h.requires_grad else None
        empty = (
            torch.empty_like if len(h) else torch.zeros_like
        )  # the first rows write to all of it
        self.grad_weight = (
            empty(self.weight) if needs_grad and linear.weight.requires_grad else None
        )
        biased = needs_grad and linear.bias is not None and linear.bias.requires_grad
        self.grad_bias = torch.zeros_like(self.bias) if biased and self.bias is not None else None

    @property
    def needs_grad(self) -> bool:
        """Whether any gradient is required."""
        return any(grad is not None for grad in (self.grad_h, self.grad_weight, self.grad_bias))

    def tiles(self) -> Iterator[tuple[slice, list[slice]]]:
        """Yield ids with all rows in blocks, so that each part of the weights is read once."""
        most = min(ROWS * (1 if self.h.device.type == "cpu" else 4), max(len(self.h), 1))
        width = max(TILE.get(self.h.device.type, LARGE_TILE) // most, 1)
        blocks = _slices(len(self.h), most)
        for ids in _slices(len(self.weight), width):
            yield ids, blocks

    def rows(self) -> Iterator[slice]:
        """Yield blocks of rows for tiles with all ids; the weights are converted once for all blocks."""
        size = TILE.get(self.h.device.type, LARGE_TILE) * 2 // len(self.weight)
        self._half_weight = self.weight.bfloat16() if self.half else None
        yield from _slices(len(self.h), max(size, 1))

    def weights(self, ids: slice) -> Float[Tensor, "v D"]:
        """Return weights in the precision of products; valid until the next call."""
        if self._half_weight is not None:
            return self._half_weight[ids]
        some = self.weight[ids]
        return (
            self._buffer("weights", some.shape, torch.bfloat16).copy_(some) if self.half else some
        )

    def output(
        self,
        rows: slice,
        ids: slice,
        weights: Float[Tensor, "v D"],
        offset: Float[Tensor, "n 1"] | None = None,
    ) -> Float[Tensor, "n v"]:
        """Return h W' + b of a tile, minus an offset per row; valid until the next call."""
        read = self._read[rows]
        shape = (rows.stop - rows.start, ids.stop - ids.start)
        out = self._buffer("tile", shape, self.h.dtype)
        bias = out.new_zeros(1).expand(shape[1]) if self.bias is None else self.bias[ids]
        if not self.half:
            out.copy_(bias) if offset is None else torch.sub(bias, offset, out=out)
            return out.addmm_(read, weights.T)
        half = torch.mm(read, weights.T, out=self._buffer("half tile", shape, torch.bfloat16))
        return (
            torch.add(half, bias, out=out)
            if offset is None
            else torch.sub(half, offset, out=out).add_(bias)
        )

    def table(self, rows: slice) -> Float[Tensor, "n V"]:
        """Return h W' + b of some rows at all ids; valid until the next call."""
        if not self.half:
            return self.output(rows, slice(0, len(self.weight)), self.weight)
        out = self._buffer("table", (rows.stop - rows.start, len(self.weight)), self.h.dtype)
        for ids, _ in self.tiles():
            out[:, ids] = self.output(rows, ids, self.weights(ids))
        return out

    def backward_rows(
        self, grad: Float[Tensor, "n V"], share: Float[Tensor, "n 1"], rows: slice
    ) -> None:
        """Apply `backward_tile` to the gradient of some rows at all ids."""
        for ids, _ in self.tiles():
            self.backward_tile(grad[:, ids], share, rows, ids, self.weights(ids))

    def output_at(self, ids: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return h W' + b of every row at one id, never in bfloat16."""
        out = torch.cat(
            [(self.h[rows] * self.weight[ids[rows]]).sum(-1) for rows in _slices(len(self.h), ROWS)]
            or [self.h.new_zeros(0)]
        )
        return out if self.bias is None else out + self.bias[ids]

    def backward_tile(
        self,
        grad: Float[Tensor, "n v"],
        share: Float[Tensor, "n 1"],
        rows: slice,
        ids: slice,
        weights: Float[Tensor, "v D"],
    ) -> None:
        """Accumulate the gradients of a tile, each row with weight `share`; `scale` applies that to h."""
        if self.grad_bias is not None:
            self.grad_bias[ids].addmv_(grad.T, share[:, 0])
        if self.half:
            grad = self._buffer("half tile", grad.shape, torch.bfloat16).copy_(grad)
        if self.grad_h is not None:
            self._add_product(self.grad_h[rows], grad, weights)
        if self.grad_weight is not None:
            share_h = (self.h[rows] * share).to(grad.dtype)
            self._add_product(self.grad_weight[ids], grad.T, share_h, first=rows.start == 0)

    def scale(self, share: Float[Tensor, "N 1"]) -> None:
        """Multiply each row of the gradient of h by its share, after all tiles."""
        if self.grad_h is not None:
            self.grad_h.mul_(share)

    def backward_at(self, grad: Float[Tensor, " N"], ids: Int[Tensor, " N"]) -> None:
        """Accumulate the gradients of every row at one id, never in bfloat16; after `scale`."""
        if self.grad_bias is not None:
            self.grad_bias.index_add_(0, ids, grad)
        for rows in _slices(len(self.h), ROWS):
            part = grad[rows, None]
            if self.grad_h is not None:
                self.grad_h[rows].addcmul_(part, self.weight[ids[rows]])
            if self.grad_weight is not None:
                self.grad_weight.index_add_(0, ids[rows], part * self.h[rows])

    def _add_product(
        self,
        into: Float[Tensor, "a c"],
        a: Float[Tensor, "a b"],
        b: Float[Tensor, "b c"],
        *,
        first: bool = False,
    ) -> None:
        """Add a product to `into` in its precision; the first replaces what is there."""
        if self.half:
            product = torch.mm(a, b, out=self._buffer("product", into.shape, torch.bfloat16))
            into.copy_(product) if first else into.add_(product)
        else:
            into.addmm_(a, b, beta=0 if first else 1)

    def _buffer(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a reused buffer: on a CPU allocating pages takes longer than writing to them."""
        size = prod(shape)
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = torch.empty(size, dtype=dtype, device=self.h.device)
        return self._buffers[name][:size].view(*shape)

    def attach_grads(self, total: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the total as a function of h, W and b with the accumulated gradients; backward works once."""
        if not self.needs_grad:
            return total
        grads = [self.grad_h, self.grad_weight, self.grad_bias]
        self.grad_h = self.grad_weight = self.grad_bias = None
        attached: Tensor = _Attached.apply(
            total, grads, self.source, self.linear.weight, self.linear.bias
        )  # type: ignore[no-untyped-call]
        return attached


class _Attached(torch.autograd.Function):
    """A number with precomputed gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        total: Float[Tensor, ""],
        grads: list[Tensor | None],
        h: Float[Tensor, "N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, " V"] | None,
    ) -> Float[Tensor, ""]:
        ctx.grads = grads
        ctx.dtypes = [None if x is None else x.dtype for x in (h, weight, bias)]
        return total.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("backward through a fused loss works only once")
        grads = ctx.grads  # so that a gradient becomes .grad without being copied
        ctx.grads = None
        if upstream[0].device.type != "cpu" or upstream[0] != 1:
            for grad in grads:
                if grad is not None:
                    grad.mul_(upstream[0])
        typed = zip(grads, ctx.dtypes, strict=True)
        return None, None, *(None if grad is None else grad.to(dtype) for grad, dtype in typed)


def fill_outside(
    tile: Float[Tensor, "n v"], support: Bool[Tensor, " v"], value: float
) -> Float[Tensor, "n v"]:
    """Write a value to the columns outside the support, in place; on a GPU without synchronising."""
    if tile.device.type == "cpu":
        return tile.index_fill_(1, (~support).nonzero()[:, 0], value)
    return tile.masked_fill_(~support, value)


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
