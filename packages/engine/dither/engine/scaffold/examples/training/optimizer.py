"""An optimizer: Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds import OptimizerSpec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class ExampleOptimizer(OptimizerSpec):
    """Updates of constant size along the sign of a moving average of the gradients (Lion)."""

    name = "example-optimizer"
    lr: float = Field(3e-4, gt=0, le=1)
    """Learning rate, about a third to a tenth of that of Adam."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Weight of the average in the direction of an update."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay of the average."""
    weight_decay: float = Field(0.0, ge=0, le=10)
    """Decoupled weight decay."""

    def build(self, module: nn.Module) -> Optimizer:
        """Return an optimizer over the trainable parameters of a module."""
        import torch

        beta1 = self.beta1
        beta2 = self.beta2

        class Lion(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure: Any = None) -> Any:
                loss = None
                if closure is not None:
                    with torch.enable_grad():
                        loss = closure()
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is None:
                            continue
                        state = self.state[parameter]
                        if not state:
                            state["average"] = torch.zeros_like(parameter)
                        average = state["average"]

                        # Algorithm 2: the average is updated after its use.
                        direction = average.lerp(parameter.grad, 1 - beta1).sign_()
                        parameter.mul_(1 - group["lr"] * group["weight_decay"])
                        parameter.sub_(direction, alpha=group["lr"])
                        average.lerp_(parameter.grad, 1 - beta2)
                return loss

        parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        return Lion(parameters, {"lr": self.lr, "weight_decay": self.weight_decay})


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleOptimizer]
