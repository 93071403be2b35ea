"""Checks for embeddings, positions, conditions and heads.

Letters: B batch, L length, M features, V vocabulary, D width, C condition width.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry import TokenSpace
from dither.registry.flow.records import State

from ..check_utils import (
    NotApplicable,
    assert_close,
    assert_equal,
    change_values,
    check_gradients,
    perturb_parameters,
    random_state,
    replace_infinite,
)
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS"]


def _embedding(s: Situation) -> tuple[Any, State]:
    return perturb_parameters(s.build(), s.seed), random_state(s.space, s.clean.valid, s.seed)


def _embed(s: Situation, embedding: Any, state: State, start: int = 0) -> Float[Tensor, "B L D"]:
    """Return the embedded positions without extra tokens; another number of samples gets the first's conditions."""
    rows = len(state.x)
    index = torch.arange(rows) if rows == len(s.clean.valid) else torch.zeros(rows, dtype=torch.int64)
    h, extra = embedding(state, {name: value[index] for name, value in s.clean.cond.items()}, start)
    values: Tensor = h[:, extra:]
    return values


def embeds_each_position(s: Situation) -> None:
    """The output has a finite vector per position after a fixed number of extra tokens."""
    embedding, state = _embedding(s)
    h, extra = embedding(state, s.clean.cond, 0)
    assert isinstance(extra, int), f"extra is a {type(extra).__name__}, not an int"
    expected = (len(state.x), extra + state.x.shape[1], s.args[1])
    assert tuple(h.shape) == expected, f"shape {tuple(h.shape)} instead of {expected}"
    assert h.isfinite().all(), "values are not finite"


def embeds_every_id(s: Situation) -> None:
    """All ids of a field, including MASK and PAD, have different vectors."""
    embedding, _ = _embedding(s)
    sizes = s.space.table(lambda field: torch.tensor(field.size))
    x = torch.minimum(torch.arange(s.space.vocab)[:, None], sizes - 1).expand(-1, s.space.length)
    h = _embed(s, embedding, State.of(x.contiguous()))
    for position, size in enumerate(sizes.expand(s.space.length).tolist()):
        distances = torch.pdist(h[:size, position])
        assert size == 1 or distances.min() > 1e-6, f"two ids have the same vector at position {position}"


def masked_values_ignored(s: Situation) -> None:
    """Masked values do not matter, but the mask does."""
    embedding, state = _embedding(s)
    h = _embed(s, embedding, state)
    other = State(torch.where(state.masked, state.x + 1.0, state.x), state.masked)
    assert_close(_embed(s, embedding, other), h, "other masked values")
    visible = _embed(s, embedding, State.of(state.x))
    masked = state.masked.any(-1)
    assert not masked.any() or (visible != h)[masked].any(), "masked values look like zeros"


def masked_positions_identical(s: Situation) -> None:
    """All fully masked positions of a sample have the same vector, also in training."""
    embedding, state = _embedding(s)
    state = State(state.x, state.masked.index_fill(1, torch.tensor([0, state.x.shape[1] - 1]), True))
    for h, masked in zip(_embed(s, embedding.train(), state), state.masked.all(-1), strict=True):
        assert_close(h[masked], h[:1].expand_as(h[masked]), "vectors of masked positions")


def positions_independent(s: Situation) -> None:
    """A position does not influence the vectors of others."""
    embedding, state = _embedding(s)
    where = torch.zeros(state.x.shape[:2], dtype=torch.bool)
    where[0, 0] = True
    changed = _embed(s, embedding, State.of(change_values(s.space, state.x, where)))
    h = _embed(s, embedding, State.of(state.x))
    assert_close(changed[~where], h[~where], "other positions after a change of one")


def pieces_equal_whole(s: Situation) -> None:
    """A sample embedded in two pieces equals the whole."""
    embedding, state = _embedding(s)
    cut = state.x.shape[1] // 2
    if not cut:
        raise NotApplicable("the sample has one position")
    parts = ((0, cut), (cut, state.x.shape[1]))
    pieces = [_embed(s, embedding, State(state.x[:, a:b], state.masked[:, a:b]), a) for a, b in parts]
    assert_close(torch.cat(pieces, 1), _embed(s, embedding, state), "two pieces")


def positions_shape(s: Situation) -> None:
    """The output has one finite vector per position, for all samples or for each."""
    p = perturb_parameters(s.build(), s.seed)(0, s.space.length, s.clean.cond)
    assert tuple(p.shape[1:]) == (s.space.length, s.args[1]), f"shape {tuple(p.shape)} for {s.space}, width {s.args[1]}"
    assert p.isfinite().all(), "values are not finite"


def positions_start(s: Situation) -> None:
    """Positions from a start on are a slice of all positions."""
    position, length, cond = perturb_parameters(s.build(), s.seed), s.space.length, s.clean.cond
    whole = position(0, length, cond)
    for start in range(1, length):
        assert_close(position(start, length - start, cond), whole[:, start:], f"positions from {start} on")


def _condition(s: Situation) -> tuple[Any, Float[Tensor, " B"]]:
    return perturb_parameters(s.build(), s.seed), torch.tensor([0.0, 0.37, 1.0, 5.0, 999.0])


def condition_shape(s: Situation) -> None:
    """The output has one finite vector per level, with or without conditions."""
    condition, level = _condition(s)
    empty: dict[str, Tensor] = {}
    for cond in (empty, s.clean.cond):
        c = condition(level, cond)
        what = f"{len(level)} levels, width {s.args[0]}, conditions {', '.join(cond) or 'none'}"
        assert tuple(c.shape) == (len(level), s.args[0]), f"shape {tuple(c.shape)} for {what}"
        assert c.isfinite().all(), "values are not finite"


