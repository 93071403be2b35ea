"""Checks for blocks, embeddings, positions, conditions and heads.

Letters: B batch, L length, M features, V vocabulary, D width, C condition width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import TokenSpace

from ..check_utils import (
    NotApplicable,
    as_double,
    assert_close,
    assert_distinct,
    assert_equal,
    assert_output,
    assert_rows_independent,
    at_positions,
    change_values,
    check_bfloat16,
    check_gradients,
    one_value_each,
    perturb_parameters,
    replace_infinite,
    seed_cpu,
)
from ..situations import Situation, checks_of
from .models import check_cache

__all__ = ["CHECKS"]

_Hidden = Float[Tensor, "B L D"]

BATCH = 2
LARGE_BATCH = 12
LENGTH = 5
LONG = 300
"""Positions of an input for which a block may choose another kernel."""
DISTANCES = (1, 8, 16, 32, 64, 100, 128, 256)
"""Distances between positions, the first of which every order must show; positions may repeat after
one of the others."""


def _embedding(s: Situation) -> tuple[Any, State]:
    return s.build_perturbed(), s.random_state()


def _embed(
    s: Situation,
    embedding: Any,
    state: State,
    start: int = 0,
) -> _Hidden:
    """Return the embedded positions without extra tokens."""
    cond = s.clean.cond
    # A state of another number of samples gets the conditions of the first.
    if len(state.x) != len(s.clean.valid):
        first = torch.zeros(len(state.x), dtype=torch.int64)
        cond = {name: value[first] for name, value in cond.items()}
    h, extra = embedding(state, cond, start)
    values: Tensor = h[:, extra:]
    return values


def embeds_each_position(s: Situation) -> None:
    """The output has a finite vector per position after a fixed number of extra tokens."""
    embedding, state = _embedding(s)
    h, extra = embedding(state, s.clean.cond, 0)
    assert isinstance(extra, int), f"extra is a {type(extra).__name__}, not an int"
    rows, length = state.x.shape[:2]
    expected = (rows, extra + length, s.args[1])
    shape = tuple(h.shape)
    assert shape == expected, f"shape {shape} instead of {expected}"
    assert h.isfinite().all(), "values are not finite"


def labels_unread(s: Situation) -> None:
    """Labels and numbers of samples do not matter if `reads_labels` is false."""
    if s.spec.reads_labels:
        raise NotApplicable("the component may read labels")
    embedding, state = _embedding(s)
    cond = s.clean.cond
    others = dict(cond)
    for condition in s.space.conditions:
        if condition.size is not None or condition.number is not None:
            others.pop(condition.name, None)
    h, _ = embedding(state, cond, 0)
    without, _ = embedding(state, others, 0)
    assert_equal(without, h, "without labels")


def embeds_every_id(s: Situation) -> None:
    """All ids of a field, including MASK and PAD, have different vectors."""
    embedding, _ = _embedding(s)
    length = s.space.length
    sizes = s.space.table(lambda field: torch.tensor(field.size))
    # Sample n has id n at each position, or the last one of its field.
    ids = torch.arange(s.space.vocab)[:, None]
    x = torch.minimum(ids, sizes - 1)
    x = x.expand(-1, length).contiguous()
    h = _embed(s, embedding, State.of(x))
    for position, size in enumerate(sizes.expand(length).tolist()):
        assert_distinct(h[:size, position], f"ids at position {position}")


def masked_values_ignored(s: Situation) -> None:
    """Masked values do not matter, every visible one does; so does the mask, unless none is read."""
    embedding, state = _embedding(s)
    h = _embed(s, embedding, state)
    changed = state.x + 1.0
    x = torch.where(state.masked, changed, state.x)
    other = _embed(s, embedding, State(x, state.masked))
    assert_close(other, h, "other masked values")

    visible = _embed(s, embedding, State.of(state.x))
    masked = state.masked.any(-1)
    if masked.any() and "unmarked-masks" not in s.spec.traits():
        differs = (visible != h)[masked]
        assert differs.any(), "masked values look like zeros"
    copies = one_value_each(s.space, state.x[0])
    vectors = _embed(s, embedding, State.of(copies))[:, 0]
    assert_distinct(vectors, "samples that differ in one feature of a position")


def masked_values_are_zeros(s: Situation) -> None:
    """Masked values look like zeros."""
    embedding, state = _embedding(s)
    zeros = State.of(state.x.masked_fill(state.masked, 0.0))
    h = _embed(s, embedding, state)
    assert_close(_embed(s, embedding, zeros), h, "zeros instead of masked values")


def masked_positions_identical(s: Situation) -> None:
    """All fully masked positions of a sample have the same vector, also in training."""
    embedding, state = _embedding(s)
    # At least two masked positions, as far apart as possible.
    masked = state.masked.clone()
    masked[:, [0, -1]] = True
    h = _embed(s, embedding.train(), State(state.x, masked))
    for vectors, where in zip(h, masked.all(-1), strict=True):
        of_masked = vectors[where]
        first = vectors[:1].expand_as(of_masked)
        assert_close(of_masked, first, "vectors of masked positions")


def known_tokens_marked(s: Situation) -> None:
    """One vector is added to known tokens; if all are noisy, or nothing is said, there is none."""
    embedding, state = _embedding(s)
    noisy = torch.rand(state.x.shape) < 0.5
    # At least one known token.
    noisy.view(-1)[0] = False
    everything = torch.ones_like(noisy)
    plain = _embed(s, embedding, state)
    all_noisy = _embed(s, embedding, replace(state, noisy=everything))
    marked = _embed(s, embedding, replace(state, noisy=noisy))
    assert torch.equal(plain, all_noisy), "noisy tokens are marked"
    assert torch.equal(marked[noisy], plain[noisy]), "noisy tokens are marked"
    added = (marked - plain)[~noisy]
    first = added[:1].expand_as(added)
    assert_close(added, first, "vectors of known tokens")
    assert bool(added.any()), "known tokens are not marked"


def positions_interchangeable(s: Situation) -> None:
    """Permuting the positions of each field permutes the output."""
    embedding, state = _embedding(s)
    order = _permutation(s)
    permuted = state.apply(lambda value: value[:, order])
    expected = _embed(s, embedding, state)[:, order]
    assert_close(_embed(s, embedding, permuted), expected, "permuted positions")


def _permutation(s: Situation) -> Int[Tensor, " L"]:
    """Return an order of the positions that keeps each in its field."""
    lengths = [s.space.length]
    if isinstance(s.space, TokenSpace):
        lengths = [field.length for field in s.space.fields]
    start = 0
    orders = []
    for length in lengths:
        orders.append(start + torch.randperm(length, generator=s.generator()))
        start += length
    return torch.cat(orders)


def positions_equal(s: Situation) -> None:
    """All positions have one vector."""
    position = perturb_parameters(s.build(), s.seed)
    vectors = position(0, s.space.length, s.clean.cond)
    first = vectors[:, :1].expand_as(vectors)
    assert_equal(vectors, first, "the vectors of positions")


def condition_without_positions(s: Situation) -> None:
    """A level per sample gives one vector per sample."""
    module, level = _condition(s)
    output = module(level, _cond(s, len(level)))
    assert output.ndim == 2, f"shape {tuple(output.shape)} has a vector per position"


def positions_independent(s: Situation) -> None:
    """A position does not influence the vectors of others."""
    embedding, state = _embedding(s)
    where = torch.zeros(state.x.shape[:2], dtype=torch.bool)
    where[0, 0] = True
    x = change_values(s.space, state.x, where)
    changed = _embed(s, embedding, State.of(x))
    h = _embed(s, embedding, State.of(state.x))
    assert_close(changed[~where], h[~where], "other positions after a change of one")


def pieces_equal_whole(s: Situation) -> None:
    """A sample embedded in two pieces equals the whole."""
    embedding, state = _embedding(s)
    length = state.x.shape[1]
    if length < 2:
        raise NotApplicable("the sample has one position")
    cut = length // 2
    pieces = []
    for part in (slice(0, cut), slice(cut, length)):
        piece = at_positions(state, part)
        pieces.append(_embed(s, embedding, piece, start=part.start))
    whole = _embed(s, embedding, state)
    assert_close(torch.cat(pieces, 1), whole, "two pieces")


def positions_differ(s: Situation) -> None:
    """All positions of a sample have different vectors."""
    length = s.space.length
    steps = torch.arange(length)[None]
    cond = {}
    for condition in s.space.conditions:
        if condition.per_position:
            # Coordinates far apart, of which none is that of padding.
            cond[condition.name] = 977 * steps
    vectors = s.build_perturbed()(0, length, cond)
    if "position-free" in s.spec.traits():
        raise NotApplicable("all positions have the same vector")
    assert_distinct(vectors[0], f"of {length} positions")


def positions_shape(s: Situation) -> None:
    """The output has one finite vector per position, for all samples or for each."""
    length = s.space.length
    width = s.args[1]
    p = s.build_perturbed()(0, length, s.clean.cond)
    shape = tuple(p.shape)
    assert shape[1:] == (length, width), f"{shape} for {s.space}, width {width}"
    assert p.isfinite().all(), "values are not finite"


def positions_start(s: Situation) -> None:
    """Positions from a start on are a slice of all positions."""
    position = s.build_perturbed()
    length = s.space.length
    whole = position(0, length, s.clean.cond)
    for start in range(1, length):
        rest = position(start, length - start, s.clean.cond)
        assert_close(rest, whole[:, start:], f"positions from {start} on")


def _condition(s: Situation) -> tuple[Any, Float[Tensor, " B"]]:
    # Levels are times, log-SNRs or steps of a thousand, so any number must do.
    level = torch.tensor([0.0, 0.37, 1.0, 5.0, 999.0])
    repeats = len(s.clean.valid) // len(level)
    return s.build_perturbed(), level.repeat(repeats)


def condition_shape(s: Situation) -> None:
    """The output has one finite vector per level, with or without conditions."""
    condition, level = _condition(s)
    expected = (len(level), s.args[0])
    empty: dict[str, Tensor] = {}
    for cond in (empty, s.clean.cond):
        c = condition(level, cond)
        names = ", ".join(cond) or "none"
        assert tuple(c.shape) == expected, (
            f"{tuple(c.shape)}, not {expected}; conditions {names}"
        )
        assert c.isfinite().all(), "values are not finite"


def condition_per_position(s: Situation) -> None:
    """One condition or level per sample equals the same at each of its positions."""
    if s.spec.kind == "block":
        block, x, c = _block(s)
        per_position = c[:, None].expand(-1, LENGTH, -1)
        constant = block(x, per_position)
        assert_close(constant, block(x, c), "a constant condition per position")
    else:
        condition, level = _condition(s)
        two_rows = level[None].expand(2, -1)
        per_position = condition(two_rows, {})
        expected = condition(level, {})
        assert_close(per_position[1], expected, "levels per position")


def levels_differ(s: Situation) -> None:
    """Levels that differ by 0.001 have different vectors, unless the condition ignores them."""
    if not {"level-free", "constant"}.isdisjoint(s.spec.traits()):
        raise NotApplicable("the condition ignores the level")
    condition, _ = _condition(s)
    # float64, so that close levels are not equal by rounding.
    levels = torch.linspace(0, 1, 1001, dtype=torch.float64)
    vectors = condition.double()(levels, {})
    # Vectors that differ by rounding count as equal.
    different = len(vectors.round(decimals=9).unique(dim=0))
    assert different == len(levels), (
        f"{len(levels)} levels have {different} different vectors"
    )


def level_free(s: Situation) -> None:
    """The output does not depend on the level."""
    condition, level = _condition(s)
    cond = s.clean.cond
    first = condition(level, cond)
    other = condition(level.flip(0), cond)
    assert_close(first, other, "another level")


def constant(s: Situation) -> None:
    """The output does not depend on level or conditions, and there are no parameters."""
    condition, level = _condition(s)
    assert not list(condition.parameters()), "there are parameters"
    first = condition(level, s.clean.cond)
    other = condition(level.flip(0) + 1, {})
    assert_equal(first, other, "another level and no conditions")


def conditions_read(s: Situation) -> None:
    """Conditions other than those that `reads` returns do not matter, and those do."""
    condition, level = _condition(s)
    names = s.spec.reads()
    if names is None:
        raise NotApplicable("the component does not say which conditions it reads")
    cond = _cond(s, len(level))
    output = condition(level, cond)
    read = {name: cond[name] for name in names}
    assert_equal(condition(level, read), output, "without the conditions not read")
    for name in names:
        without = {other: cond[other] for other in read if other != name}
        assert not torch.equal(condition(level, without), output), (
            f'"{name}" does not matter'
        )


def dropped_conditions(s: Situation) -> None:
    """`drop_conditions` sets labels of random samples to -1, and numbers to NaN, which equals a missing one."""
    condition, level = _condition(s)
    if not s.spec.dropped():
        raise NotApplicable("training drops no condition")
    missing = condition(level, {})
    for name in s.spec.dropped():
        labels = _cond(s, len(level))[name]
        fill = float("nan") if labels.is_floating_point() else -1
        absent = torch.full_like(labels, fill)
        unknown = condition(level, {name: absent})
        assert_close(unknown, missing, f'"{name}" = {fill}')
        with_labels = condition(level, {name: labels})
        assert not torch.equal(with_labels, missing), f'"{name}" does not matter'

        # So many that a share of .001 to .999 is dropped for some and not for all.
        many = torch.ones_like(_cond(s, 10_000)[name])
        dropped = condition.drop_conditions({name: many})[name].nan_to_num(-1)
        values = set(dropped.flatten().tolist())
        assert values <= {1, -1}, "a label is changed to another"
        count = int((dropped < 0).sum())
        assert 0 < count < dropped.numel(), (
            "the label is dropped for no sample, or for all"
        )
        assert bool((many == 1).all()), "drop_conditions modifies its input"


def _cond(s: Situation, rows: int) -> dict[str, Tensor]:
    """Return small integers for every condition of the space."""
    cond = {}
    for condition in s.space.conditions:
        shape = condition.shape(rows, s.space.length)
        # 0 and 1, with a period that is not that of a row.
        labels = (torch.arange(math.prod(shape)) % 7 % 2).view(shape)
        cond[condition.name] = labels if condition.number is None else labels.float()
    return cond


def _head(s: Situation) -> tuple[Any, _Hidden]:
    shape = (*s.clean.valid.shape, s.args[1])
    h = torch.randn(shape, generator=s.generator())
    return s.build_perturbed(), h


def head_shape(s: Situation) -> None:
    """The output has one finite value per feature or id, and -inf outside the vocabulary."""
    head, h = _head(s)
    assert_output(s.space, head(h), h.shape[:2])


def head_unbounded(s: Situation) -> None:
    """The output is not clipped: it changes with the length of a large input."""
    if "probabilities" in s.spec.traits():
        raise NotApplicable("probabilities are in [0, 1]")
    head, h = _head(s)
    # Units of a hidden layer may be off for all of h, but not for -h as well.
    both = torch.stack([h, -h])
    far = torch.stack([replace_infinite(head(100 * part)) for part in both])
    farther = torch.stack([replace_infinite(head(200 * part)) for part in both])
    # L V: every output depends on h
    differs = (far != farther).any(0).any(0)
    expected = torch.ones_like(differs)
    if isinstance(s.space, TokenSpace):
        expected = s.space.usable().expand(differs.shape)
    constant = expected & ~differs
    assert not constant.any(), (
        f"outputs {constant.any(0).nonzero()[:, 0].tolist()} are the same for 100 h and 200 h"
    )
    assert far.max() != farther.max(), (
        "the largest output is the same for 100 h and 200 h"
    )
    largest = farther.abs().max()
    # A clipped or normalised output is of the order of 1.
    assert largest > 20, f"outputs are at most {largest:.3g} for 200 h"


def head_probabilities(s: Situation) -> None:
    """Values are from 0 to 1, however large the input is."""
    head, h = _head(s)
    for part in (h, 200 * h, -200 * h):
        out = head(part)
        assert ((out >= 0) & (out <= 1)).all(), "a probability is not from 0 to 1"


def head_per_position(s: Situation) -> None:
    """The output at a position depends on its vector only."""
    head, h = _head(s)
    other = h.clone()
    other[0, 0] += 1.0
    unchanged = torch.ones(h.shape[:2], dtype=torch.bool)
    unchanged[0, 0] = False
    before = replace_infinite(head(h))
    after = replace_infinite(head(other))
    what = "other positions after a change of one"
    assert_equal(after[unchanged], before[unchanged], what)


def embedding_tables(s: Situation) -> None:
    """`tables` has one table per field, with a row of the model's width per id."""
    _check_shapes(s, "tables", s.build().tables)


