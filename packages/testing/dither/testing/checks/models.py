"""Checks for models. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry import Spec, TokenSpace
from dither.registry.contracts.records import Context, State

from ..check_utils import (
    NotApplicable,
    assert_close,
    assert_output,
    change_values,
    check_gradients,
    perturb_parameters,
    random_state,
    replace_infinite,
)
from ..situations import Situation, checks_of

__all__ = ["CHECKS", "check_cache"]


def _inputs(
    s: Situation,
) -> tuple[Any, State, Float[Tensor, " B"], Tensor, dict[str, Tensor]]:
    """Return a perturbed model, a state, a level per sample, the valid positions, and conditions."""
    state = random_state(s.space, s.clean.valid, s.seed)
    valid = s.clean.valid
    level = torch.rand(len(valid), generator=s.generator())
    return perturb_parameters(s.build(), s.seed), state, level, valid, s.clean.cond


def _run(model: Any, *inputs: Any, **options: Any) -> Tensor:
    return replace_infinite(model(*inputs, **options))


def raw_output(s: Situation) -> None:
    """The output has one finite value per feature, or per id and -inf outside the vocabulary of the field."""
    model, state, level, valid, cond = _inputs(s)
    assert_output(s.space, model(state, level, valid, cond), valid.shape)


def trunk_then_head(s: Situation) -> None:
    """The model is its head applied to its trunk."""
    model, *inputs = _inputs(s)
    composed = replace_infinite(model.head(model.trunk(*inputs)))
    assert_close(composed, _run(model, *inputs), "head(trunk(...))")


def rows_independent(s: Situation) -> None:
    """Samples of a batch do not influence each other."""
    model, state, level, valid, cond = _inputs(s)
    first = {name: value[:1] for name, value in cond.items()}
    alone = _run(model, state[:1], level[:1], valid[:1], first)

    # The second sample differs in everything: values, padding, level and conditions.
    other = change_values(s.space, state.x[:1], torch.ones_like(valid[:1]))
    pair = State(
        torch.cat([state.x[:1], other]), torch.cat([state.masked[:1], state.masked[:1]])
    )
    levels = torch.cat([level[:1], level[:1] + 1.0])
    valids = torch.cat([valid[:1], torch.ones_like(valid[:1])])
    conditions = {
        name: torch.cat([value[:1], value[-1:]]) for name, value in cond.items()
    }
    together = _run(model, pair, levels, valids, conditions)[:1]
    assert_close(together[valid[:1]], alone[valid[:1]], "a sample next to another")


def padding_inert(s: Situation) -> None:
    """Values of padding do not influence valid positions."""
    model, state, level, valid, cond = _inputs(s)
    if valid.all():
        raise NotApplicable("there is no padding")
    other = State(change_values(s.space, state.x, ~valid), state.masked)
    changed = dict(cond)
    for condition in s.space.conditions:
        # Conditions of whole samples have no padding.
        per_position = condition.size is None and condition.length is None
        if per_position and condition.name in cond:
            value = cond[condition.name]
            changed[condition.name] = torch.where(valid, value, value + 1000)
    out = _run(model, state, level, valid, cond)
    padded = _run(model, other, level, valid, changed)
    assert_close(padded[valid], out[valid], "other values of padding")


def level_per_position(s: Situation) -> None:
    """One level per sample equals the same level at each of its positions."""
    model, state, level, valid, cond = _inputs(s)
    out = _run(model, state, level, valid, cond)
    constant = _run(model, state, level[:, None].expand(valid.shape), valid, cond)
    assert_close(constant[valid], out[valid], "a constant level per position")


def state_matters(s: Situation) -> None:
    """The output depends on the state, and on the level unless a component ignores it."""
    model, state, level, valid, cond = _inputs(s)
    out = _run(model, state, level, valid, cond)
    # Without masks, which would hide the changed values.
    other = State.of(change_values(s.space, state.x, valid))
    changed = _run(model, other, level, valid, cond) != out
    assert changed[valid].any(), "the output does not depend on the state"

    # The model itself may ignore the level, or the condition in one of its slots.
    specs = [s.spec, *(value for _, value in s.spec if isinstance(value, Spec))]
    if not any("level-free" in spec.traits() for spec in specs):
        changed = _run(model, state, level + 1.0, valid, cond) != out
        assert changed[valid].any(), "the output does not depend on the level"


def level_free(s: Situation) -> None:
    """The output does not depend on the level."""
    model, state, level, valid, cond = _inputs(s)
    other = _run(model, state, level + 1.0, valid, cond)
    assert_close(other, _run(model, state, level, valid, cond), "another level")


def gradients_reach_all(s: Situation) -> None:
    """Every parameter affects the output, and gradients equal finite differences."""
    model, state, *inputs = _inputs(s)
    if state.x.is_floating_point():
        check_gradients(
            model, lambda x: _run(model, State(x, state.masked), *inputs), state.x
        )
        return
    # An embedding may mark the tokens that are not noisy.
    marked = replace(state, noisy=state.x % 2 == 0)
    check_gradients(model, lambda: _run(model, marked, *inputs))


def runs_on_meta(s: Situation) -> None:
    """On the meta device the model returns an output of the right shape."""
    _, state, level, valid, cond = _inputs(s)
    with torch.device("meta"):
        model = s.spec.build(*s.args)
        conditions = {name: value.to("meta") for name, value in cond.items()}
        try:
            out = model(
                state.to("meta"), level.to("meta"), valid.to("meta"), conditions
            )
        except (RuntimeError, NotImplementedError) as error:
            raise AssertionError(f"the model reads values: {error}") from None
    assert out.is_meta, f"the output is on {out.device}"
    last = s.space.vocab if isinstance(s.space, TokenSpace) else s.space.width
    expected = (*valid.shape, last)
    assert tuple(out.shape) == expected, (
        f"shape {tuple(out.shape)} on meta instead of {expected}"
    )


def cached_equals_full(s: Situation) -> None:
    """With block-causal attention, blocks with a cache equal the whole sample."""
    check_cache(s, perturb_parameters(s.build(), s.seed), s.spec.facts().block_size)


def check_cache(s: Situation, model: Any, size: int) -> None:
    """Compare a sample as a whole with its blocks after a cache."""
    # A single block never reads the cache.
    if size >= s.space.length:
        raise NotApplicable("the sample is not longer than a block")
    valid = torch.ones_like(s.clean.valid)
    state = random_state(s.space, valid, s.seed)
    level = torch.rand(len(valid), generator=s.generator())
    cond = s.clean.cond
    cache = model.new_cache()
    outputs = []
    with torch.no_grad():
        whole = _run(model, state, level, valid, cond)
        for part in _blocks(valid.shape[1], size):
            block = State(state.x[:, part], state.masked[:, part])
            outputs.append(_run(model, block, level, valid[:, part], cond, cache=cache))
            # Sampling runs a block many times before it keeps the finished one.
            model.trunk(block, level, valid[:, part], cond, cache=cache, keep=True)
    assert_close(torch.cat(outputs, 1), whole, "blocks with a cache")


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def context_equals_cache(s: Situation) -> None:
    """All blocks with a clean context equal single blocks with a cache of the clean ones."""
    model = perturb_parameters(s.build(), s.seed)
    size = s.spec.facts().block_size
    valid = torch.ones_like(s.clean.valid)
    cond = s.clean.cond
    noised = random_state(s.space, valid, s.seed).x
    clean = random_state(s.space, valid, s.seed + 1).x
    rows, length = valid.shape
    blocks = _blocks(length, size)
    levels = torch.rand(rows, len(blocks), generator=s.generator())
    per_position = levels.repeat_interleave(size, 1)[:, :length]
    # Finished blocks are clean.
    zero = torch.zeros(rows)
    cache = model.new_cache()
    outputs = []
    with torch.no_grad():
        context = Context(State.of(clean), zero)
        whole = _run(
            model, State.of(noised), per_position, valid, cond, context=context
        )
        for number, part in enumerate(blocks):
            block = State.of(noised[:, part])
            level = levels[:, number]
            outputs.append(_run(model, block, level, valid[:, part], cond, cache=cache))
            kept = State.of(clean[:, part])
            model.trunk(kept, zero, valid[:, part], cond, cache=cache, keep=True)
    assert_close(
        torch.cat(outputs, 1), whole, "blocks with a cache, compared with a context"
    )


CHECKS = (
    *checks_of(
        "model",
        raw_output,
        trunk_then_head,
        rows_independent,
        padding_inert,
        level_per_position,
        state_matters,
        gradients_reach_all,
    ),
    *checks_of("model", level_free, needs="level-free"),
    *checks_of("model", runs_on_meta, examples=3),
    *checks_of(
        "model",
        cached_equals_full,
        context_equals_cache,
        needs="block-causal tokens one-field",
    ),
)
