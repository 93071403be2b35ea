"""Exponential moving average (EMA) of the weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ..distributed.ranks import local_shard

__all__ = ["MovingAverage"]


class MovingAverage(AveragedModel):
    """Exponential moving average of the weights of a model, for evaluation and sampling.

    Update n (from 0) keeps the share min(decay, (1 + n) / (10 + n)) of the average. It is one
    foreach kernel: the update of `AveragedModel` sorts tensors and reads its counter in each step,
    which took 0.31 ms for 48 tensors instead of 0.03 ms, and synchronises with a GPU.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0
        self.follow(model)
        saved = model.state_dict(
            keep_vars=True
        )  # buffers outside the state dict are constants
        own = self.module.state_dict(keep_vars=True)
        names = [name for name, _ in model.named_buffers() if name in saved]
        self._buffers_of = [(own[name], saved[name]) for name in names]

    def follow(self, model: nn.Module) -> None:
        """Follow the present parameters of a model, or their shards on this rank."""
        self._averaged = [
            local_shard(parameter.detach()) for parameter in self.module.parameters()
        ]
        self._followed = [
            local_shard(parameter.detach()) for parameter in model.parameters()
        ]

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Update the average with the present weights, and copy the buffers."""
        n = self.updates  # the counter of `AveragedModel` is a tensor
        share = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(self._averaged, self._followed, 1 - share)
        for averaged, followed in self._buffers_of:
            averaged.copy_(followed)
        self.updates += 1
