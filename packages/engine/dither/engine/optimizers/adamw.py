"""AdamW over the parameters of a module, and a moving average of its weights."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn
from torch.optim import AdamW, Optimizer

__all__ = ["adamw", "parameter_groups"]

FUSED = {"cpu", "cuda"}


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
