"""Templates of samples some of whose tokens are known, written as a text with gaps.

Letters: N samples, L tokens, K tokens of a part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean

__all__ = ["InfillingTask", "require_infilling", "with_known"]

MASK = re.compile(r"\[MASK(?::([1-9]\d{0,6}))?\]")
"""A gap in a text to fill in, with its number of ids."""
GAP_LIKE = re.compile(r"\[\s*mask\s*(\]|:[^\]]*|[-\d]+\s*\])", re.IGNORECASE)
"""A gap, or a misspelled one, such as `[mask:3]` or `[MASK:-1]`."""


@runtime_checkable
class InfillingTask(Protocol):
    """A task whose samples can be written as a text with gaps."""

    def infill(self, text: str, n: int, seed: int) -> Clean:
        """Return `n` templates of a text in which `[MASK:K]` marks K unknown tokens."""


def require_infilling(task: Any) -> InfillingTask:
    """Return a task, or raise `Refused` if its samples are not written as text."""
    if not isinstance(task, InfillingTask):
        message = "samples of the task of the run are not written as text"
        raise Refused(message, ("task",), code="misfit")
    return task


def with_known(
    like: Clean, text: str, encode: Callable[[str], Int64[ndarray, " K"]]
) -> Clean:
    """Return templates that begin with a text, whose `[MASK:K]` are K tokens to draw.

    Tokens after the text are drawn, too. Refused if the text is longer than a sample, or has
    something else than `[MASK]` in its place; `encode` refuses unknown characters.
    """
    ids = [np.zeros(0, np.int64)]
    known = [np.zeros(0, bool)]
    # The pattern splits into text, count, text, count ...
    for index, piece in enumerate(MASK.split(text)):
        is_gap = index % 2 == 1
        if is_gap:
            ids.append(np.zeros(int(piece or 1), np.int64))
        else:
            wrong = GAP_LIKE.search(piece)
            if wrong is not None:
                message = f'"{wrong[0]}" is not a gap: write [MASK] or [MASK:3]'
                raise Refused(message, code="invalid-value")
            ids.append(encode(piece))
        known.append(np.full(len(ids[-1]), not is_gap))
    size = sum(map(len, ids))
    length = like.x0.shape[1]
    if size > length:
        message = f"the text has {size} tokens, but a sample {length}"
        raise Refused(message, code="misfit")

    x0 = like.x0.clone()
    x0[:, :size] = torch.from_numpy(np.concatenate(ids))
    known_mask = torch.zeros_like(like.known)
    known_mask[:, :size] = torch.from_numpy(np.concatenate(known))
    # A text may reach into the padding of a template, which becomes part of the sample.
    valid = like.valid | (torch.arange(length) < size)
    return Clean.of(x0, valid, known_mask, **like.cond)