def _check_shapes(s: Situation, name: str, modules: Any) -> None:
    shapes = [tuple(module.weight.shape) for module in modules]
    expected = [(field.size, s.args[1]) for field in s.space.fields]
    assert shapes == expected, f"{name} of shapes {shapes} instead of {expected}"


def head_weights(s: Situation) -> None:
    """`maps` has one linear layer per field, of a row per id, which computes the logits."""
    head, h = _head(s)
    _check_shapes(s, "maps", head.maps)
    # The first field represents all.
    field = s.space.fields[0]
    logits = s.space.split(head(h))[field.name][..., : field.size]
    inputs = s.space.split(h)[field.name]
    assert_close(logits, head.maps[0](inputs), "logits compared with the first map")


def gradients_reach_all(s: Situation) -> None:
    """Every parameter affects the output, and gradients equal finite differences."""
    if s.spec.kind == "block":
        module, x, c = _block(s)
        check_gradients(module, module, x, c)
    elif s.spec.kind == "embedding":
        module, state = _embedding(s)
        if "known" in s.spec.traits():
            state = replace(state, noisy=state.x % 2 == 0)
        wide = as_double(state)
        check_gradients(module, lambda: module(wide, s.clean.cond, 0)[0])
    elif s.spec.kind == "condition":
        module, level = _condition(s)
        check_gradients(module, lambda: module(level, _cond(s, len(level))))
    else:
        module, h = _head(s)
        check_gradients(module, lambda h: replace_infinite(module(h)), h)


