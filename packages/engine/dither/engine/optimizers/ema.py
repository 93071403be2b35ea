"""Exponential moving average (EMA) of the weights."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..distributed.ranks import local_shard

__all__ = ["MovingAverage"]


class MovingAverage:
    """Exponential moving average of the weights of a model, for evaluation and sampling.

    Update n (from 0) keeps the share min(decay, (1 + n) / (10 + n)) of the average.

    Attributes:
        module: A copy of the model with the averaged weights.
        updates: Number of updates, on the device of the weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        device = next(model.parameters()).device
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self.follow(model)

        # Buffers outside the state dict are constants.
        saved = model.state_dict(keep_vars=True)
        copies = self.module.state_dict(keep_vars=True)
        names = [name for name, _ in model.named_buffers() if name in saved]
        self._buffers_of = [(copies[name], saved[name]) for name in names]

    def follow(self, model: nn.Module) -> None:
        """Follow the present parameters of a model, or their shards on this rank."""
        self._averaged = [
            local_shard(parameter.detach()) for parameter in self.module.parameters()
        ]
        self._followed = [
            local_shard(parameter.detach()) for parameter in model.parameters()
        ]

    @torch.no_grad()
    def update(self, applied: Bool[Tensor, ""]) -> None:
        """Update the average with the present weights and copy the buffers, where `applied`.

        The host never reads `applied` or the count: it would wait for the device.
        """
        # 1 - min(decay, (1 + n) / (10 + n)), or 0 after a skipped step.
        weight = (9.0 / (10 + self.updates)).clamp_min(1 - self.decay)
        weight = torch.where(applied, weight, 0.0)
        # foreach requires a weight of the type and device of each tensor.
        weights = [weight.to(averaged) for averaged in self._averaged]
        torch._foreach_lerp_(self._averaged, self._followed, weights)
        for averaged, followed in self._buffers_of:
            averaged.copy_(torch.where(applied, followed, averaged))
        self.updates += applied
