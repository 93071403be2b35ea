"""Checks for optimizers and learning-rate schedules."""

from __future__ import annotations

import math

import torch

from ..check_utils import assert_equal
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS"]


def step_changes_weights(s: Situation) -> None:
    """A step moves every weight that wants a gradient to finite values, and no other."""
    (module,) = s.given
    optimizer = s.build()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(s.seed))
    for _ in range(2):
        optimizer.zero_grad()
        (module(x) - 1.0).square().sum().backward()
        optimizer.step()
    for name, parameter in module.named_parameters():
        assert parameter.isfinite().all(), f"{name} is not finite after two steps"
        moved = not torch.equal(parameter, before[name])
        wants = parameter.requires_grad
        assert moved == wants, f"{name} moved: {moved}; it wants a gradient: {wants}"


def knows_each_weight_once(s: Situation) -> None:
    """The groups hold each weight that wants a gradient once."""
    (module,) = s.given
    held = [id(parameter) for group in s.build().param_groups for parameter in group["params"]]
    expected = [id(parameter) for parameter in module.parameters() if parameter.requires_grad]
    assert sorted(held) == sorted(expected), f"{len(held)} weights are held, {len(expected)} want a gradient"


def resumes(s: Situation) -> None:
    """A fresh optimizer with the saved state goes on as the old one would."""
    (module,) = s.given
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(s.seed))

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (module(x) - 1.0).square().sum().backward()
        optimizer.step()

    first = s.build()
    step(first)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    saved = torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, first.state_dict())
    step(first)
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(weights)
    second = s.build()
    second.load_state_dict(saved)
    step(second)
    for name, tensor in module.state_dict().items():
        assert_equal(tensor, expected[name], f"{name} after a step with the saved state")


def factor_is_sound(s: Situation) -> None:
    """The factor is finite and at least 0 at every step, above 0 at some, and a pure function of the step."""
    (steps,) = s.given
    schedule = s.build()
    factors = [schedule(step) for step in range(steps)]
    wrong = [(step, factor) for step, factor in enumerate(factors) if not (math.isfinite(factor) and factor >= 0)]
    assert not wrong, f"step and factor: {wrong[:3]}"
    assert max(factors) > 0, "the factor is 0 all along"
    again = [schedule(step) for step in reversed(range(steps))]
    assert again == factors[::-1], "the factor depends on what was asked before"


CHECKS = (
    *checks_of("optimizer", step_changes_weights, knows_each_weight_once, resumes),
    *checks_of("lr-schedule", factor_is_sound),
)
"""The checks for optimizers and learning-rate schedules."""