def _block(s: Situation) -> tuple[Any, _Hidden, Float[Tensor, "B C"]]:
    """Return a perturbed block, a sequence and a condition."""
    block = s.build_perturbed()
    generator = s.generator()
    width, cond = s.args
    rows = LARGE_BATCH if s.large else BATCH
    x = torch.randn(rows, LENGTH, width, generator=generator)
    c = torch.randn(rows, cond, generator=generator)
    return block, x, c


def shape_and_range(s: Situation) -> None:
    """The output is finite, has the shape and dtype of the input, and differs from it."""
    block, x, c = _block(s)
    y = block(x, c)
    shape = tuple(y.shape)
    expected = tuple(x.shape)
    assert shape == expected, f"shape {shape} instead of {expected}"
    assert y.dtype == x.dtype, f"{y.dtype} instead of {x.dtype}"
    assert y.isfinite().all(), "values are not finite"
    assert not torch.equal(x, y), "the block is the identity for any weights"
    # A block that creates float32 tensors inside fails or loses digits here.
    wide = block.double()(x.double(), c.double())
    assert wide.dtype == torch.float64, f"{wide.dtype} instead of float64"
    assert_close(wide.float(), y, "float64 compared with float32", atol=1e-3)


def identity_at_init(s: Situation) -> None:
    """A new block is the identity."""
    _, x, c = _block(s)
    new = s.build()
    assert_close(new(x, c), x, "a new block", atol=1e-6)


