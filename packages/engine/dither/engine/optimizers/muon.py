"""AdamW, and Muon for the matrices inside a model with AdamW for everything else, as one optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from ..distributed.ranks import ShardedTensor
from .eager_optimizer import AdamW, EagerOptimizer

__all__ = ["Muon", "Orthogonal", "adamw", "orthogonal", "parameter_groups"]

FACTORS = 3.4445, -4.7750, 2.0315
"""Coefficients of x, x^3 and x^5 in a Newton-Schulz iteration (Jordan et al. 2024)."""
ITERATIONS = 5
TINY = 1e-7


class Muon(EagerOptimizer):
    """Orthogonalised momentum (Jordan et al. 2024), with updates of the RMS of AdamW (Liu et al. 2025).

    Tables of `nn.Embedding`, vectors, and everything in `head` of the module, the output map, are
    left to AdamW.
    """

    # Set before a step as on the fused optimizers of torch, which a GradScaler drives.
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        matrices = _matrices_of_blocks(module)
        parts: list[Optimizer] = []
        if matrices:
            parts.append(Orthogonal(matrices, lr, momentum, weight_decay))

        # Everything else, in the groups that AdamW alone would have.
        ours = {id(matrix) for matrix in matrices}
        groups = []
        for group in parameter_groups(module, weight_decay, "matrices"):
            others = [p for p in group["params"] if id(p) not in ours]
            if others:
                groups.append({**group, "params": others})
        if groups:
            parts.append(adamw(groups, lr, betas, eps))

        of_parts = chain.from_iterable(part.param_groups for part in parts)
        super().__init__([dict(group) for group in of_parts], {})
        self.parts = parts
        self._share()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return all(hasattr(part, "_step_supports_amp_scaling") for part in self.parts)

    def __getstate__(self) -> dict[str, Any]:
        # torch names its own attributes only; a copy shares tables with copies of the parts.
        return {**super().__getstate__(), "parts": self.parts}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        value = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.grad_scale = self.grad_scale  # type: ignore[attr-defined]
            part.found_inf = self.found_inf  # type: ignore[attr-defined]
            part.step()
            # A checkpoint takes the state of this optimizer.
            self.state.update(part.state)
        return value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Let both optimizers work on the parameter groups and the state of this one."""
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:stop]
            start = stop
            for group in part.param_groups:
                part.state.update(
                    {p: self.state[p] for p in group["params"] if p in self.state}
                )


class Orthogonal(EagerOptimizer):
    """Orthogonalised momentum: `torch.optim.Muon` with the update RMS of AdamW.

    A sharded matrix is gathered for the update, and each rank keeps its rows, so that the update
    equals that of a single process. Gradients are divided by the tensor `grad_scale`, and a step
    with `found_inf` of 1 changes nothing, if they are set, as for the fused optimizers of torch.
    """

    _step_supports_amp_scaling = True
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: list[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        super().__init__(
            matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        # Reading them on the host would wait for the device.
        cancelled = self.found_inf
        scale = self.grad_scale
        applied = 1 if cancelled is None else 1 - cancelled
        for group in self.param_groups:
            lr = group["lr"]
            momentum = group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                gradient = matrix.grad if scale is None else matrix.grad / scale
                # Not by a factor of 0, as 0 times inf is NaN.
                if cancelled is not None:
                    gradient = gradient.masked_fill(cancelled > 0, 0.0)

                # Nesterov momentum, with the update RMS of AdamW (Liu et al. 2025).
                mean = state["momentum_buffer"].lerp_(
                    gradient, (1 - momentum) * applied
                )
                update = _orthogonal_shard(gradient.lerp(mean, momentum))
                matrix.mul_(1 - lr * group["weight_decay"] * applied)
                rate = lr * 0.2 * math.sqrt(max(matrix.shape))
                # torch raises for a factor beyond; with this one weights are inf or NaN, too.
                rate = min(rate, torch.finfo(matrix.dtype).max)
                matrix.add_(update * applied, alpha=-rate)


def _matrices_of_blocks(module: nn.Module) -> list[nn.Parameter]:
    """Return the trained matrices that are neither tables nor in the head."""
    excluded = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    matrices = []
    for name, parameter in module.named_parameters():
        # A tied head has another name first, but its weight is a table.
        if (
            name.startswith("head.")
            or id(parameter) in excluded
            or not parameter.requires_grad
        ):
            continue
        if parameter.ndim == 2 and min(parameter.shape) > 1:
            matrices.append(parameter)
    return matrices


def orthogonal(matrix: Float[Tensor, "N M"]) -> Float[Tensor, "N M"]:
    """Return a matrix with the same singular vectors and singular values near 1 (about 0.7 to 1.2).

    Computed in float32 on a CPU, in bfloat16 elsewhere. The iterations enlarge singular values near
    0 400 times, and in bfloat16 these are rounding noise: with several ranks, whose gradients round
    differently, weights differ in the third digit after a few steps.
    """
    a, b, c = FACTORS
    # x x^T of a wide matrix is the smaller of the two products.
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    if x.device.type != "cpu":
        x = x.bfloat16()
    # The Frobenius norm bounds the largest singular value, so that the iterations keep all of them
    # near 1.
    x = x / x.norm().clamp(min=TINY)
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = torch.addmm(
            x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a
        )
    return x if wide else x.T


def _orthogonal_shard(matrix: Tensor) -> Tensor:
    """Return `orthogonal` of a matrix that may be sharded, sharded alike."""
    if not isinstance(matrix, ShardedTensor):
        return orthogonal(matrix)
    from torch.distributed.tensor import distribute_tensor

    # The update is full on every rank, so that none has to send it.
    update = orthogonal(matrix.full_tensor())
    return distribute_tensor(
        update, matrix.device_mesh, matrix.placements, src_data_rank=None
    )


def parameter_groups(
    module: nn.Module, weight_decay: float, decay: Literal["matrices", "all"]
) -> list[dict[str, Any]]:
    """Split the parameters that require gradients into those that decay and those that do not.

    With "matrices", only weights with at least two axes longer than 1 decay, and tables of
    `nn.Embedding` do not. Without weight decay all are in one group, which saves a kernel.
    ValueError if no parameter requires a gradient.
    """
    tables = {
        id(inner.weight)
        for inner in module.modules()
        if isinstance(inner, nn.Embedding)
    }
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        axes = sum(size > 1 for size in parameter.shape)
        matrix = axes > 1 and id(parameter) not in tables
        if matrix or decay == "all" or not weight_decay:
            decayed.append(parameter)
        else:
            others.append(parameter)
    if not decayed and not others:
        raise ValueError(
            f"{type(module).__name__} has no parameter that requires a gradient"
        )
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    groups: list[dict[str, Any]],
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> AdamW:
    """Return AdamW, with a fused kernel where torch has one for all parameters."""
    parameters = chain.from_iterable(group["params"] for group in groups)
    fused = all(
        p.is_floating_point() and p.device.type in {"cpu", "cuda"} for p in parameters
    )
    return AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)