def condition_per_position(s: Situation) -> None:
    """A level per position gives a vector per position, as for samples of that level."""
    condition, level = _condition(s)
    assert_close(condition(level[None].expand(2, -1), {})[1], condition(level, {}), "levels per position")


def level_free(s: Situation) -> None:
    """The output does not depend on the level."""
    condition, level = _condition(s)
    assert_close(condition(level, s.clean.cond), condition(level.flip(0), s.clean.cond), "another level")


def constant(s: Situation) -> None:
    """The output does not depend on level or conditions, and there are no parameters."""
    condition, level = _condition(s)
    assert not list(condition.parameters()), "there are parameters"
    assert_equal(condition(level, s.clean.cond), condition(level.flip(0) + 1, {}), "another level and no conditions")


def dropped_conditions(s: Situation) -> None:
    """`drop_conditions` sets the labels of random samples to -1, which equals a missing label."""
    condition, level = _condition(s)
    if not s.spec.dropped():
        raise NotApplicable("training drops no condition")
    for name in s.spec.dropped():
        cond = {name: torch.arange(len(level)) % 2}
        missing = condition(level, {})
        assert_close(condition(level, {name: torch.full_like(cond[name], -1)}), missing, f'"{name}" = -1')
        assert not torch.equal(condition(level, cond), missing), f'"{name}" does not matter'
        many = {name: torch.ones(10_000, dtype=torch.int64)}
        labels = condition.drop_conditions(many)[name]
        assert set(labels.tolist()) <= {1, -1}, "a label is changed to another"
        assert 0 < (labels < 0).sum() < len(labels), "the label is dropped for no sample, or for all"
        assert bool((many[name] == 1).all()), "drop_conditions modifies its input"


def _head(s: Situation) -> tuple[Any, Float[Tensor, "B L D"]]:
    generator = torch.Generator().manual_seed(s.seed)
    return perturb_parameters(s.build(), s.seed), torch.randn(*s.clean.valid.shape, s.args[1], generator=generator)


def head_shape(s: Situation) -> None:
    """The output has one finite value per feature, or per id and -inf outside the vocabulary of the field."""
    head, h = _head(s)
    out = head(h)
    if isinstance(s.space, TokenSpace):
        usable = s.space.usable().expand(*h.shape[:2], -1)
        assert out.shape == usable.shape, f"shape {tuple(out.shape)} instead of {tuple(usable.shape)}"
        assert out[usable].isfinite().all(), "a logit is not finite"
        assert (out[~usable] == -torch.inf).all(), "a logit outside the vocabulary of the field is not -inf"
    else:
        assert tuple(out.shape) == (*h.shape[:2], s.space.width), f"shape {tuple(out.shape)} for {s.space}"
        assert out.isfinite().all(), "values are not finite"


def head_per_position(s: Situation) -> None:
    """The output at a position depends on its vector only."""
    head, h = _head(s)
    other = h.clone()
    other[0, 0] += 1.0
    where = torch.ones(h.shape[:2], dtype=torch.bool)
    where[0, 0] = False
    out = replace_infinite(head(h))
    assert_equal(replace_infinite(head(other))[where], out[where], "other positions after a change of one")


def embedding_tables(s: Situation) -> None:
    """`tables` has one table per field, with a row of the model's width per id."""
    shapes = [tuple(table.weight.shape) for table in s.build().tables]
    expected = [(field.size, s.args[1]) for field in s.space.fields]
    assert shapes == expected, f"tables of shapes {shapes} instead of {expected}"


def head_weights(s: Situation) -> None:
    """`maps` has one linear layer per field, with a row of the model's width per id, which computes the logits."""
    head, h = _head(s)
    shapes = [tuple(layer.weight.shape) for layer in head.maps]
    expected = [(field.size, s.args[1]) for field in s.space.fields]
    assert shapes == expected, f"maps of shapes {shapes} instead of {expected}"
    logits, *_ = s.space.split(head(h)).values()
    inputs, *_ = s.space.split(h).values()
    assert_close(logits[..., : expected[0][0]], head.maps[0](inputs), "logits compared with the first map")


def gradients_reach_all(s: Situation) -> None:
    """Every parameter affects the output and has a finite gradient."""
    if s.spec.kind == "embedding":
        module, state = _embedding(s)
        out, _ = module(state, s.clean.cond, 0)
    elif s.spec.kind == "condition":
        module, level = _condition(s)
        out = module(level, {})
    else:
        module, h = _head(s)
        out = replace_infinite(module(h))
    check_gradients(module, out)


CHECKS = (
    *checks_of("embedding", embeds_each_position, positions_independent),
    *checks_of("embedding", pieces_equal_whole, needs="one-field"),
    *checks_of("embedding", embeds_every_id, needs="tokens"),
    *checks_of("embedding", masked_values_ignored, needs="features"),
    *checks_of("embedding", masked_positions_identical, needs="identical-masked"),
    *checks_of("embedding", embedding_tables, needs="tables"),
    *checks_of("position", positions_shape, positions_start),
    *checks_of("condition", condition_shape, condition_per_position, dropped_conditions),
    *checks_of("condition", level_free, needs="level-free"),
    *checks_of("condition", constant, needs="constant"),
    *checks_of("head", head_shape, head_per_position),
    *checks_of("head", head_weights, needs="maps"),
    *(check for kind in ("embedding", "condition", "head") for check in checks_of(kind, gradients_reach_all)),
)
"""Checks for embeddings, positions, conditions and heads."""
