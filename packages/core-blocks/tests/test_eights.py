"""Long samples filled up to a multiple of eight tokens: the same values and gradients."""

import pytest
import torch

from dither.core_blocks.cpu import pad_to_eight as eights
from dither.registry import Condition, FeatureSpace
from dither.registry.flow.records import State

LENGTH = 12


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(eights, "LONG", 8)


def told(model, length=LENGTH, requested=None, each=False):
    """What it says, every gradient, and how many tokens each block was given."""
    generator, seen = torch.Generator().manual_seed(3), []
    x = torch.randn(2, length, 3, generator=generator, dtype=torch.float64)
    level = torch.rand(2, length, generator=generator, dtype=torch.float64)
    cond = {"centre": torch.rand(2, length, generator=generator).cumsum(1) * 1000}
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1])) for block in model.blocks]
    state = State(x, torch.zeros_like(x, dtype=torch.bool), requested)
    model.zero_grad()
    out = model(state, level if each else level[:, 0], torch.ones(2, length, dtype=torch.bool), cond)
    out = out if requested is None else out[requested]
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    for hook in hooks:
        hook.remove()
    return [out.detach(), *(weight.grad.clone() for weight in model.parameters())], seen


@pytest.mark.parametrize(
    "block",
    [{}, {"rope": True}, {"rope": "centre"}, {"attention": "sdpa"}, {"use": "pre-norm", "mlp": "swiglu"}],
    ids=str,
)
@pytest.mark.parametrize("way", ["all", "requested", "each", "checkpointing"])
def test_nothing_changes(model_of, opened, monkeypatch, block, way):
    told_places = (Condition("centre"),) if block.get("rope") == "centre" else ()
    space = FeatureSpace(LENGTH, 3, conditions=told_places)
    model = opened(model_of(space, block=block, checkpointing=way == "checkpointing")).double().train()
    requested = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5 if way == "requested" else None
    filled, seen = told(model, requested=requested, each=way == "each")
    assert set(seen) == {16}  # 12 regions, a class token, 3 that nobody sees
    monkeypatch.setattr(eights, "LONG", 10**9)
    plain, seen = told(model, requested=requested, each=way == "each")
    assert set(seen) == {13}
    for one, other in zip(filled, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_what_is_even_stays_as_it_is(model_of):
    _, seen = told(model_of(FeatureSpace(15, 3)).double(), length=15)
    assert set(seen) == {16}
