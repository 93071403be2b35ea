"""What walks that unmask tokens have in common. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.flow.protocols import Process
from dither.registry.flow.records import Clean

from ..precision import wide, wide_dtype
from .posterior import lookup
from .prediction import clean_pieces, sample_clean
from .process import TokenProcess

__all__ = ["fill", "fully_masked", "gumbel", "log_prob", "top_positions"]


def fully_masked(process: Process, like: Clean, sampler: str) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Return the state at t = 1, and where it is to be unmasked: everywhere but at padding and known ids.

    Raises:
        TypeError: The process does not mask tokens.
    """
    if not isinstance(process, TokenProcess) or not process.masks:
        raise TypeError(f"{sampler} walks a TokenProcess whose prior is all on one id, as in absorbing")
    x = process.prior(like).x
    return x, (lookup(process.table.on(x.device), x) > 0) & ~like.fixed


def fill(x: Int[Tensor, "B L"], pred: Any, where: Bool[Tensor, "B L"]) -> Int[Tensor, "B L"]:
    """Return x with ids drawn in some places, as a prediction has them."""
    new = x.clone()
    new[where] = sample_clean(pred, where)
    return new


def log_prob(pred: Any, x: Int[Tensor, "B L"], where: Bool[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Return log p(x_0 = x | x_t) at the chosen positions, 0 elsewhere."""
    ids, said = x[where], list[Tensor]()
    for log_p in clean_pieces(pred, where):
        said.append(log_p.gather(-1, ids[: len(log_p), None])[:, 0])
        ids = ids[len(log_p) :]
    zeros = torch.zeros(x.shape, dtype=wide_dtype(x.device), device=x.device)
    return zeros.masked_scatter(where, torch.cat([zeros[:0, 0], *map(wide, said)]))


def top_positions(
    score: Float[Tensor, "B L"], among: Bool[Tensor, "B L"], count: Int[Tensor, " B"]
) -> Bool[Tensor, "B L"]:
    """Return the `count` places of the highest score in each row, of those in `among`; ties are settled by lot."""
    score = score.clamp_min(torch.finfo(score.dtype).min).masked_fill(~among, -torch.inf)
    lot = torch.rand(score.shape, device=score.device).argsort(1)
    falling = lot.gather(1, score.gather(1, lot).argsort(dim=1, descending=True, stable=True))
    first = torch.arange(score.shape[1], device=score.device) < count[:, None]
    return torch.zeros_like(among).scatter_(1, falling, first) & among


def gumbel(like: Tensor) -> Float[Tensor, "..."]:
    """Draw from the standard Gumbel distribution, in float64: in float32 its tail would be cut."""
    u = torch.rand(like.shape, dtype=wide_dtype(like.device), device=like.device)
    return -(-u.log()).log()
