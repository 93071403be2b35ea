"""Block after block from left to right (BD3-LM, Arriola et al. 2025). Letters: B batch, L length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Sampler, Session
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import TokenSpace

__all__ = ["Blocks"]


@dataclass(frozen=True)
class Blocks:
    """Draws `size` positions at a time with `inner`; the session remembers each finished block as context of the next.

    The last block may be shorter. Known positions stay, so a prompt is nothing but known positions at the start; the
    model is asked only for blocks in which something is unknown, and what is known before them is remembered at once.

    Attributes:
        size: Positions per block.
        inner: How a block is drawn.
        stop: Whether a row ends with the first `end` id that is drawn: what comes later becomes `end` too, unless it is
            known, and nothing is drawn there. Once all rows have ended, the model is asked no more.
    """

    size: int
    inner: Sampler
    stop: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a block needs at least 1 position, not {self.size}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state of the whole sequence, the clean sample last; blocks not begun stand as at t = 1.

        Raises:
            ValueError: It is to stop at an end, and there is no such id.
        """
        end, (rows, length) = self._end(process), like.valid.shape
        whole, remembered = process.prior(like).x, 0
        ended = torch.zeros(rows, dtype=torch.bool, device=like.valid.device)
        yielded = None
        for start in range(0, length, self.size):
            block = slice(start, min(start + self.size, length))
            piece = like.slice_positions(block.start, block.stop)
            if bool((piece.fixed | ended[:, None]).all()):
                whole = _with(whole, block, torch.where(piece.fixed, piece.x0, end or 0))
                continue
            if remembered < start:
                session.append(whole[:, remembered:start])
                remembered = start
            for x in self.inner(process, session, _closed(piece, ended, end)):
                yielded = whole = _with(whole, block, x)
                yield whole
            if end is not None:
                after = _after(whole[:, block], piece.fixed, end)
                whole = _with(whole, block, whole[:, block].masked_fill(after & ~piece.fixed, end))
                ended = ended | ((whole[:, block] == end) & ~piece.fixed).any(1)
        if yielded is not whole:
            yield whole

    def _end(self, process: Process) -> int | None:
        if not self.stop:
            return None
        space = process.space
        end = space.fields[0].end if isinstance(space, TokenSpace) else None
        if end is None:
            raise ValueError(f"there is no id that ends a sample: {space}")
        return end


def _with(whole: Int[Tensor, "B L"], block: slice, x: Int[Tensor, "B S"]) -> Int[Tensor, "B L"]:
    return torch.cat([whole[:, : block.start], x, whole[:, block.stop :]], 1)


def _after(x: Int[Tensor, "B S"], fixed: Bool[Tensor, "B S"], end: int) -> Bool[Tensor, "B S"]:
    """Return what comes after the first end that was drawn."""
    found = ((x == end) & ~fixed).cumsum(1)
    return torch.cat([torch.zeros_like(found[:, :1]), found[:, :-1]], 1) > 0


def _closed(piece: Clean, ended: Bool[Tensor, " B"], end: int | None) -> Clean:
    """In rows that have ended, give what is not fixed: it is the end."""
    if end is None:
        return piece
    given = ended[:, None] & ~piece.fixed
    return replace(piece, x0=piece.x0.masked_fill(given, end), known=piece.known | given)
