"""Samples that a user gives, as lists, arrays or tensors: their dtype and shape are checked.

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import Space, TokenSpace

__all__ = ["require_ids", "samples_of", "tensor_of"]


def samples_of(space: Space, given: Any) -> Shaped[Tensor, "B L *M"]:
    """Return samples of a space on the CPU, ids as int64.

    Ids may be one sample `L`. Ids of a space with one field, such as text, may be shorter.

    Raises:
        Refused: They are neither numbers nor of the shape of samples, or ids are no integers.
    """
    samples = tensor_of(given).cpu()
    if isinstance(space, TokenSpace):
        return _ids_of(space, samples)
    sample_shape = (space.length, space.width)
    if not samples.is_floating_point() or samples.shape[1:] != sample_shape:
        message = f"values of shape {tuple(samples.shape)}, but a sample is {space}"
        raise Refused(message, code="misfit")
    return samples


def _ids_of(space: TokenSpace, samples: Tensor) -> Int[Tensor, "B L"]:
    inexact = samples.is_floating_point() or samples.is_complex()
    if inexact or samples.dtype == torch.bool:
        message = f"ids are integers, got {str(samples.dtype).removeprefix('torch.')}"
        raise Refused(message, code="wrong-type")
    ids = samples.long()
    if ids.ndim == 1:
        ids = ids[None]
    missing = -1
    if ids.ndim == 2:
        missing = space.length - ids.shape[1]
    if missing < 0 or (missing and len(space.fields) > 1):
        message = f"ids of shape {tuple(ids.shape)}, but a sample has {space.length}"
        raise Refused(message, code="misfit")
    return ids


def require_ids(space: Space, samples: Shaped[Tensor, "B L *M"]) -> None:
    """Refuse ids outside the vocabulary of a token space."""
    if not isinstance(space, TokenSpace):
        return
    outside = ((samples < 0) | (samples >= space.vocab)).nonzero()
    if len(outside):
        row, position = outside[0].tolist()
        message = f"row {row}, position {position}: no id {samples[row, position]}"
        known = f"ids are 0 to {space.vocab - 1}"
        raise Refused(message, help=known, code="out-of-range")


def tensor_of(given: Any) -> Tensor:
    """Return numbers as a tensor; Refused for what has none, such as text."""
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"expected numbers, got {type(given).__name__}: {error}"
        raise Refused(message, code="wrong-type") from None