def rows_independent(s: Situation) -> None:
    """Samples of a batch do not influence each other, however many they are."""
    run: Callable[[slice], Any]
    if s.spec.kind == "block":
        block, x, c = _block(s)
        count = len(x)

        def run(rows: slice) -> Any:
            return block(x[rows], c[rows])

    elif s.spec.kind == "condition":
        condition, level = _condition(s)
        count = len(level)

        def run(rows: slice) -> Any:
            return condition(level[rows], _rows_of(s.clean.cond, rows))

    else:
        embedding, state = _embedding(s)
        count = len(state.x)

        def run(rows: slice) -> Any:
            part = state.apply(lambda value: value[rows])
            return embedding(part, _rows_of(s.clean.cond, rows), 0)[0]

    assert_rows_independent(run, count)


def _rows_of(cond: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in cond.items()}


def close_in_bfloat16(s: Situation) -> None:
    """In bfloat16 the output is that in float32, up to rounding."""
    if s.spec.kind == "block":
        block, x, c = _block(s)
        check_bfloat16(block, block, x, c)
    elif s.spec.kind == "embedding":
        embedding, state = _embedding(s)
        if state.x.is_floating_point():
            check_bfloat16(
                embedding,
                lambda x: _embed(s, embedding, replace(state, x=x)),
                state.x,
            )
        else:
            check_bfloat16(embedding, lambda: _embed(s, embedding, state))
    elif s.spec.kind == "condition":
        condition, level = _condition(s)
        # Levels stay in float32, as those of a large scale would be rounded to others.
        check_bfloat16(condition, lambda: condition(level, s.clean.cond))
    else:
        head, h = _head(s)
        check_bfloat16(head, head, h)


