"""Checks for blocks. Letters: B batch, L length, D width, C condition width."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..check_utils import NotApplicable, assert_close, check_gradients, perturb_parameters, seed_cpu
from ..situations import Situation
from .check import checks_of
from .models import check_cache

__all__ = ["CHECKS"]

BATCH, LENGTH = 2, 5


def _inputs(s: Situation) -> tuple[Any, Float[Tensor, "B L D"], Float[Tensor, "B C"]]:
    """Return a perturbed block, a sequence and a condition."""
    block = perturb_parameters(s.build(), s.seed)
    generator = torch.Generator().manual_seed(s.seed)
    width, cond = s.args
    x, c = torch.randn(BATCH, LENGTH, width, generator=generator), torch.randn(BATCH, cond, generator=generator)
    return block, x, c


def shape_and_range(s: Situation) -> None:
    """The output is finite, has the shape and dtype of the input, and differs from it."""
    block, x, c = _inputs(s)
    y = block(x, c)
    assert y.shape == x.shape, f"shape {tuple(y.shape)} instead of {tuple(x.shape)}"
    assert y.dtype == x.dtype, f"{y.dtype} instead of {x.dtype}"
    assert y.isfinite().all(), "values are not finite"
    assert not torch.equal(x, y), "the block is the identity for any weights"
    wide = block.double()(x.double(), c.double())
    assert wide.dtype == torch.float64, f"{wide.dtype} instead of float64"
    assert_close(wide.float(), y, "float64 compared with float32", atol=1e-3)


def identity_at_init(s: Situation) -> None:
    """A new block is the identity."""
    _, x, c = _inputs(s)
    assert_close(s.build()(x, c), x, "a new block", atol=1e-6)


def rows_independent(s: Situation) -> None:
    """Samples of a batch do not influence each other."""
    block, x, c = _inputs(s)
    other = torch.cat([x[:1], x[1:] + 1.0])
    assert_close(block(other, torch.cat([c[:1], c[1:] - 1.0]))[0], block(x, c)[0], "row 0 after a change of row 1")


def padding_inert(s: Situation) -> None:
    """Masked positions do not influence others."""
    block, x, c = _inputs(s)
    mask = (torch.arange(LENGTH) < LENGTH - 2)[None, None, None].expand(BATCH, 1, 1, LENGTH)
    other = torch.cat([x[:, :-2], x[:, -2:] + 1.0], 1)
    expected = block(x, c, mask=mask)[:, :-2]
    assert_close(block(other, c, mask=mask)[:, :-2], expected, "after a change of masked positions")


def condition_per_position(s: Situation) -> None:
    """One condition per sample equals the same condition at each of its positions."""
    block, x, c = _inputs(s)
    assert_close(block(x, c[:, None].expand(-1, LENGTH, -1)), block(x, c), "a constant condition per position")


def gradients_reach_all(s: Situation) -> None:
    """Every parameter affects the output and has a finite gradient."""
    block, x, c = _inputs(s)
    check_gradients(block, block(x, c))


def permutation_equivariant(s: Situation) -> None:
    """Permuting input, conditions and mask permutes the output."""
    block, x, c = _inputs(s)
    generator = torch.Generator().manual_seed(s.seed)
    order = torch.randperm(LENGTH, generator=generator)
    c = c[:, None] + torch.randn(BATCH, LENGTH, c.shape[-1], generator=generator)
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=generator) < 0.7
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    permuted = block(x[:, order], c[:, order], mask=mask[:, :, order][..., order])
    assert_close(permuted, block(x, c, mask=mask)[:, order], "permuted positions")


def weighted_equals_repeated(s: Situation) -> None:
    """A key with log n added to its logits counts as n keys, also in training; with -inf it does not count."""
    block, x, c = _inputs(s)
    number = torch.tensor([3, 1, 2, 1, 0])
    weight = number.log().expand(BATCH, 1, 1, LENGTH)
    for training in (False, True):
        seed_cpu(s.seed)  # draws per sample are allowed
        once = block.train(training)(x, c, mask=weight)
        seed_cpu(s.seed)
        repeated = block(x.repeat_interleave(number, 1), c)
        assert_close(once.repeat_interleave(number, 1), repeated, "weighted keys")


def distances_matter(s: Situation) -> None:
    """Only the distances between coordinates matter, not the order of positions or the origin."""
    block, x, c = _inputs(s)
    coordinates = torch.tensor([[0, 900, 4000, 70_000, 70_001], [5, 6, 300, 2000, 1_000_000]])
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(s.seed))
    y = block(x, c, positions=coordinates)
    assert_close(block(x, c, positions=coordinates + 123_456_789), y, "shifted coordinates")
    assert_close(block(x[:, order], c, positions=coordinates[:, order]), y[:, order], "permuted positions")
    other = coordinates.clone()
    other[:, -1] += 2500
    assert not torch.equal(block(x, c, positions=other), y), "the output does not depend on the coordinates"


def cached_equals_full(s: Situation) -> None:
    """In a block-causal model, blocks with a cache equal the whole sample."""
    if s.model is None:
        raise NotApplicable("no installed model takes a block and can be block-causal")
    check_cache(s, perturb_parameters(s.model.build(s.space).eval(), s.seed), s.model.facts().block_size)


def requested_equals_full(s: Situation) -> None:
    """Outputs and gradients at requested positions equal those without `requested`."""
    block, x, c = _inputs(s)
    requested = torch.tensor([[True, False, True, True, False], [False, True, False, False, True]])
    for condition in (c, c[:, None].expand(-1, LENGTH, -1)):
        full, part = (block(x, condition, **options) for options in ({}, {"requested": requested}))
        assert part.isfinite().all(), "values at other positions are not finite"
        assert_close(part[requested], full[requested], "requested positions")
        expected, actual = (torch.autograd.grad(y[requested].sum(), list(block.parameters())) for y in (full, part))
        for name, a, b in zip(dict(block.named_parameters()), actual, expected, strict=True):
            assert_close(a, b, f"gradient of {name}")


CHECKS = (
    *checks_of(
        "block", shape_and_range, rows_independent, padding_inert, condition_per_position, gradients_reach_all,
    ),
    *checks_of("block", identity_at_init, needs="zero-init"),
    *checks_of("block", permutation_equivariant, needs="equivariant"),
    *checks_of("block", requested_equals_full, needs="requested"),
    *checks_of("block", weighted_equals_repeated, needs="weighted-keys"),
    *checks_of("block", distances_matter, needs="positions"),
    *checks_of("block", cached_equals_full, needs="cache", place="in-model"),
)  # fmt: skip
"""Checks for blocks."""
