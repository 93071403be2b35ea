"""Checks for what stands around the blocks: embeddings, positions, conditions, heads.

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
)
from ..situations import Situation
from .check import checks_of

__all__ = ["CHECKS"]


def _embedding(s: Situation) -> tuple[Any, State]:
    return perturb_parameters(s.build(), s.seed), random_state(s.space, s.clean.valid, s.seed)


def _told(s: Situation, rows: int) -> dict[str, Tensor]:
    """Return the conditions of the situation, or those of its first sample for another number of samples."""
    index = torch.arange(rows) if rows == len(s.clean.valid) else torch.zeros(rows, dtype=torch.int64)
    return {name: value[index] for name, value in s.clean.cond.items()}


def _embed(s: Situation, embedding: Any, state: State, start: int = 0) -> Float[Tensor, "B L D"]:
    """Return the embedded positions without those that the embedding puts in front."""
    h, extra = embedding(state, _told(s, len(state.x)), start)
    values: Tensor = h[:, extra:]
    return values


def embeds_each_position(s: Situation) -> None:
    """There is one finite vector per position, behind a fixed number of extra ones."""
    embedding, state = _embedding(s)
    h, extra = embedding(state, s.clean.cond, 0)
    assert isinstance(extra, int), f"extra is a {type(extra).__name__}, not an int"
    expected = (len(state.x), extra + state.x.shape[1], s.given[1])
    assert tuple(h.shape) == expected, f"{tuple(h.shape)} instead of {expected}"
    assert h.isfinite().all(), "values are not finite"


def embeds_every_id(s: Situation) -> None:
    """Every id of a field, MASK and PAD too, has a vector of its own."""
    embedding, _ = _embedding(s)
    sizes = s.space.table(lambda field: torch.tensor(field.size))
    x = torch.minimum(torch.arange(s.space.vocab)[:, None], sizes - 1).expand(-1, s.space.length)
    h = _embed(s, embedding, State.of(x.contiguous()))
    for position, size in enumerate(sizes.expand(s.space.length).tolist()):
        distances = torch.pdist(h[:size, position])
        assert size == 1 or distances.min() > 1e-6, f"two ids have one vector at position {position}"


def hidden_says_nothing(s: Situation) -> None:
    """What stands in x where it is hidden does not matter; that it is hidden does."""
    embedding, state = _embedding(s)
    shown = _embed(s, embedding, state)
    other = State(torch.where(state.masked, state.x + 1.0, state.x), state.masked)
    assert_close(_embed(s, embedding, other), shown, "a hidden value shows")
    seen = _embed(s, embedding, State.of(state.x))
    hidden = state.masked.any(-1)
    assert not hidden.any() or (seen != shown)[hidden].any(), "hidden and zero look the same"


def hidden_alike(s: Situation) -> None:
    """Positions of a sample that are hidden as a whole have one and the same vector, in training too."""
    embedding, state = _embedding(s)
    state = State(state.x, state.masked.index_fill(1, torch.tensor([0, state.x.shape[1] - 1]), True))
    for h, hidden in zip(_embed(s, embedding.train(), state), state.masked.all(-1), strict=True):
        assert_close(h[hidden], h[:1].expand_as(h[hidden]), "the vectors of two hidden positions")


def embeds_apart(s: Situation) -> None:
    """A change at one position shows at that position only."""
    embedding, state = _embedding(s)
    where = torch.zeros(state.x.shape[:2], dtype=torch.bool)
    where[0, 0] = True
    changed = _embed(s, embedding, State(change_values(s.space, state.x, where), torch.zeros_like(state.masked)))
    plain = _embed(s, embedding, State.of(state.x))
    assert_close(changed[~where], plain[~where], "a change at one position shows at another")


def pieces_equal_whole(s: Situation) -> None:
    """A sample embedded in two pieces is the sample embedded at once."""
    embedding, state = _embedding(s)
    cut = state.x.shape[1] // 2
    if not cut:
        raise NotApplicable("a single position cannot be cut")
    runs = ((0, cut), (cut, state.x.shape[1]))
    pieces = [_embed(s, embedding, State(state.x[:, a:b], state.masked[:, a:b]), a) for a, b in runs]
    assert_close(torch.cat(pieces, 1), _embed(s, embedding, state), "two pieces")


def positions_shape(s: Situation) -> None:
    """There is one finite vector per position, for one sample or for each."""
    p = perturb_parameters(s.build(), s.seed)(0, s.space.length, s.clean.cond)
    assert tuple(p.shape[1:]) == (s.space.length, s.given[1]), f"{tuple(p.shape)} for {s.space} and width {s.given[1]}"
    assert p.isfinite().all(), "values are not finite"


def positions_start(s: Situation) -> None:
    """Positions from a start on are those of the whole from there on."""
    position, length, cond = perturb_parameters(s.build(), s.seed), s.space.length, s.clean.cond
    whole = position(0, length, cond)
    for start in range(1, length):
        assert_close(position(start, length - start, cond), whole[:, start:], f"positions from {start} on")


def _condition(s: Situation) -> tuple[Any, Float[Tensor, " B"]]:
    return perturb_parameters(s.build(), s.seed), torch.tensor([0.0, 0.37, 1.0, 5.0, 999.0])


def condition_shape(s: Situation) -> None:
    """There is one finite vector per level, from no noise to the last index of a thousand, whatever else is told."""
    condition, level = _condition(s)
    nothing: dict[str, Tensor] = {}
    for cond in (nothing, s.clean.cond):
        c = condition(level, cond)
        told = f"{len(level)} levels, width {s.given[0]}, told {', '.join(cond) or 'nothing'}"
        assert tuple(c.shape) == (len(level), s.given[0]), f"{tuple(c.shape)} for {told}"
        assert c.isfinite().all(), "values are not finite"


def condition_per_position(s: Situation) -> None:
    """A level per position gives a vector per position, each as for a sample of that level."""
    condition, level = _condition(s)
    assert_close(condition(level[None].expand(2, -1), {})[1], condition(level, {}), "the same levels along positions")


def level_free(s: Situation) -> None:
    """The condition is the same at every level."""
    condition, level = _condition(s)
    assert_close(condition(level, s.clean.cond), condition(level.flip(0), s.clean.cond), "another level")


def constant(s: Situation) -> None:
    """The output is the same for any noise level and conditions, and there are no weights."""
    condition, level = _condition(s)
    assert not list(condition.parameters()), "there are weights"
    assert_equal(condition(level, s.clean.cond), condition(level.flip(0) + 1, {}), "the output varies")


def condition_left_out(s: Situation) -> None:
    """What training leaves out at times may be absent or -1 alike; `drop_conditions` does it for some samples."""
    condition, level = _condition(s)
    if not s.spec.dropped():
        raise NotApplicable("nothing is left out in training")
    for name in s.spec.dropped():
        cond = {name: torch.arange(len(level)) % 2}
        absent = condition(level, {})
        assert_close(condition(level, {name: torch.full_like(cond[name], -1)}), absent, f'"{name}" is absent, or -1')
        assert not torch.equal(condition(level, cond), absent), f'"{name}" makes no difference'
        many = {name: torch.ones(10_000, dtype=torch.int64)}
        left = condition.drop_conditions(many)[name]
        assert set(left.tolist()) <= {1, -1}, "a label is changed into another"
        assert 0 < (left < 0).sum() < len(left), "it is left out of no sample, or of all"
        assert bool((many[name] == 1).all()), "what is given is changed"


def head_shape(s: Situation) -> None:
    """There is a number per feature, or per id: finite inside the vocabulary of the field, -inf outside."""
    head, h = _head(s)
    out = head(h)
    if isinstance(s.space, TokenSpace):
        usable = s.space.usable().expand(*h.shape[:2], -1)
        assert out.shape == usable.shape, f"{tuple(out.shape)} instead of {tuple(usable.shape)}"
        assert out[usable].isfinite().all(), "the logit of an id is not finite"
        assert (out[~usable] == -torch.inf).all(), "an id outside the vocabulary of the field is not at -inf"
    else:
        assert tuple(out.shape) == (*h.shape[:2], s.space.width), f"{tuple(out.shape)} for {s.space}"
        assert out.isfinite().all(), "values are not finite"


def head_per_position(s: Situation) -> None:
    """A position is read by itself."""
    head, h = _head(s)
    other = h.clone()
    other[0, 0] += 1.0
    where = torch.ones(h.shape[:2], dtype=torch.bool)
    where[0, 0] = False
    assert_equal(torch.nan_to_num(head(other)[where]), torch.nan_to_num(head(h)[where]), "a change at one position")


def tables_of_ids(s: Situation) -> None:
    """There is a table for each field, with one row of the width of the model for each id."""
    found = [tuple(table.weight.shape) for table in s.build().tables]
    expected = [(field.size, s.given[1]) for field in s.space.fields]
    assert found == expected, f"tables of {found} instead of {expected}"


def maps_of_ids(s: Situation) -> None:
    """There is a map for each field, with one row of the width of the model for each id, and it is what reads."""
    head, h = _head(s)
    out, *_ = s.space.split(head(h)).values()
    own, *_ = s.space.split(h).values()
    found = [tuple(each.weight.shape) for each in head.maps]
    expected = [(field.size, s.given[1]) for field in s.space.fields]
    assert found == expected, f"maps of {found} instead of {expected}"
    assert_close(out[..., : expected[0][0]], head.maps[0](own), "what the head reads, and its map")


def gradients_reach_all(s: Situation) -> None:
    """Every weight takes part, with a finite gradient."""
    if s.spec.kind == "embedding":
        module, state = _embedding(s)
        out, _ = module(state, s.clean.cond, 0)
    elif s.spec.kind == "condition":
        module, level = _condition(s)
        out = module(level, {})
    else:
        module, h = _head(s)
        out = torch.nan_to_num(module(h), neginf=0.0)
    if not list(module.parameters()):
        raise NotApplicable("there are no weights")
    check_gradients(module, out)


def _head(s: Situation) -> tuple[Any, Float[Tensor, "B L D"]]:
    generator = torch.Generator().manual_seed(s.seed)
    return perturb_parameters(s.build(), s.seed), torch.randn(*s.clean.valid.shape, s.given[1], generator=generator)


CHECKS = (
    *checks_of("embedding", embeds_each_position, embeds_apart),
    *checks_of("embedding", pieces_equal_whole, needs="one-field"),
    *checks_of("embedding", embeds_every_id, needs="tokens"),
    *checks_of("embedding", hidden_says_nothing, needs="features"),
    *checks_of("embedding", hidden_alike, needs="alike"),
    *checks_of("position", positions_shape, positions_start),
    *checks_of("condition", condition_shape, condition_per_position, condition_left_out),
    *checks_of("condition", level_free, needs="level-free"),
    *checks_of("condition", constant, needs="constant"),
    *checks_of("embedding", tables_of_ids, needs="tables"),
    *checks_of("head", head_shape, head_per_position),
    *checks_of("head", maps_of_ids, needs="maps"),
    *(check for kind in ("embedding", "condition", "head") for check in checks_of(kind, gradients_reach_all)),
)
"""The checks for embeddings, positions, conditions and heads."""
