"""Sampling trajectories: every state of a few samples.

Letters: T states, K recorded samples, N samples of a batch.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

__all__ = ["MOST_BYTES", "TrajectoryRecorder"]

MOST_BYTES = 1 << 27
"""Limit of the recorded bytes; beyond it only every second, fourth, .. state and the last are kept."""


class TrajectoryRecorder:
    """Records the trajectories of the first accepted samples, looking at the first samples of each batch.

    Args:
        most: Maximum of K.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: list[int] = []
        self._paths: list[Shaped[Tensor, "T L *M"]] = []
        self._states: list[tuple[int, Shaped[Tensor, "K L *M"]]] = []
        self._seen, self._every = 0, 1

    def __call__(self, state: Shaped[Tensor, "N L *M"]) -> None:
        """Record the next state of a batch."""
        if len(self.rows) >= self.most:
            return
        newest = state[: self.most].to("cpu", copy=True)
        self._states.append((self._seen, newest))
        while len(self._states) > 2 and len(self._states) * newest.nbytes > MOST_BYTES:
            self._every *= 2
            self._states = [(at, one) for at, one in self._states[:-1] if at % self._every == 0] + self._states[-1:]
        if len(self._states) > 1 and self._states[-2][0] % self._every:
            del self._states[-2]
        self._seen += 1

    def keep(self, rows: Int[Tensor, " N"], kept: Bool[Tensor, " N"]) -> None:
        """End a batch: `rows` are the indices of its samples, and `kept` marks the accepted ones."""
        for place in range(len(self._states[0][1]) if self._states else 0):
            if kept[place] and len(self.rows) < self.most:
                self.rows.append(int(rows[place]))
                self._paths.append(torch.stack([state[place] for _, state in self._states]))
        self._states.clear()
        self._seen, self._every = 0, 1

    def path(self) -> Shaped[Tensor, "T K L *M"] | None:
        """Return the trajectories, shorter ones padded with their last state; None if none was recorded."""
        if not self._paths:
            return None
        longest = max(map(len, self._paths))
        still = [torch.cat([one, one[-1:].expand(longest - len(one), *one.shape[1:])]) for one in self._paths]
        return torch.stack(still, 1)
