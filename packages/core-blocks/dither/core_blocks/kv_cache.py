"""Key-value cache of finished positions. Letters: B batch, H heads, L new tokens, K all keys, E head width."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["KVCache"]


class KVCache:
    """Keys and values per layer, after RoPE. For sampling under `torch.no_grad()`.

    New positions are written after the finished ones and stay only once `advance` counts them;
    otherwise the next call overwrites them. After `rewind` they replace kept ones, and those behind
    them remain as context (the dual cache of Fast-dLLM).

    Attributes:
        length: Finished positions of the sample.
        dropped: The first of them, which are no longer in memory.
        extra: Extra tokens before the first position.
        valid: True on kept tokens that are not padding.
        written: Validity of the tokens written after the finished ones, and the number of extra ones
            among them; None once something else may have been written there.
    """

    def __init__(self) -> None:
        self.length = 0
        self.dropped = 0
        self.extra = 0
        # Tokens that were finished before `rewind`: those behind the new ones stay as context.
        self._kept = 0
        self.valid: Bool[Tensor, "B held"] | None = None
        self.written: tuple[Bool[Tensor, "B L"], int] | None = None
        self._ids: Int[Tensor, "B K"] | None = None
        self._buffers: dict[int, Tensor] = {}

    @property
    def num_tokens(self) -> int:
        """Number of finished tokens, extra ones included: the index of the next token."""
        return self.extra + self.length

    @property
    def held(self) -> int:
        """Number of finished tokens in memory."""
        return self.num_tokens - self.dropped

    @property
    def last_ids(self) -> Int[Tensor, "B 1"]:
        """The ids of the last finished position, if all finished ones were given to `keep_ids`."""
        assert self._ids is not None
        return self._ids[:, self.length - 1 : self.length]

    def keep_ids(self, x: Int[Tensor, "B L"]) -> None:
        """Keep the ids of positions that `advance` is about to count."""
        if self._ids is None:
            self._ids = x[:, :0]
        self._ids = torch.cat([self._ids[:, : self.length], x], 1)

    def join(
        self, layer: int, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L E"]
    ) -> tuple[Float[Tensor, "B H K E"], Float[Tensor, "B H K E"]]:
        """Write new keys and values after the finished ones and return all of them.

        Raises:
            ValueError: The batch size differs from that of the cache.
        """
        # Positions that are not counted yet are overwritten: a block is denoised in many calls.
        start = self.held
        stop = start + k.shape[2]
        buffer = self._buffer(layer, k, stop)
        buffer[0, :, :, start:stop] = k
        buffer[1, :, :, start:stop] = v

        # After a rewind, kept tokens behind the new ones remain as context.
        stop = max(stop, self._kept)
        keys, values = buffer[:, :, :, :stop].unbind()
        return keys, values

    def advance(self, valid: Bool[Tensor, "B L"], extra: int) -> None:
        """Mark the tokens just written as finished; the first `extra` of them are extra tokens."""
        self.valid = self.with_finished(valid)
        self.length += valid.shape[1] - extra
        self.extra += extra
        self.written = None

    def drop(self, count: int) -> None:
        """Forget the first `count` positions in memory; extra tokens stay. Not after `rewind`."""
        assert self.valid is not None
        stop = self.held - count
        # Positions after the dropped ones, and where they move to
        remaining = slice(self.extra + count, self.held)
        front = slice(self.extra, stop)
        # In place, so that a window that slides needs no more memory.
        for buffer in self._buffers.values():
            buffer[:, :, :, front] = buffer[:, :, :, remaining].clone()
        extra_valid = self.valid[:, : self.extra]
        self.valid = torch.cat([extra_valid, self.valid[:, remaining]], 1)
        self.dropped += count
        self.written = None

    def rewind(self, start: int) -> None:
        """Continue at position `start`, and keep the tokens from there on as context until they are replaced."""
        self._kept = max(self._kept, self.held)
        self.length = start
        self.written = None
        # Extra tokens come again before the first position.
        if not start:
            self.extra = 0

    def with_finished(self, valid: Bool[Tensor, "B L"]) -> Bool[Tensor, "B K"]:
        """Return the validity of all tokens that new ones attend to, in order."""
        if self.valid is None:
            return valid
        # Finished tokens, the new ones, and after a rewind the kept ones behind these
        start = self.held
        finished = self.valid[:, :start]
        behind = self.valid[:, start + valid.shape[1] :]
        return torch.cat([finished, valid, behind], 1)

    def _buffer(
        self, layer: int, like: Float[Tensor, "B H L E"], stop: int
    ) -> Float[Tensor, "2 B H N E"]:
        """Return the buffer of a layer, grown to a power of two of at least `stop` tokens."""
        old = self._buffers.get(layer)
        if old is not None and old.shape[1] != len(like):
            raise ValueError(
                f"the cache has batch size {old.shape[1]}, the input {len(like)}"
            )
        # Powers of two, so that a sequence of n tokens is copied at most log n times.
        if old is None or old.shape[3] < stop:
            batch, heads, _, width = like.shape
            size = 1 << (stop - 1).bit_length()
            new = like.new_empty(2, batch, heads, size, width)
            # Of the old buffer only finished tokens are read again.
            if old is not None:
                finished = slice(self.held)
                new[:, :, :, finished] = old[:, :, :, finished]
            self._buffers[layer] = new
        return self._buffers[layer]
