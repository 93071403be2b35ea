"""Memory of finished positions. Letters: B batch, H heads, L new positions, K all keys, E head width."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of finished positions, per layer, as they enter attention (rotary positions included).

    New positions are written behind the finished ones, and stay only once `advance` counts them in; otherwise the next
    call writes over them. It is meant for sampling, under `torch.no_grad()`.

    Attributes:
        length: Finished positions of the sample.
        extra: Tokens that the embedding put before the first of them.
        valid: True on finished tokens that are real.
        whole: Whether all of them are known to be; on an accelerator, which is not asked, that is so only of none.
    """

    def __init__(self) -> None:
        self.length = self.extra = 0
        self.whole = True
        self.valid: Bool[Tensor, "B held"] | None = None
        self._buffers: dict[int, Tensor] = {}

    @property
    def num_tokens(self) -> int:
        """Finished tokens, extra ones included: the index of the next one."""
        return self.extra + self.length

    def join(
        self, layer: int, k: Float[Tensor, "B H L E"], v: Float[Tensor, "B H L E"]
    ) -> tuple[Float[Tensor, "B H K E"], Float[Tensor, "B H K E"]]:
        """Write new keys and values behind the finished ones, and return them all.

        Raises:
            ValueError: The batch is not the one that is remembered.
        """
        stop = self.num_tokens + k.shape[2]
        buffer = self._room(layer, k, stop)
        buffer[0, :, :, self.num_tokens : stop], buffer[1, :, :, self.num_tokens : stop] = k, v
        return buffer[0, :, :, :stop], buffer[1, :, :, :stop]

    def advance(self, valid: Bool[Tensor, "B L"], extra: int) -> None:
        """Count the tokens that every layer has just written as finished; `extra` of them belong to no position."""
        self.valid = self.with_finished(valid)
        self.whole = self.whole and valid.device.type == "cpu" and bool(valid.all())
        self.length += valid.shape[1] - extra
        self.extra += extra

    def with_finished(self, valid: Bool[Tensor, "B L"]) -> Bool[Tensor, "B K"]:
        """Put what is known of finished tokens before what is known of new ones."""
        return valid if self.valid is None else torch.cat([self.valid, valid], 1)

    def _room(self, layer: int, like: Float[Tensor, "B H L E"], stop: int) -> Float[Tensor, "2 B H N E"]:
        """Return the buffer of a layer, doubled until it holds `stop` tokens."""
        old = self._buffers.get(layer)
        if old is not None and old.shape[1] != len(like):
            raise ValueError(f"the cache holds a batch of {old.shape[1]}, and {len(like)} samples are given")
        if old is None or old.shape[3] < stop:
            batch, heads, _, width = like.shape
            new = like.new_empty(2, batch, heads, 1 << (stop - 1).bit_length(), width)
            if old is not None:
                new[:, :, :, : self.num_tokens] = old[:, :, :, : self.num_tokens]
            self._buffers[layer] = new
        return self._buffers[layer]
