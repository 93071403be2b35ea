"""Transformer blocks. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from .attention import Attention, take_rows
from .kv_cache import KVCache
from .mlps import make_mlp
from .modulation import Modulation
from .norms import modulate, norm_of_block
from .options import TransformerBlock
from .row_counts import rounded_up

__all__ = ["AdaLNZeroBlock", "DropPath", "PreNormBlock"]


class AdaLNZeroBlock(nn.Module):
    """DiT block with adaLN-Zero (Peebles and Xie, 2023): the identity at initialisation.

    Args:
        width: Width of the model.
        cond: Width of the condition.
        options: Options of attention, norms and MLP.
    """

    def __init__(self, width: int, cond: int, options: TransformerBlock) -> None:
        super().__init__()
        self.norm1 = norm_of_block(width, options)
        self.attention = Attention(width, options)
        self.norm2 = norm_of_block(width, options)
        self.mlp = make_mlp(width, options)
        self.modulation = Modulation(cond, width, 6)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L1 C"],
        *,
        mask: Shaped[Tensor, "#B 1 #L K"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        keep: bool = False,
        positions: Shaped[Tensor, "B L"] | None = None,
        requested: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Apply the block.

        Args:
            x: The sequence.
            c: One condition per sample or per position; its SiLU has been applied, once for all
                layers.
            mask: True where a query (second to last axis) may attend to a key, at least one for
                each. A float mask is added to the logits: log n makes a key count as n equal ones.
            cache: Keys and values of earlier positions.
            layer: Index of this block in the cache.
            keep: Ignored; the model decides which positions stay in the cache.
            positions: Coordinates for RoPE; indices by default.
            requested: Positions whose output is used; x stays as it is elsewhere. None for all.
        """
        # Six vectors of the condition, each B 1 D or B L D; all are 0 at initialisation, so that
        # the gates close both branches.
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c)
        y = modulate(self.norm1(x), shift1, scale1)

        # Every position is a key of the others; what follows attention is needed at few.
        rows = None
        if requested is not None:
            rows = _rows(requested)
            # Modulation of a sample is that of each of its rows.
            source = rows if c.ndim == 3 else rows // x.shape[1]
            gate1 = gate1.flatten(0, 1).index_select(0, source)
            shift2 = shift2.flatten(0, 1).index_select(0, source)
            scale2 = scale2.flatten(0, 1).index_select(0, source)
            gate2 = gate2.flatten(0, 1).index_select(0, source)

        # x + gate attention(modulate(norm(x))), then the same with the MLP: B L D, or N D
        h = take_rows(x, rows)
        h = h + gate1 * self.attention(y, mask, cache, layer, positions, rows)
        h = h + gate2 * self.mlp(modulate(self.norm2(h), shift2, scale2))
        return _put_rows(h, rows, x)


class PreNormBlock(nn.Module):
    """Transformer block with pre-layer normalisation (Xiong et al., 2020), without a condition.

    Args:
        width: Width of the model.
        options: Options of attention, norms and MLP.
        drop_path: Probability with which training drops attention, and independently the MLP, of a
            sample.
    """

    def __init__(self, width: int, options: TransformerBlock, drop_path: float) -> None:
        super().__init__()
        self.norm1 = norm_of_block(width, options)
        self.attention = Attention(width, options)
        self.norm2 = norm_of_block(width, options)
        self.mlp = make_mlp(width, options)
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L1 C"],
        *,
        mask: Shaped[Tensor, "#B 1 #L K"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        keep: bool = False,
        positions: Shaped[Tensor, "B L"] | None = None,
        requested: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Apply the block; `c` is ignored, the other arguments are those of `AdaLNZeroBlock`."""
        rows = None
        # Paths are dropped per sample, so that rows of a batch cannot stand alone.
        if requested is not None and not (self.training and self.drop_path.p):
            rows = _rows(requested)

        y = self.attention(self.norm1(x), mask, cache, layer, positions, rows)
        h = take_rows(x, rows) + self.drop_path(y)
        h = h + self.drop_path(self.mlp(self.norm2(h)))
        return _put_rows(h, rows, x)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016): drop the residual branch of whole samples in training.

    Args:
        p: Probability of dropping a sample.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "B *S"]) -> Float[Tensor, "B *S"]:
        if not (self.training and self.p):
            return x
        mask = torch.rand(len(x), device=x.device) >= self.p
        # Kept samples are scaled up, so that the mean is that of evaluation.
        scale = (mask / (1 - self.p)).to(x.dtype)
        return x * scale.view(-1, *[1] * (x.ndim - 1))


def _rows(requested: Bool[Tensor, "B L"]) -> Int[Tensor, " N"]:
    """Return the requested rows of the flattened batch, and others after them if their number is rounded."""
    flat = requested.flatten()
    count = rounded_up(int(flat.sum()))
    # A stable sort puts the requested rows first, in order.
    return flat.byte().argsort(descending=True, stable=True)[:count]


def _put_rows(
    h: Float[Tensor, "*N D"],
    rows: Int[Tensor, " N"] | None,
    x: Float[Tensor, "B L D"],
) -> Float[Tensor, "B L D"]:
    """Return x with some rows of the flattened batch replaced by h; h itself if `rows` is None."""
    if rows is None:
        return h
    return x.flatten(0, 1).index_copy(0, rows, h.to(x.dtype)).view_as(x)
