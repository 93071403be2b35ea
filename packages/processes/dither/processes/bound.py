"""The whole bound of a token process on -log p(x_0): the diffusion part that a loss measures, and what it leaves out.

    -log p(x_0) <= KL(q(x_1|x_0) || prior) + integral of the loss over t + E[-log p(x_0 | x_t)] at the smallest t

Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow import Clean, Measured, State

from .evidence import at

if TYPE_CHECKING:
    from .tokens import TokenProcess

__all__ = ["Denoise", "whole_bound"]

Denoise = Callable[[State, Float[Tensor, " B"]], Any]
"""State and time -> prediction."""


@torch.no_grad()
def whole_bound(process: TokenProcess, t_min: float, clean: Clean, measured: Measured, denoise: Denoise) -> Measured:
    """Add the ends to a measured loss, per position, in nats.

    Args:
        process: Whose bound it is.
        t_min: Smallest time at which the loss is measured.
        clean: The batch.
        measured: A loss whose values times weights, in the mean over t in [t_min, 1], are the diffusion part of each
            position over that range, divided by 1 - t_min.
        denoise: State and time -> prediction.

    Returns:
        Nats per position, with weight 1 on real positions that are not known, however the loss was reduced. The parts
        "prior" and "reconstruction" are the two ends; the rest is the diffusion part.
    """
    n, device = len(clean.x0), clean.x0.device
    t = torch.full((n,), t_min, device=device)
    noised = process.corrupt(clean, t)
    nats = (1 - t_min) * measured.values * measured.weights
    missing = _missing(denoise(noised.state, t), clean).where(noised.wanted, 0.0)
    ends = {"prior": _prior_gap(process, clean, denoise), "reconstruction": missing}
    ends = {name: part.to(nats.dtype).where(~clean.fixed, 0.0) for name, part in ends.items()}
    return Measured(sum(ends.values(), nats), (~clean.fixed).to(nats.dtype), parts=ends)


def _missing(pred: Any, clean: Clean) -> Float[Tensor, "B L"]:
    """-log p(x_0 | x_t) at every position."""
    log: Tensor = pred.log_clean().gather(-1, clean.x0[..., None])[..., 0]
    return -log.double()


def _prior_gap(process: TokenProcess, clean: Clean, denoise: Denoise) -> Float[Tensor, "B L"]:
    """KL(q(x_1|x_0) || prior).

    Where the prior cannot produce x_0 (absorbing) that is infinite for any signal left; the schedule is then read as if
    it went on to alpha = 0, which costs alpha(1) times the cross entropy of a sample that is masked throughout, up to
    terms of alpha(1) squared.
    """
    n, device = len(clean.x0), clean.x0.device
    end = torch.ones(n, device=device)
    alpha = (-process.schedule(end).sigma.double()).exp()[:, None]
    landing = at(process.table.on(device), clean.x0).double()
    possible = landing > 0
    safe = torch.where(possible, landing, 1.0)
    stays = alpha + (1 - alpha) * safe
    gap: Tensor = stays * (stays / safe).log() + torch.special.xlog1py((1 - alpha) * (1 - safe), -alpha)
    if bool((possible | clean.fixed).all()):
        return gap
    missing: Tensor = alpha * _missing(denoise(process.prior(clean), end), clean)
    return torch.where(possible, gap, missing)
