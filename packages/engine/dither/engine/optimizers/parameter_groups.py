"""Which parameters get weight decay."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

__all__ = ["has_fused_kernel", "parameter_groups"]


def parameter_groups(module: nn.Module, weight_decay: float, decay: Literal["matrices", "all"]) -> list[dict[str, Any]]:
    """Split the parameters that require gradients into those that decay and those that do not.

    With "matrices", only weights with at least two axes longer than 1 decay, and tables of `nn.Embedding` do not.
    Without weight decay all are in one group, which saves a kernel.

    Raises:
        ValueError: No parameter requires a gradient.
    """
    tables = {id(inner.weight) for inner in module.modules() if isinstance(inner, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            matrix = sum(size > 1 for size in parameter.shape) > 1 and id(parameter) not in tables
            (decayed if matrix or decay == "all" or not weight_decay else others).append(parameter)
    if not decayed and not others:
        raise ValueError(f"{type(module).__name__} has no parameter that requires a gradient")
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def has_fused_kernel(groups: list[dict[str, Any]]) -> bool:
    """Return whether torch has a fused kernel for all parameters."""
    return all(p.is_floating_point() and p.device.type in {"cpu", "cuda"} for group in groups for p in group["params"])
