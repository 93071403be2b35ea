"""Checks for blocks. Letters: B batch, L length, D width, C condition width."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..check_utils import NotApplicable, assert_close, check_gradients, perturb_parameters, seed_cpu
from ..situations import Situation
from .check import checks_of
from .models import pieces_behind_cache

__all__ = ["CHECKS"]

BATCH, LENGTH = 2, 5


def _inputs(s: Situation) -> tuple[Any, Float[Tensor, "B L D"], Float[Tensor, "B C"]]:
    """Return a block whose gates are open, a sequence and a condition."""
    block = perturb_parameters(s.build(), s.seed)
    generator = torch.Generator().manual_seed(s.seed)
    width, cond = s.given
    return (
        block,
        torch.randn(BATCH, LENGTH, width, generator=generator),
        torch.randn(BATCH, cond, generator=generator),
    )


def shape_and_range(s: Situation) -> None:
    """The shape stays, values are finite, and an opened block changes what it is given."""
    block, x, c = _inputs(s)
    y = block(x, c)
    assert y.shape == x.shape, f"{tuple(x.shape)} became {tuple(y.shape)}"
    assert y.dtype == x.dtype, f"{x.dtype} became {y.dtype}"
    assert y.isfinite().all(), "values are not finite"
    assert not torch.equal(x, y), "the block changes nothing, whatever its weights"
    wide = block.double()(x.double(), c.double())
    assert wide.dtype == torch.float64, f"in float64 it gives {wide.dtype}"
    assert_close(wide.float(), y, "float64 beside float32", atol=1e-3)


def identity_at_init(s: Situation) -> None:
    """A block as it is built hands on what it is given."""
    _, x, c = _inputs(s)
    assert_close(s.build()(x, c), x, "a fresh block is not the identity", atol=1e-6)


def rows_independent(s: Situation) -> None:
    """Samples of a batch do not see each other."""
    block, x, c = _inputs(s)
    other = torch.cat([x[:1], x[1:] + 1.0])
    assert_close(block(other, torch.cat([c[:1], c[1:] - 1.0]))[0], block(x, c)[0], "a change in row 1 shows in row 0")


def padding_inert(s: Situation) -> None:
    """What the mask hides does not matter to the others."""
    block, x, c = _inputs(s)
    mask = (torch.arange(LENGTH) < LENGTH - 2)[None, None, None].expand(BATCH, 1, 1, LENGTH)
    other = torch.cat([x[:, :-2], x[:, -2:] + 1.0], 1)
    assert_close(
        block(other, c, mask=mask)[:, :-2], block(x, c, mask=mask)[:, :-2], "a masked position shows in others"
    )


def condition_per_position(s: Situation) -> None:
    """One condition for a sample is the same as that condition at each of its positions."""
    block, x, c = _inputs(s)
    assert_close(block(x, c[:, None].expand(-1, LENGTH, -1)), block(x, c), "a constant condition per position")


def gradients_reach_all(s: Situation) -> None:
    """Every weight has a finite gradient."""
    block, x, c = _inputs(s)
    check_gradients(block, block(x, c))


def permutation_equivariant(s: Situation) -> None:
    """What is permuted before the block is permuted behind it, conditions and mask along."""
    block, x, c = _inputs(s)
    generator = torch.Generator().manual_seed(s.seed)
    order = torch.randperm(LENGTH, generator=generator)
    c = c[:, None] + torch.randn(BATCH, LENGTH, c.shape[-1], generator=generator)
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=generator) < 0.7
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    permuted = block(x[:, order], c[:, order], mask=mask[:, :, order][..., order])
    assert_close(permuted, block(x, c, mask=mask)[:, order], "positions in another order")


def weighted_equals_repeated(s: Situation) -> None:
    """A key with log n added to its logits counts as n of them, in training too; with -inf added it does not count."""
    block, x, c = _inputs(s)
    number = torch.tensor([3, 1, 2, 1, 0])
    weight = number.log().expand(BATCH, 1, 1, LENGTH)
    for training in (False, True):
        seed_cpu(s.seed)  # what is drawn for whole samples may be
        once = block.train(training)(x, c, mask=weight)
        seed_cpu(s.seed)
        assert_close(
            once.repeat_interleave(number, 1), block(x.repeat_interleave(number, 1), c), "keys that count as several"
        )


def distances_matter(s: Situation) -> None:
    """Of where positions are said to lie, their distances matter, and nothing else: neither order nor start."""
    block, x, c = _inputs(s)
    places = torch.tensor([[0, 900, 4000, 70_000, 70_001], [5, 6, 300, 2000, 1_000_000]])
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(s.seed))
    y = block(x, c, positions=places)
    assert_close(block(x, c, positions=places + 123_456_789), y, "all positions moved along")
    assert_close(block(x[:, order], c, positions=places[:, order]), y[:, order], "positions in another order")
    far = places.clone()
    far[:, -1] += 2500
    assert not torch.equal(block(x, c, positions=far), y), "the block does not look at positions"


def cached_equals_full(s: Situation) -> None:
    """In a model whose attention is block-causal, a sample in pieces behind a cache gives what the whole gives."""
    if s.home is None:
        raise NotApplicable("no model is installed that takes a block and can be block-causal")
    pieces_behind_cache(s, perturb_parameters(s.home.build(s.space).eval(), s.seed), s.home.facts().block_size)


def asked_equals_full(s: Situation) -> None:
    """Where something is asked, the block does what it does without being told where, in values and in gradients."""
    block, x, c = _inputs(s)
    requested = torch.tensor([[True, False, True, True, False], [False, True, False, False, True]])
    for condition in (c, c[:, None].expand(-1, LENGTH, -1)):
        full, part = (block(x, condition, **told) for told in ({}, {"requested": requested}))
        assert part.isfinite().all(), "values are not finite where nothing is asked"
        assert_close(part[requested], full[requested], "what is asked comes out otherwise")
        ways = [torch.autograd.grad(y[requested].sum(), list(block.parameters())) for y in (full, part)]
        for name, one, other in zip(dict(block.named_parameters()), *ways, strict=True):
            assert_close(other, one, f"the gradient of {name} is another")


CHECKS = (
    *checks_of(
        "block",
        shape_and_range,
        rows_independent,
        padding_inert,
        condition_per_position,
        gradients_reach_all,
    ),
    *checks_of("block", identity_at_init, needs="zero-init"),
    *checks_of("block", permutation_equivariant, needs="equivariant"),
    *checks_of("block", asked_equals_full, needs="requested"),
    *checks_of("block", weighted_equals_repeated, needs="weighted-keys"),
    *checks_of("block", distances_matter, needs="positions"),
    *checks_of("block", cached_equals_full, needs="cache", place="home"),
)
"""The checks for blocks."""
