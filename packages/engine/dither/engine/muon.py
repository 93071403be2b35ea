"""Muon for the matrices inside the model, AdamW for everything else, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim import Muon as TorchMuon

from .optim import FUSED, parameter_groups

__all__ = ["Muon"]


class Muon(Optimizer):
    """Momentum, orthogonalised (Jordan et al. 2024), with steps as long as those of AdamW (Liu et al. 2025).

    So one learning rate serves both. Tables of `nn.Embedding`, vectors, and what stands in `head` of the module, the
    map to the values that come out, are left to AdamW.

    Args:
        module: On its device already.
        lr: Learning rate of both.
        momentum: Memory of the mean of the gradients of matrices; Nesterov's.
        betas: Memories of AdamW.
        eps: Added to the root of AdamW's second moment.
        weight_decay: Share of a matrix that is taken away at each step, times the learning rate.

    Raises:
        ValueError: The module has no parameter that wants a gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        head = {id(parameter) for name, parameter in module.named_parameters() if name.startswith("head.")}
        tables = {id(inner.weight) for inner in module.modules() if isinstance(inner, nn.Embedding)}
        inside = [p for p in module.parameters() if _is_inside(p, head | tables)]
        ours = {id(parameter) for parameter in inside}
        rest = [
            {**group, "params": [p for p in group["params"] if id(p) not in ours]}
            for group in parameter_groups(module, weight_decay, "matrices")
        ]
        rest = [group for group in rest if group["params"]]
        others = [parameter for group in rest for parameter in group["params"]]
        if not inside and not others:
            raise ValueError(f"{type(module).__name__} has no parameter that wants a gradient")
        parts: list[Optimizer] = []
        if inside:
            match = "match_rms_adamw"
            parts.append(TorchMuon(inside, lr, weight_decay, momentum, adjust_lr_fn=match))
        if others:
            fused = all(p.is_floating_point() and p.device.type in FUSED for p in others)
            parts.append(AdamW(rest, lr=lr, betas=betas, eps=eps, fused=fused))
        super().__init__([dict(group) for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change the weights once."""
        value = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
            self.state.update(part.state)
        return value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of another one over the same parameters."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Let the parts work on the groups, and the state, of the whole."""
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:stop]
            start = stop
            for group in part.param_groups:
                part.state.update({p: self.state[p] for p in group["params"] if p in self.state})


def _is_inside(parameter: nn.Parameter, outside: set[int]) -> bool:
    return parameter.requires_grad and parameter.ndim == 2 and min(parameter.shape) > 1 and id(parameter) not in outside
