"""The two ends of a model: the seed's affine norm with a head as torch starts it, and DiT's final layer at zero."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dither.registry import FeatureSpace
from dither.registry.flow.records import State

torch.set_num_threads(1)

REGIONS = FeatureSpace(9, 5)
LEVEL = torch.tensor([0.2, 0.9])


class FinalLayer(nn.Module):
    """DiT (Peebles and Xie, 2023): a norm without weights, shift and scale from SiLU(c), a linear map; all at zero."""

    def __init__(self, width, out):
        super().__init__()
        self.linear, self.modulation = nn.Linear(width, out), nn.Linear(width, 2 * width)
        for layer in (self.linear, self.modulation):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, c):
        shift, scale = self.modulation(functional.silu(c)).chunk(2, 1)
        x = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
        return self.linear(x * (1 + scale[:, None]) + shift[:, None])


def state_of(seed=0):
    return State.of(torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("moved", [False, True])
def test_adaln_and_a_zero_head_are_the_final_layer_of_dit(model_of, opened, moved):
    model = model_of(REGIONS, final="adaln", head={"use": "features", "zero": True})
    model = opened(model) if moved else model
    theirs = FinalLayer(16, 5)
    ours = {"linear": model.head, "modulation": model.final.modulation.linear}
    if moved:
        theirs.load_state_dict({f"{a}.{b}": t for a, m in ours.items() for b, t in m.state_dict().items()})
    names = {name: tuple(p.shape) for name, p in theirs.named_parameters()}
    assert names == {f"{a}.{b}": tuple(t.shape) for a, m in ours.items() for b, t in m.state_dict().items()}
    assert not list(model.final.norm.parameters())
    seen = []
    model.final.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    state, valid = state_of(), torch.ones(2, 9, dtype=torch.bool)
    out = model(state, LEVEL, valid, {})
    torch.testing.assert_close(out, theirs(seen[0], model.condition(LEVEL, {})), atol=1e-6, rtol=1e-5)
    assert bool(out.any()) == moved, "it starts at exactly 0"


def test_the_seed_ends_in_an_affine_norm_and_a_head_that_is_not_zero(model_of):
    model = model_of(REGIONS, final="norm", affine=True, init="trunc-normal")
    assert model.final.modulation is None
    assert [tuple(p.shape) for p in model.final.parameters()] == [(16,), (16,)]
    out = model(state_of(), LEVEL, torch.ones(2, 9, dtype=torch.bool), {})
    assert out.abs().min() > 0
    bound = 16**-0.5
    assert model.head.weight.abs().max() <= bound
    assert model.head.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.2)