def padding_inert(s: Situation) -> None:
    """Masked positions do not influence others, however many they are."""
    block, x, c = _block(s)
    numbers = [2]
    # A long input may take another kernel for any number of rows.
    if not s.large:
        numbers.append(LONG)
    for more in numbers:
        padding = torch.randn(len(x), more, x.shape[-1])
        padded = torch.cat([x, padding], 1)
        visible = torch.arange(LENGTH + more) < LENGTH
        # B 1 1 L: the same for every head and query.
        mask = visible.expand(len(x), 1, 1, -1)
        y = block(padded, c, mask=mask)[:, :LENGTH]
        assert_close(y, block(x, c), f"before {more} masked positions")
        # A kernel may leave the rest of a long input as it is.
        changed = (block(padded, c) != padded).any(-1)
        assert changed.all(), f"some of {LENGTH + more} positions are not changed"


def permutation_equivariant(s: Situation) -> None:
    """Permuting input, conditions and mask permutes the output."""
    block, x, c = _block(s)
    generator = s.generator()
    order = torch.randperm(LENGTH, generator=generator)
    noise = torch.randn(len(x), LENGTH, c.shape[-1], generator=generator)
    per_position = c[:, None] + noise
    mask = torch.rand(len(x), 1, LENGTH, LENGTH, generator=generator) < 0.7
    # Each position sees itself, so that none sees nothing.
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    expected = block(x, per_position, mask=mask)[:, order]
    # Rows are queries and columns are keys.
    shuffled = mask[:, :, order]
    shuffled = shuffled[..., order]
    permuted = block(x[:, order], per_position[:, order], mask=shuffled)
    assert_close(permuted, expected, "permuted positions")

    # Another kernel may compute a long input, here without a mask.
    if s.large:
        return
    long = torch.randn(BATCH, LONG, x.shape[-1], generator=generator)
    c = per_position[:, 0]
    forwards = block(long, c)
    backwards = block(long.flip(1), c)
    assert_close(backwards.flip(1), forwards, "reversed positions of a long input")


