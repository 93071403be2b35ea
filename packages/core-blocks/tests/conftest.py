"""Models by name, as an experiment file would ask for them, and weights that are all at work."""

from __future__ import annotations

import pytest
import torch

from dither.registry import FeatureSpace, Field, TokenSpace, default_catalog

torch.set_num_threads(1)

SMALL = {"width": 16, "depth": 2, "block": {"use": "adaln-zero", "heads": 2}}


@pytest.fixture
def model_of():
    """Build a small denoiser for a space; keywords are options, `heads=2` and the like go to the block."""

    def build(space, *, block=None, seed=0, device="cpu", **options):
        table = SMALL | options | {"block": {**SMALL["block"], **(block or {})}}
        if isinstance(space, FeatureSpace):
            table = {"embedding": "regions", "head": "features"} | table
        spec = default_catalog().parse("model", {"use": "core-blocks/denoiser", **table})
        assert not list(spec.check(space))
        torch.manual_seed(seed)
        with torch.device(device):
            return spec.build(space).eval()

    return build


@pytest.fixture
def opened():
    """Move every weight away from its start, so that gates and heads that start at zero take part."""

    def move(module, std=0.2):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator).to(weight.dtype), alpha=std)
        return module

    return move


@pytest.fixture
def text():
    return TokenSpace((Field("text", 12, 7),))


@pytest.fixture
def graph():
    return TokenSpace((Field("nodes", 4, 6, mask=4, pad=5), Field("edges", 6, 5, mask=3, pad=4)))


@pytest.fixture
def regions():
    return FeatureSpace(9, 5)
