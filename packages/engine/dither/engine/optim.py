"""AdamW over the parameters of a module, and a moving average of its weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel

__all__ = ["MovingAverage", "adamw", "here", "parameter_groups"]

FUSED = {"cpu", "cuda"}


def here(value: Tensor) -> Tensor:
    """Return what of a tensor lies on this rank; a view."""
    return value.to_local() if hasattr(value, "to_local") else value


def adamw(
    module: nn.Module,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    decay: Literal["matrices", "all"] = "matrices",
) -> Optimizer:
    """Build AdamW for a module that is on its device already; fused where there is such a kernel.

    Raises:
        ValueError: The module has no parameter that wants a gradient.
    """
    groups = parameter_groups(module, weight_decay, decay)
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no parameter that wants a gradient")
    fused = all(p.is_floating_point() and p.device.type in FUSED for p in parameters)
    return AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)


def parameter_groups(module: nn.Module, weight_decay: float, decay: Literal["matrices", "all"]) -> list[dict[str, Any]]:
    """Sort the parameters that want gradients into those that decay and those that do not.

    With "matrices", only weights with at least two axes longer than 1 decay, and tables of `nn.Embedding` do not.
    Without any decay all are in one group, which saves a kernel.
    """
    tables = {id(inner.weight) for inner in module.modules() if isinstance(inner, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            matrix = sum(size > 1 for size in parameter.shape) > 1 and id(parameter) not in tables
            (decayed if matrix or decay == "all" or not weight_decay else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class MovingAverage(AveragedModel):
    """Exponential moving average of the weights of a model, for evaluation and sampling.

    Update n (from 0) keeps the share min(decay, (1 + n) / (10 + n)) of the average. One foreach kernel does it: the
    update of `AveragedModel` sorts tensors and reads its counter at each step, which took 0.31 ms for 48 tensors where
    this takes 0.03, and on a GPU waits for the device.

    Args:
        model: Its parameters are followed for good; call `update_parameters` after each change.
        decay: Share of the average that is kept once warmed up, 0 <= decay < 1.

    Attributes:
        updates: How many there were.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay = {decay}, allowed is 0 <= decay < 1")
        super().__init__(model)
        self.eval().requires_grad_(False)
        self.decay, self.updates = decay, 0
        self.follow(model)
        saved = model.state_dict(keep_vars=True)  # buffers that are not saved never change
        own = self.module.state_dict(keep_vars=True)
        names = [name for name, _ in model.named_buffers() if name in saved]
        self._buffers_of = [(own[name], saved[name]) for name in names]

    def follow(self, model: nn.Module) -> None:
        """Follow the parameters that a model has now: what lies on this rank, where they are cut up among several."""
        self._averaged = [here(parameter.detach()) for parameter in self.module.parameters()]
        self._followed = [here(parameter.detach()) for parameter in model.parameters()]

    def update_parameters(self, model: nn.Module | None = None) -> None:
        """Take the present weights into the average, and copy the buffers."""
        n = self.updates  # that of `AveragedModel` is a tensor
        share = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(self._averaged, self._followed, 1 - share)
        for mine, theirs in self._buffers_of:
            mine.copy_(theirs)
        self.updates += 1
