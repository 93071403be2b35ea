"""Checks for tasks. Letters: B batch, L length, M features."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import torch
from torch import Tensor

from dither.registry import FeatureSpace, TokenSpace
from dither.registry.contracts.records import Clean, Measured, over
from dither.registry.contracts.spaces import Condition

from ..check_utils import assert_unchanged, clean_ids, random_output, seed_cpu, snapshot, usable_ids
from ..situations import Situation, checks_of, fitting_process

__all__ = ["CHECKS"]

ROWS = 3
CHUNK = 256
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_built: dict[str, Any] = {}


def _task(s: Situation) -> Any:
    """Build a task once; reading data may take seconds."""
    key = f"{s.part.pinned} {s.spec!r}"
    if key not in _built:
        _built[key] = s.build()
    return _built[key]


def _check_batch(
    clean: Clean,
    task: Any,
    rows: int,
    what: str,
) -> None:
    """Assert that a batch is of the space of the task."""
    space = task.space
    features = isinstance(space, FeatureSpace)
    shape = (rows, space.length, *([space.width] if features else []))
    assert tuple(clean.x0.shape) == shape, (
        f"{what}: x0 has shape {tuple(clean.x0.shape)}, not {shape}"
    )
    assert clean.valid.shape == shape[:2], f"{what}: valid has shape {tuple(clean.valid.shape)}"
    assert clean.known.shape == shape, f"{what}: known has shape {tuple(clean.known.shape)}"
    assert clean.valid.dtype == clean.known.dtype == torch.bool, f"{what}: masks are not bool"
    assert not (clean.known & ~over(clean.valid, clean.x0)).any(), (
        f"{what}: padding is marked as known"
    )
    conditions = {condition.name: condition for condition in space.conditions}
    for name, value in clean.cond.items():
        assert len(value) == rows, f"{what}: condition {name} has {len(value)} rows, not {rows}"
        if name in conditions:
            _check_condition(
                conditions[name], value, conditions[name].shape(rows, space.length), what
            )
    if features:
        assert clean.x0.dtype == torch.float32, (
            f"{what}: features are {clean.x0.dtype}, not float32"
        )
        assert clean.x0.isfinite().all(), f"{what}: features are not finite"
    else:
        assert clean.x0.dtype == torch.int64, f"{what}: ids are {clean.x0.dtype}, not int64"
        _check_ids(clean, space, what)


def _check_condition(
    condition: Condition,
    value: Tensor,
    expected: tuple[int, ...],
    what: str,
) -> None:
    """Assert that a condition has labels -1 .. size-1, or integers, per sample, or a finite number per position."""
    name = condition.name
    size = condition.size
    assert value.shape == expected, (
        f"{what}: condition {name} has shape {tuple(value.shape)}, not {expected}"
    )
    if size is None:
        assert value.isfinite().all(), f"{what}: condition {name} is not finite"
    else:
        assert value.dtype == torch.int64, f"{what}: labels {name} are {value.dtype}, not int64"
        assert ((value >= -1) & (value < size)).all(), (
            f"{what}: {name} has labels outside -1..{size - 1}"
        )


def _check_ids(clean: Clean, space: TokenSpace, what: str) -> None:
    assert usable_ids(space, clean.x0).all(), (
        f"{what}: ids are outside the vocabulary of their field"
    )
    assert clean_ids(space, clean.x0)[clean.valid].all(), f"{what}: MASK or PAD at a valid position"
    for name, x in space.split(clean.x0).items():
        (field,) = (field for field in space.fields if field.name == name)
        padding = x[~space.split(clean.valid)[name]]
        assert field.pad is None or (padding == field.pad).all(), (
            f"{what}: padding of {name} is not {field.pad}"
        )


def splits_not_empty(s: Situation) -> None:
    """The splits train, valid and test have samples, and do not begin with the same ones in any order."""
    task = _task(s)
    sizes = {split: task.size(split) for split in ("train", "valid", "test")}
    assert all(size > 0 for size in sizes.values()), f"samples: {sizes}"
    batches = {split: task.batch(split, range(min(size, CHUNK))) for split, size in sizes.items()}
    firsts = {
        split: [_bytes_of(clean, row) for row in range(len(clean.valid))]
        for split, clean in batches.items()
    }
    for one, other in itertools.permutations(firsts, 2):
        samples = firsts[one]
        among = firsts[other]
        same = samples[: len(among)] == among[: len(samples)]
        same |= len(set(among)) == len(among) and set(samples) <= set(
            among
        )  # unlikely where none occurs twice
        assert not same, f"the first {len(samples)} samples of {one} are also in {other}"


def space_matches(s: Situation) -> None:
    """The space of the Spec is that of the task, and batches are of this space."""
    task = _task(s)
    assert s.spec.space() == task.space, f"Spec: {s.spec.space()}, task: {task.space}"
    for split in ("train", "valid", "test"):
        rows = range(min(ROWS, task.size(split)))
        _check_batch(task.batch(split, rows), task, len(rows), split)
    last = task.size("train") - 1
    _check_batch(task.batch("train", [last]), task, 1, "the last sample")


def pure_in_rows(s: Situation) -> None:
    """A sample depends only on its row number, not on other rows, their order, or the seed."""
    task = _task(s)
    rows = [i % task.size("train") for i in (2, 0, 1)]
    seed_cpu(s.seed)
    random = torch.get_rng_state()
    together = task.batch("train", rows)
    assert torch.equal(torch.get_rng_state(), random), "a batch draws from torch's global generator"
    seed_cpu(s.seed + 1)
    for i, row in enumerate(rows):
        assert_unchanged(
            snapshot(together[i : i + 1]), task.batch("train", [row]), what=f"sample {row} alone"
        )


def templates_seeded(s: Situation) -> None:
    """The template of samples is of the space, depends on number and seed only, and has values to draw."""
    task = _task(s)
    like = task.like(ROWS, s.seed)
    x0 = like.x0  # values that are not fixed may be anything of the right dtype
    if isinstance(task.space, TokenSpace):
        x0 = torch.where(like.fixed, x0, task.space.clean().int().argmax(-1))
    _check_batch(Clean(x0, like.valid, like.known, like.cond), task, ROWS, "like")
    seed_cpu(s.seed)
    assert_unchanged(
        snapshot(like), task.like(ROWS, s.seed), what="the template with the same seed"
    )
    assert (~like.fixed).any(), "all values are fixed"


def metrics_batch_invariant(s: Situation) -> None:
    """Metrics are finite and do not depend on the batch size."""
    task = _task(s)
    process = fitting_process(s.catalog, task.space)
    clean = task.batch("valid", range(min(ROWS, task.size("valid"))))
    seed_cpu(s.seed)
    noised = process.corrupt(clean, torch.rand(len(clean.valid)) * 0.8 + 0.1)
    raw = random_output(process.space, clean.valid, s.seed)
    values = torch.rand(clean.valid.shape, generator=torch.Generator().manual_seed(s.seed))
    measured = Measured(values, clean.valid.float())

    def compute(batches: list[slice]) -> dict[str, float]:
        metrics = task.metrics()
        for rows in batches:
            pred = process.read(raw[rows], noised[rows].state, noised[rows].noise)
            metrics.update(clean[rows], noised[rows], pred, measured[rows])
        values: dict[str, float] = metrics.compute()
        return values

    whole = compute([slice(None)])
    uneven = compute([slice(0, 1), slice(1, None)])
    assert whole, "there are no metrics"
    assert whole.keys() == uneven.keys(), (
        f"{sorted(whole)} for one batch, {sorted(uneven)} for several"
    )
    for name, value in whole.items():
        assert math.isfinite(value), f"{name} is {value}"
        close = math.isclose(value, uneven[name], rel_tol=1e-4, abs_tol=1e-6)
        assert close, (
            f"{name}: {value} for one batch, {uneven[name]} for a batch of 1 and one of the rest"
        )


def baselines_are_finite(s: Situation) -> None:
    """Baselines are finite and named `metric/baseline`."""
    task = _task(s)
    assert task.baselines("valid", None), "there are no baselines"
    for split in ("valid", "test"):
        for name, value in task.baselines(split, ROWS).items():
            assert re.fullmatch(r"[^/]+/[^/]+", name), f'"{name}" is not metric/baseline'
            assert math.isfinite(value), f"{name} is {value}"


def evaluates_samples(s: Situation) -> None:
    """Metrics of samples are finite, reproducible, and see all samples; pictures are valid and have unique names."""
    task = _task(s)
    like = task.like(ROWS, s.seed)
    samples = task.batch("valid", [i % task.size("valid") for i in range(ROWS)]).x0
    samples = torch.where(like.fixed, like.x0, samples)
    metrics = task.sample_metrics(samples, like)
    for name, value in metrics.items():
        assert math.isfinite(value), f"{name} is {value}"
    assert task.sample_metrics(samples, like) == metrics, "metrics differ in a second call"
    changed = [
        torch.where(like.fixed, samples, x)
        for x in (samples.roll(1, 1), samples[:1].expand_as(samples))
    ]
    for name, kept in (
        ("first", torch.arange(ROWS) == 0),
        ("last", torch.arange(ROWS) == ROWS - 1),
    ):
        others = [torch.where(over(kept, samples), samples, x) for x in changed]
        seen = not metrics or any(task.sample_metrics(x, like) != metrics for x in others)
        assert seen, f"metrics are those of the {name} sample alone"
    pictures = list(task.plots(samples, like))
    assert pictures, "there are no pictures"
    names = [picture.name for picture in pictures]
    assert len(set(names)) == len(names), f"names of pictures are not unique: {names}"
    for picture in pictures:
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*", picture.name), (
            f'"{picture.name}" is not a file name'
        )
        assert picture.png or picture.svg or picture.text is not None, f"{picture.name} is empty"
        assert picture.png is None or picture.png.startswith(SIGNATURE), (
            f"{picture.name} is not a PNG"
        )
        assert picture.svg is None or "<svg" in picture.svg[:500], f"{picture.name} is not an SVG"


def splits_disjoint(s: Situation) -> None:
    """No sample is in two splits."""
    task = _task(s)
    splits: dict[bytes, str] = {}
    for split in ("train", "valid", "test"):
        size = task.size(split)
        for start in range(0, size, CHUNK):
            clean = task.batch(split, range(start, min(start + CHUNK, size)))
            for row in range(len(clean.valid)):
                first = splits.setdefault(_bytes_of(clean, row), split)
                assert first == split, f"sample {start + row} of {split} is also in {first}"


def _bytes_of(clean: Clean, row: int) -> bytes:
    return b"".join(part[row].contiguous().numpy().tobytes() for part in (clean.x0, clean.valid))


CHECKS = (
    *checks_of(
        "task",
        splits_not_empty,
        space_matches,
        pure_in_rows,
        templates_seeded,
        metrics_batch_invariant,
        evaluates_samples,
    ),
    *checks_of("task", splits_disjoint, needs="disjoint-splits"),
    *checks_of("task", baselines_are_finite, level="recommended"),
)
