"""Gradient norm and division against `clip_grad_norm_`."""

import copy
import math

import pytest
import torch
from torch import nn

from dither.engine.optimizers.components import AdamW
from dither.engine.training.ddp_fsdp import FLAT, norm_of
from dither.engine.training.trainer import divide, divisor_of


def layers(width):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2))
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    return net


def gradients_of(net):
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize("width", [2, FLAT // 4])
def test_norm(width):
    gradients = gradients_of(layers(width))
    exact = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))
    assert norm_of(gradients).item() == pytest.approx(exact, rel=1e-6)
    gradients[-1][0] = math.nan
    assert norm_of(gradients).isnan()


@pytest.mark.parametrize("scalar", [float, torch.tensor])
def test_divisor(scalar):
    assert float(divisor_of(scalar(4.0), 0.0, scalar(8.0))) == 4, "without clipping"
    assert float(divisor_of(scalar(4.0), 3.0, scalar(8.0))) == 4, "a norm of 2 is below 3"
    assert float(divisor_of(scalar(4.0), 0.5, scalar(8.0))) == 16, "a norm of 2 is clipped to 0.5"


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_step_equals_torch_clipping(fused, clip):
    """Divided in AdamW's fused kernel or before it, weights and gradients equal those clipped by torch."""
    ours, theirs = layers(2), layers(2)
    optimizers = [AdamW(lr=0.1).build(net) for net in (ours, theirs)]
    for step in range(3):
        for net in (ours, theirs):
            for parameter in net.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + step)
        gradients = gradients_of(ours)
        norm = norm_of(gradients).item()
        divide(optimizers[0] if fused else None, gradients, divisor_of(2.0, clip, norm))
        for gradient in gradients_of(theirs):
            gradient.div_(2)
        assert torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip).item() == pytest.approx(norm / 2)
        for optimizer in optimizers:
            optimizer.step()
        for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad)
            torch.testing.assert_close(mine, expected)


def test_optimizer_without_grad_scale():
    net = layers(2)
    before = copy.deepcopy(gradients_of(net))
    divide(torch.optim.SGD(net.parameters(), 0.1), gradients_of(net), 2.0)
    for mine, expected in zip(gradients_of(net), before, strict=True):
        torch.testing.assert_close(mine, expected / 2)