def weighted_equals_repeated(s: Situation) -> None:
    """A key with log n added to its logits counts as n keys, also in training; 0 for -inf."""
    block, x, c = _block(s)
    number = torch.tensor([3, 1, 2, 1, 0])
    weight = number.log().expand(len(x), 1, 1, LENGTH)
    for training in (False, True):
        # Draws per sample are allowed.
        seed_cpu(s.seed)
        once = block.train(training)(x, c, mask=weight)
        expected = once.repeat_interleave(number, 1)
        seed_cpu(s.seed)
        copies = x.repeat_interleave(number, 1)
        assert_close(expected, block(copies, c), "weighted keys")


def distances_matter(s: Situation) -> None:
    """Only distances between coordinates matter, not the order of positions or the origin."""
    block, x, c = _block(s)
    # Base pairs: neither in order nor evenly spaced, and too large for float16.
    first = [0, 900, 4000, 70_000, 70_001]
    second = [5, 6, 300, 2000, 1_000_000]
    coordinates = torch.tensor([first, second]).repeat(len(x) // BATCH, 1)
    y = block(x, c, positions=coordinates)
    shifted = block(x, c, positions=coordinates + 123_456_789)
    assert_close(shifted, y, "shifted coordinates")
    order = torch.randperm(LENGTH, generator=s.generator())
    permuted = block(x[:, order], c, positions=coordinates[:, order])
    assert_close(permuted, y[:, order], "permuted positions")

    # A change of one distance must matter, also by a number after which coordinates may repeat.
    moves = torch.tensor([*DISTANCES, 1000, 1024, 2500])
    other = coordinates[:1].repeat(len(moves) + 1, 1)
    other[1:, -1] += moves
    rows = len(other)
    same_x = x[:1].repeat(rows, 1, 1)
    same_c = c[:1].repeat(rows, 1)
    moved = block(same_x, same_c, positions=other)
    is_same = (moved[1:] == moved[0]).flatten(1).all(1)
    same = moves[is_same].tolist()
    assert not same, f"a coordinate that is moved by {same} changes nothing"


def grid_distances_matter(s: Situation) -> None:
    """Only differences of columns and of rows matter, and both do."""
    block, x, c = _block(s)
    numbers = torch.arange(x.shape[1])
    # A grid of three columns.
    columns = numbers % 3
    rows = numbers // 3
    places = torch.stack([columns, rows], -1).expand(len(x), -1, -1)
    y = block(x, c, positions=places)
    shifts = torch.tensor([5, 17])
    shifted = block(x, c, positions=places + shifts)
    assert_close(shifted, y, "shifted columns and rows")
    for axis, name in enumerate(("column", "row")):
        other = places.clone()
        other[:, -1, axis] += 1
        moved = block(x, c, positions=other)
        assert not moved.equal(y), f"another {name} changes nothing"


def positions_do_not_repeat(s: Situation) -> None:
    """If the order of positions matters, it matters at any distance."""
    block, x, c = _block(s)
    # One row per distance: the positions at its two ends are exchanged.
    length = max(DISTANCES) + 2
    long = torch.randn(1, length, x.shape[-1], generator=s.generator())
    order = torch.arange(length).repeat(len(DISTANCES), 1)
    for row, distance in enumerate(DISTANCES):
        order[row, [0, distance]] = torch.tensor([distance, 0])
    rows = torch.cat([long, long[0][order]])
    y = block(rows, c[:1].repeat(len(rows), 1))
    difference = (y[1:] - y[0][order]).abs()
    scale = y[0].abs().mean()
    changes = difference.amax((1, 2)) / scale
    # Another order of a sum changes the last digits.
    same = [
        distance
        for distance, change in zip(DISTANCES, changes.tolist(), strict=True)
        if change < 1e-4
    ]
    if 1 in same:
        raise NotApplicable("the order of positions does not matter")
    assert not same, f"positions at a distance of {same} may be exchanged"


def cached_equals_full(s: Situation) -> None:
    """In a block-causal model, blocks with a cache equal the whole sample."""
    if s.model is None:
        raise NotApplicable("no installed model takes a block and can be block-causal")
    model = perturb_parameters(s.model.build(s.space).eval(), s.seed)
    check_cache(s, model, s.model.facts().block_size)


def requested_equals_full(s: Situation) -> None:
    """Outputs and gradients at requested positions equal those without `requested`."""
    block, x, c = _block(s)
    weights = dict(block.named_parameters())
    parameters = list(weights.values())
    # Other positions in each sample, and not as many.
    requested = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 0, 1]], dtype=torch.bool)
    requested = requested.repeat(len(x) // BATCH, 1)
    per_position = c[:, None].expand(-1, LENGTH, -1)
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    cases = (
        (c, None),
        (per_position, causal),
    )
    for condition, mask in cases:
        whole = block(x, condition, mask=mask)[requested]
        y = block(x, condition, mask=mask, requested=requested)
        assert y.isfinite().all(), "values at other positions are not finite"
        part = y[requested]
        assert_close(part, whole, "requested positions")

        expected = torch.autograd.grad(whole.sum(), parameters)
        grads = torch.autograd.grad(part.sum(), parameters)
        compared = zip(weights, grads, expected, strict=True)
        for name, grad, other in compared:
            assert_close(grad, other, f"gradient of {name}")


CHECKS = (
    *checks_of(
        "block",
        shape_and_range,
        rows_independent,
        padding_inert,
        condition_per_position,
        gradients_reach_all,
    ),
    *checks_of("block", positions_do_not_repeat, examples=2),
    *checks_of("block", identity_at_init, needs="zero-init"),
    *checks_of("block", permutation_equivariant, needs="equivariant"),
    *checks_of("block", requested_equals_full, needs="requested"),
    *checks_of("block", weighted_equals_repeated, needs="weighted-keys"),
    *checks_of("block", distances_matter, needs="positions"),
    *checks_of("block", grid_distances_matter, needs="grid-positions"),
    *checks_of(
        "block", cached_equals_full, needs="cache", place="in-model", examples=3
    ),
    *checks_of(
        "embedding", embeds_each_position, positions_independent, rows_independent
    ),
    *checks_of("embedding", labels_unread),
    *checks_of("embedding", pieces_equal_whole, needs="one-field"),
    *checks_of("embedding", embeds_every_id, needs="tokens"),
    *checks_of("embedding", masked_values_ignored, needs="features"),
    *checks_of("embedding", masked_values_are_zeros, needs="unmarked-masks"),
    *checks_of("embedding", masked_positions_identical, needs="identical-masked"),
    *checks_of("embedding", known_tokens_marked, needs="known"),
    *checks_of("embedding", embedding_tables, needs="tables"),
    *checks_of("embedding", positions_interchangeable, needs="position-free"),
    *checks_of("position", positions_shape, positions_start, positions_differ),
    *checks_of("position", positions_equal, needs="position-free"),
    *checks_of(
        "condition",
        condition_shape,
        condition_per_position,
        levels_differ,
        conditions_read,
        dropped_conditions,
        rows_independent,
    ),
    *checks_of("condition", level_free, needs="level-free"),
    *checks_of("condition", condition_without_positions, needs="position-free"),
    *checks_of("condition", constant, needs="constant"),
    *checks_of("head", head_shape, head_per_position, head_unbounded),
    *checks_of("head", head_weights, needs="maps"),
    *checks_of("head", head_probabilities, needs="probabilities"),
    *checks_of("embedding", gradients_reach_all),
    *checks_of("condition", gradients_reach_all),
    *checks_of("head", gradients_reach_all),
    *chain.from_iterable(
        checks_of(kind, close_in_bfloat16, examples=3)
        for kind in ("block", "embedding", "condition", "head")
    ),
)
