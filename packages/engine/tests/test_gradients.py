"""The norm and the division of gradients, against torch's own clipping."""

import copy
import math

import pytest
import torch
from torch import nn

from dither.engine.optimizers.components import AdamW
from dither.engine.training.gradients import FLAT, divide, divisor_of, norm_of


def layers(width):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2))
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    return net


def gradients_of(net):
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize("width", [2, FLAT // 4])
def test_the_norm_is_that_of_all_together_however_large_they_are(width):
    gradients = gradients_of(layers(width))
    exact = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))
    assert norm_of(gradients).item() == pytest.approx(exact, rel=1e-6)
    gradients[-1][0] = math.nan
    assert norm_of(gradients).isnan()


@pytest.mark.parametrize("told", [float, torch.tensor])
def test_gradients_are_divided_and_then_shortened(told):
    assert float(divisor_of(told(4.0), 0.0, told(8.0))) == 4, "without clipping"
    assert float(divisor_of(told(4.0), 3.0, told(8.0))) == 4, "a norm of 2 is not lengthened to 3"
    assert float(divisor_of(told(4.0), 0.5, told(8.0))) == 16, "a norm of 2 is shortened to 0.5"


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_a_step_is_that_of_torchs_clipping(fused, clip):
    """In AdamW's kernel or before its step: weights and the gradients that are left equal those clipped by torch."""
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


def test_an_optimizer_that_cannot_divide_has_it_done_before():
    net = layers(2)
    before = copy.deepcopy(gradients_of(net))
    divide(torch.optim.SGD(net.parameters(), 0.1), gradients_of(net), 2.0)
    for mine, expected in zip(gradients_of(net), before, strict=True):
        torch.testing.assert_close(mine, expected / 2)
