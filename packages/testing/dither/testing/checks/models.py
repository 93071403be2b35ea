"""Checks for models. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry import Spec, TokenSpace
from dither.registry.contracts.protocols import FinishesPositions
from dither.registry.contracts.records import Context, State

from ..check_utils import (
    NotApplicable,
    assert_close,
    assert_distinct,
    assert_output,
    assert_rows_independent,
    at_positions,
    change_values,
    check_bfloat16,
    check_gradients,
    one_value_each,
    random_state,
    replace_infinite,
)
from ..situations import Situation, checks_of

__all__ = ["CHECKS", "check_cache"]


CACHED_ERROR = 2e-3
"""Rounding of a wide model, whose sums are in another order with a cache."""


class _Inputs(NamedTuple):
    """The arguments of a model."""

    state: State
    level: Float[Tensor, " B"]
    valid: Bool[Tensor, "B L"]
    cond: dict[str, Tensor]


def _perturbed(s: Situation) -> tuple[Any, _Inputs]:
    """Return a perturbed model, and its arguments with a level per sample."""
    valid = s.clean.valid
    level = torch.rand(len(valid), generator=s.generator())
    state = s.random_state()
    if s.spec.facts().self_conditioning:
        width = s.space.vocab if isinstance(s.space, TokenSpace) else s.space.width
        previous = torch.rand(*valid.shape, width, generator=s.generator())
        state = replace(state, previous=previous)
    inputs = _Inputs(state=state, level=level, valid=valid, cond=s.clean.cond)
    return s.build_perturbed(), inputs


def _run(model: Any, inputs: Any, **options: Any) -> Tensor:
    return replace_infinite(model(*inputs, **options))


def raw_output(s: Situation) -> None:
    """The output has one finite value per feature, or per id and -inf outside the vocabulary of the field."""
    model, inputs = _perturbed(s)
    assert_output(s.space, model(*inputs), inputs.valid.shape)


def trunk_then_head(s: Situation) -> None:
    """The model is its head applied to its trunk."""
    model, inputs = _perturbed(s)
    hidden = model.trunk(*inputs)
    composed = replace_infinite(model.head(hidden))
    whole = _run(model, inputs)
    assert_close(composed, whole, "head(trunk(...))")


def rows_independent(s: Situation) -> None:
    """Samples of a batch do not influence each other, however many they are."""
    model, inputs = _perturbed(s)
    # The other samples differ in everything: values, padding, level and conditions.
    everywhere = torch.ones_like(inputs.valid)
    changed = change_values(s.space, inputs.state.x, everywhere)
    others = _Inputs(
        state=State(changed, inputs.state.masked),
        level=inputs.level + 1.0,
        valid=everywhere,
        cond={name: value.flip(0) for name, value in inputs.cond.items()},
    )
    batch = _joined(inputs, others)

    def run(rows: slice) -> Tensor:
        part = _Inputs(
            state=batch.state[rows],
            level=batch.level[rows],
            valid=batch.valid[rows],
            cond={name: value[rows] for name, value in batch.cond.items()},
        )
        # The output at padding may be anything.
        return _run(model, part).masked_fill(~part.valid[..., None], 0.0)

    assert_rows_independent(run, len(batch.valid))


def _joined(first: _Inputs, second: _Inputs) -> _Inputs:
    """Return one batch of two."""
    x = torch.cat([first.state.x, second.state.x])
    masked = torch.cat([first.state.masked, second.state.masked])
    cond = {}
    for name, value in first.cond.items():
        cond[name] = torch.cat([value, second.cond[name]])
    return _Inputs(
        state=State(x, masked),
        level=torch.cat([first.level, second.level]),
        valid=torch.cat([first.valid, second.valid]),
        cond=cond,
    )


def padding_inert(s: Situation) -> None:
    """Values of padding do not influence valid positions."""
    model, inputs = _perturbed(s)
    valid = inputs.valid
    if valid.all():
        raise NotApplicable("there is no padding")
    x = change_values(s.space, inputs.state.x, ~valid)
    cond = dict(inputs.cond)
    for condition in s.space.conditions:
        name = condition.name
        # Conditions of whole samples have no padding.
        if condition.per_position and name in cond:
            cond[name] = torch.where(valid, cond[name], cond[name] + 1000)
    state = replace(inputs.state, x=x)
    other = inputs._replace(state=state, cond=cond)
    out = _run(model, inputs)
    changed = _run(model, other)
    assert_close(changed[valid], out[valid], "other values of padding")


def level_per_position(s: Situation) -> None:
    """One level per sample equals the same level at each of its positions."""
    model, inputs = _perturbed(s)
    valid = inputs.valid
    levels = inputs.level[:, None].expand(valid.shape)
    out = _run(model, inputs)
    per_position = inputs._replace(level=levels)
    constant = _run(model, per_position)
    assert_close(constant[valid], out[valid], "a constant level per position")


def state_matters(s: Situation) -> None:
    """The output depends on every id or feature, and on the level unless a component ignores it."""
    model, inputs = _perturbed(s)
    valid = inputs.valid
    # An autoregressive model reads the first id in the outputs after it.
    place = 0 if s.spec.facts().reads_noised else 1
    if valid[0].sum() <= place:
        raise NotApplicable("no output follows the first id")
    out = _run(model, inputs)
    # Without masks, which would hide the changed values.
    x = change_values(s.space, inputs.state.x, valid)
    state = replace(State.of(x), previous=inputs.state.previous)
    changed = _run(model, inputs._replace(state=state)) != out
    assert changed[valid].any(), "the output does not depend on the state"
    copies = one_value_each(s.space, x[0])
    count = len(copies)
    outputs = _run(
        model,
        _Inputs(
            state=State.of(copies),
            level=inputs.level[:1].repeat(count),
            valid=valid[:1].repeat(count, 1),
            cond={
                name: value[:1].repeat_interleave(count, 0)
                for name, value in inputs.cond.items()
            },
        ),
    )
    assert_distinct(outputs[:, place], "samples that differ in one id or feature")

    # The model itself may ignore the level, or the condition in one of its slots.
    specs = [s.spec]
    for _, value in s.spec:
        if isinstance(value, Spec):
            specs.append(value)
    if not any("level-free" in spec.traits() for spec in specs):
        other = inputs._replace(level=inputs.level + 1.0)
        changed = _run(model, other) != out
        assert changed[valid].any(), "the output does not depend on the level"


def close_in_bfloat16(s: Situation) -> None:
    """In bfloat16 the output is that in float32, up to rounding."""
    model, inputs = _perturbed(s)
    padding = ~inputs.valid[..., None]

    def run(*features: Tensor) -> Tensor:
        state = inputs.state
        if features:
            state = replace(state, x=features[0])
        return _run(model, inputs._replace(state=state)).masked_fill(padding, 0.0)

    x = inputs.state.x
    check_bfloat16(model, run, *([x] if x.is_floating_point() else []))


def level_free(s: Situation) -> None:
    """The output does not depend on the level."""
    model, inputs = _perturbed(s)
    other = inputs._replace(level=inputs.level + 1.0)
    changed = _run(model, other)
    assert_close(changed, _run(model, inputs), "another level")


def gradients_reach_all(s: Situation) -> None:
    """Every parameter affects the output, and gradients equal finite differences."""
    model, inputs = _perturbed(s)
    state = inputs.state
    if state.x.is_floating_point():

        def run(x: Tensor) -> Tensor:
            return _run(model, inputs._replace(state=replace(state, x=x)))

        check_gradients(model, run, state.x)
        return
    # An embedding may mark the tokens that are not noisy.
    even = state.x % 2 == 0
    marked = inputs._replace(state=replace(state, noisy=even))
    check_gradients(model, lambda: _run(model, marked))


def runs_on_meta(s: Situation) -> None:
    """On the meta device the model returns an output of the right shape."""
    _, inputs = _perturbed(s)
    arguments = [part.to("meta") for part in inputs[:3]]
    conditions = {name: value.to("meta") for name, value in inputs.cond.items()}
    with torch.device("meta"):
        model = s.spec.build(*s.args)
        try:
            out = model(*arguments, conditions)
        except (RuntimeError, NotImplementedError) as error:
            raise AssertionError(f"the model reads values: {error}") from None
    assert out.is_meta, f"the output is on {out.device}"
    last = s.space.vocab if isinstance(s.space, TokenSpace) else s.space.raw_width
    expected = (*inputs.valid.shape, last)
    shape = tuple(out.shape)
    assert shape == expected, f"shape {shape} on meta instead of {expected}"


def cached_equals_full(s: Situation) -> None:
    """With block-causal attention, blocks with a cache equal the whole sample."""
    check_cache(s, s.build_perturbed(), s.spec.facts().block_size)


def check_cache(s: Situation, model: Any, size: int) -> None:
    """Compare a sample as a whole with its blocks after a cache."""
    _require_blocks(s, size)
    valid = torch.ones_like(s.clean.valid)
    state = random_state(s.space, valid, s.seed)
    level = torch.rand(len(valid), generator=s.generator())
    cache = model.new_cache()
    outputs = []
    with torch.no_grad():
        whole = _run(model, (state, level, valid, s.clean.cond))
        for part in _blocks(valid.shape[1], size):
            block = at_positions(state, part)
            inputs = (block, level, valid[:, part], s.clean.cond)
            outputs.append(_run(model, inputs, cache=cache))
            # Sampling runs a block many times before it keeps the finished one.
            model.trunk(*inputs, cache=cache, keep=True)
    assert_close(torch.cat(outputs, 1), whole, "blocks with a cache", CACHED_ERROR)


def _require_blocks(s: Situation, size: int) -> None:
    # A single block has no earlier one to attend to.
    if size >= s.space.length:
        raise NotApplicable("the sample is not longer than a block")


def _blocks(length: int, size: int) -> list[slice]:
    starts = range(0, length, size)
    return [slice(start, min(start + size, length)) for start in starts]


def context_equals_cache(s: Situation) -> None:
    """All blocks with a clean context equal single blocks with a cache of the clean ones."""
    size = s.spec.facts().block_size
    _require_blocks(s, size)
    model = s.build_perturbed()
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
        inputs = (State.of(noised), per_position, valid, cond)
        whole = _run(model, inputs, context=context)
        for part, level in zip(blocks, levels.T, strict=True):
            inputs = (State.of(noised[:, part]), level, valid[:, part], cond)
            outputs.append(_run(model, inputs, cache=cache))
            # The next block attends to this one as it is in the data.
            finished = _Inputs(State.of(clean[:, part]), zero, valid[:, part], cond)
            _finish(model, finished, cache)
    what = "blocks with a cache, compared with a context"
    assert_close(torch.cat(outputs, 1), whole, what, CACHED_ERROR)


def _finish(model: Any, block: _Inputs, cache: Any) -> None:
    """Add a finished block to the cache as sampling does, without a call where that is possible."""
    finished = isinstance(model, FinishesPositions) and model.finish(
        block.state.x, block.valid, cache
    )
    if not finished:
        model.trunk(*block, cache=cache, keep=True)


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
    *checks_of("model", runs_on_meta, close_in_bfloat16, examples=3),
    *checks_of(
        "model",
        cached_equals_full,
        context_equals_cache,
        needs="block-causal tokens one-field",
        place="text-model",
    ),
)
