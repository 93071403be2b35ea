"""Checks for models. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry import Spec, TokenSpace
from dither.registry.flow.records import Context, State

from ..check_utils import (
    NotApplicable,
    assert_close,
    change_values,
    check_gradients,
    perturb_parameters,
    random_state,
)
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS", "pieces_behind_cache"]


def _inputs(s: Situation) -> tuple[Any, State, Float[Tensor, " B"], Tensor, dict[str, Tensor]]:
    """Return a model whose gates are open, a state, a level per sample, the valid positions, and conditions."""
    state, valid = random_state(s.space, s.clean.valid, s.seed), s.clean.valid
    level = torch.rand(len(valid), generator=torch.Generator().manual_seed(s.seed))
    return perturb_parameters(s.build(), s.seed), state, level, valid, s.clean.cond


def raw_output(s: Situation) -> None:
    """There is a number per id or feature, finite where the vocabulary of the field reaches, and -inf elsewhere."""
    model, state, level, valid, cond = _inputs(s)
    out = model(state, level, valid, cond)
    if isinstance(s.space, TokenSpace):
        usable = s.space.usable().expand(*valid.shape, -1)
        assert out.shape == usable.shape, f"{tuple(out.shape)} instead of {tuple(usable.shape)}"
        assert ((out == -torch.inf) == ~usable).all(), "-inf does not mark the ids outside the vocabulary"
        assert out[usable].isfinite().all(), "a logit is not finite"
    else:
        assert out.shape == state.x.shape, f"{tuple(out.shape)} instead of {tuple(state.x.shape)}"
        assert out.isfinite().all(), "values are not finite"


def head_of_trunk(s: Situation) -> None:
    """The head over the trunk is the model."""
    model, *inputs = _inputs(s)
    assert_close(_plain(model.head(model.trunk(*inputs))), _plain(model(*inputs)), "head(trunk(...))")


def rows_independent(s: Situation) -> None:
    """Samples of a batch do not see each other."""
    model, state, level, valid, cond = _inputs(s)
    first = {name: told[:1] for name, told in cond.items()}
    alone = model(state[:1], level[:1], valid[:1], first)
    other = state.apply(lambda tensor: tensor[:1])
    other = State(change_values(s.space, other.x, torch.ones_like(valid[:1])), other.masked)
    pair = State(torch.cat([state.x[:1], other.x]), torch.cat([state.masked[:1], other.masked]))
    two = {name: torch.cat([told[:1], told[-1:]]) for name, told in cond.items()}
    both = model(pair, torch.cat([level[:1], level[:1] + 1.0]), torch.cat([valid[:1], torch.ones_like(valid[:1])]), two)
    assert_close(_plain(both[:1]), _plain(alone), "a sample beside another")


def padding_inert(s: Situation) -> None:
    """What stands on padding does not matter to real positions."""
    model, state, level, valid, cond = _inputs(s)
    if valid.all():
        raise NotApplicable("nothing is padded")
    other = State(change_values(s.space, state.x, ~valid), state.masked)
    elsewhere = {name: _on(told, ~valid) for name, told in cond.items()}
    changed = model(other, level, valid, elsewhere)
    assert_close(_plain(changed[valid]), _plain(model(state, level, valid, cond)[valid]), "padding shows")


def level_per_position(s: Situation) -> None:
    """One level for a sample is the same as that level at each of its positions."""
    model, state, level, valid, cond = _inputs(s)
    each = level[:, None].expand(valid.shape)
    whole = model(state, level, valid, cond)
    assert_close(_plain(model(state, each, valid, cond)), _plain(whole), "a constant level per position")


def state_matters(s: Situation) -> None:
    """The output follows the state, and the level unless the model or its condition promises to be free of it."""
    model, state, level, valid, cond = _inputs(s)
    out = _plain(model(state, level, valid, cond))
    other = State(change_values(s.space, state.x, valid), torch.zeros_like(state.masked))
    assert (_plain(model(other, level, valid, cond)) != out)[valid].any(), "the model does not look at the state"
    changed = (_plain(model(state, level + 1.0, valid, cond)) != out)[valid].any()
    parts = (s.spec, *(value for _, value in s.spec if isinstance(value, Spec)))
    free = any("level-free" in part.traits() for part in parts)
    assert changed or free, "the model does not look at the level"


def level_free(s: Situation) -> None:
    """The output is the same at every level."""
    model, state, level, valid, cond = _inputs(s)
    assert_close(
        _plain(model(state, level + 1.0, valid, cond)), _plain(model(state, level, valid, cond)), "another level"
    )


def gradients_reach_all(s: Situation) -> None:
    """Every weight takes part, with a finite gradient."""
    model, *inputs = _inputs(s)
    check_gradients(model, _plain(model(*inputs)))


def runs_on_meta(s: Situation) -> None:
    """Under the meta device the model runs, and says the shape of its output without computing it."""
    _, state, level, valid, cond = _inputs(s)
    with torch.device("meta"):
        model = s.spec.build(*s.given)
        told = {name: value.to("meta") for name, value in cond.items()}
        inputs = (state.to("meta"), level.to("meta"), valid.to("meta"), told)
        try:
            out = model(*inputs)
        except (RuntimeError, NotImplementedError) as error:
            raise AssertionError(f"the model asks for values: {error}") from None
    expected = (*valid.shape, s.space.vocab if isinstance(s.space, TokenSpace) else s.space.width)
    assert out.is_meta, "the output is computed"
    assert tuple(out.shape) == expected, f"{tuple(out.shape)} on meta instead of {expected}"


def cached_equals_full(s: Situation) -> None:
    """Under block-causal attention, a sample in blocks behind a cache gives what the whole gives."""
    pieces_behind_cache(s, perturb_parameters(s.build(), s.seed), s.spec.facts().block_size)


def pieces_behind_cache(s: Situation, model: Any, size: int) -> None:
    """Compare a sample at once with the same block by block; samples of two blocks or more have something to say."""
    if size >= s.space.length:
        raise NotApplicable("the sample is no longer than a block")
    valid = torch.ones_like(s.clean.valid)
    state = random_state(s.space, valid, s.seed)
    level = torch.rand(len(valid), generator=torch.Generator().manual_seed(s.seed))
    cache, blocks, cond = model.new_cache(), [], s.clean.cond
    with torch.no_grad():
        whole = model(state, level, valid, cond)
        for start in range(0, valid.shape[1], size):
            stop = min(start + size, valid.shape[1])
            piece = State(state.x[:, start:stop], state.masked[:, start:stop])
            blocks.append(model(piece, level, valid[:, start:stop], cond, cache=cache))
            model.trunk(piece, level, valid[:, start:stop], cond, cache=cache, keep=True)
    assert_close(_plain(torch.cat(blocks, 1)), _plain(whole), "block by block behind a cache")


def context_equals_cache(s: Situation) -> None:
    """Every block behind the clean ones of a context, at once, is what it is behind a cache that remembers them."""
    model, size = perturb_parameters(s.build(), s.seed), s.spec.facts().block_size
    valid = torch.ones_like(s.clean.valid)
    noised, clean = (random_state(s.space, valid, seed).x for seed in (s.seed, s.seed + 1))
    rows, length = valid.shape
    each = torch.rand(rows, -(-length // size), generator=torch.Generator().manual_seed(s.seed))
    level, done = each.repeat_interleave(size, 1)[:, :length], torch.zeros(rows)
    cache, blocks, cond = model.new_cache(), [], s.clean.cond
    with torch.no_grad():
        whole = model(State.of(noised), level, valid, cond, context=Context(State.of(clean), done))
        for number, start in enumerate(range(0, length, size)):
            part = slice(start, min(start + size, length))
            blocks.append(model(State.of(noised[:, part]), each[:, number], valid[:, part], cond, cache=cache))
            model.trunk(State.of(clean[:, part]), done, valid[:, part], cond, cache=cache, keep=True)
    assert_close(_plain(torch.cat(blocks, 1)), _plain(whole), "block by block behind a cache, and all beside a context")


def _on(told: Tensor, where: Bool[Tensor, "B L"]) -> Tensor:
    """Change numbers per position at some positions; labels stay."""
    return told if told.ndim == 1 else told + 1000 * where


def _plain(out: Tensor) -> Tensor:
    """-inf marks ids that cannot be; as 0 it compares."""
    return out.masked_fill(out == -torch.inf, 0.0)


CHECKS = (
    *checks_of(
        "model",
        raw_output,
        head_of_trunk,
        rows_independent,
        padding_inert,
        level_per_position,
        state_matters,
        gradients_reach_all,
    ),
    *checks_of("model", level_free, needs="level-free"),
    *checks_of("model", runs_on_meta, examples=3),
    *checks_of("model", cached_equals_full, context_equals_cache, needs="block-causal tokens one-field"),
)
"""The checks for models."""
