"""Small models by name, states to run them on, and weights away from their initial values."""

from __future__ import annotations

import pytest
import torch

from dither.registry import FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.contracts.records import State

SMALL = {"width": 16, "depth": 2, "block": {"use": "adaln-zero", "heads": 2}}


@pytest.fixture
def model_of():
    """Build a small denoiser for a space; `block` updates the options of the block."""

    def build(space, *, block=None, seed=0, device="cpu", **options):
        table = SMALL | options | {"block": {**SMALL["block"], **(block or {})}}
        if isinstance(space, FeatureSpace):
            table = {"embedding": "regions", "head": "features"} | table
        spec = default_catalog().parse(
            "model", {"use": "core-blocks/denoiser", **table}
        )
        assert not list(spec.check(space))
        torch.manual_seed(seed)
        with torch.device(device):
            return spec.build(space).eval()

    return build


@pytest.fixture
def opened():
    """Move every weight away from its initial value, so that gates and heads that start at zero take part."""

    def move(module, std=0.2):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(
                    torch.randn(weight.shape, generator=generator).to(weight.dtype),
                    alpha=std,
                )
        return module

    return move


@pytest.fixture
def state_of():
    """Random ids, or random features with a share of the positions masked."""

    def draw(space, rows=2, seed=0, ratio=0.5, dtype=torch.float32):
        generator = torch.Generator().manual_seed(seed)
        if isinstance(space, TokenSpace):
            sizes = space.table(lambda field: torch.tensor(field.size))
            return State.of(
                (torch.rand(rows, space.length, generator=generator) * sizes).long()
            )
        masked = (
            torch.rand(rows, space.length, 1, generator=generator) < ratio
        ).expand(-1, -1, space.width)
        x = torch.randn(masked.shape, dtype=dtype, generator=generator)
        return State(x.masked_fill(masked, 0.0), masked)

    return draw


@pytest.fixture
def text():
    return TokenSpace((Field("text", 12, 7),))


@pytest.fixture
def graph():
    return TokenSpace(
        (Field("nodes", 4, 6, mask=4, pad=5), Field("edges", 6, 5, mask=3, pad=4))
    )


@pytest.fixture
def regions():
    return FeatureSpace(9, 5)
