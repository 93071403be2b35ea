"""Times and noise levels of a batch, from a number, one per sample, or one per position.

Letters: B batch, L length.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..config.errors import Refused
from .records import Clean

__all__ = ["as_levels", "as_times", "require_clean"]


def as_times(t: float | Shaped[Tensor, "..."], like: Clean) -> Float[Tensor, "B *L"]:
    """Return t as one time per sample or per position; a single time is that of all samples.

    Raises:
        Refused: `like` is not a batch.
        ValueError: Another number of times; or a time outside [0, 1] or NaN, except on an
            accelerator, where finding it would synchronise.
    """
    require_clean(like)
    t = _broadcast(t, like.valid, "t")
    # Reading from an accelerator waits for all work that is queued there.
    if t.device.type == "cpu":
        inside = (t >= 0) & (t <= 1)
        if not inside.all():
            raise ValueError(f"t must be in [0, 1], not {t[~inside][0]}")
    return t


def require_clean(batch: object) -> None:
    """Refuse anything but a batch, such as its bare tensor."""
    if not isinstance(batch, Clean):
        message = f"expected a batch, got {type(batch).__name__}"
        raise Refused(message, help="Clean.of(x0) makes one", code="wrong-type")


def as_levels(
    level: float | Shaped[Tensor, "..."], valid: Bool[Tensor, "B L"]
) -> Float[Tensor, "B *L"]:
    """Return noise levels as one per sample or per position; a single level is that of all samples.

    Raises:
        ValueError: Another number of levels; or NaN, except on an accelerator and in a compiled
            graph.
    """
    level = _broadcast(level, valid, "level")
    # A branch on values breaks a compiled graph.
    readable = level.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and level.isnan().any():
        raise ValueError("level must be a number, not NaN")
    return level


def _broadcast(
    value: float | Shaped[Tensor, "..."], valid: Bool[Tensor, "B L"], name: str
) -> Float[Tensor, "B *L"]:
    samples, positions = valid.shape
    value = torch.as_tensor(value, device=valid.device)
    if not value.is_floating_point():
        value = value.float()
    if value.numel() == 1:
        value = value.reshape(1).expand(samples)
    if value.shape not in ((samples,), (samples, positions)):
        raise ValueError(
            f"{name} must have 1, {samples} or {samples} x {positions} elements, "
            f"not shape {tuple(value.shape)}"
        )
    return value
