"""Checks for tasks. Letters: B batch, L length, M features."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dither.registry import FeatureSpace, TokenSpace
from dither.registry.contracts.protocols import Metrics, Task
from dither.registry.contracts.records import Clean, Measured, over
from dither.registry.contracts.spaces import Condition

from ..check_utils import (
    assert_unchanged,
    check_implements,
    clean_ids,
    random_output,
    seed_cpu,
    snapshot,
    usable_ids,
    without_truth,
)
from ..situations import Situation, checks_of, fitting_process

__all__ = ["CHECKS"]

ROWS = 12
"""Samples of a batch: more than eight, where a task may take another path."""
MANY_ROWS = 70
"""Samples of a large batch."""
PICTURES = 3
"""Samples that are drawn."""
CHUNK = 256
"""Samples that are read at once where all are compared."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_built: dict[tuple[type, str], Any] = {}


def _task(s: Situation) -> Any:
    """Build a task once; reading data may take seconds."""
    key = (type(s.spec), repr(s.spec))
    if key not in _built:
        task = s.build()
        check_implements(task, Task)
        _built[key] = task
    return _built[key]


def _check_batch(clean: Clean, task: Any, rows: int, what: str) -> None:
    """Assert that a batch is of the space of the task."""
    space = task.space
    shape: tuple[int, ...] = (rows, space.length)
    if isinstance(space, FeatureSpace):
        shape = (*shape, space.width)
    actual = {
        "x0": clean.x0.shape,
        "known": clean.known.shape,
        "valid": clean.valid.shape,
    }
    expected = {"x0": shape, "known": shape, "valid": shape[:2]}
    for name, part in actual.items():
        found = tuple(part)
        assert found == expected[name], f"{what}: {name} has shape {found}"
    are_bool = clean.valid.dtype == clean.known.dtype == torch.bool
    assert are_bool, f"{what}: masks are not bool"
    padding = ~over(clean.valid, clean.x0)
    assert not (clean.known & padding).any(), f"{what}: padding is marked as known"

    conditions = {condition.name: condition for condition in space.conditions}
    for name, value in clean.cond.items():
        count = len(value)
        assert count == rows, f"{what}: condition {name} has {count} rows, not {rows}"
        if name in conditions:
            declared = conditions[name].shape(rows, space.length)
            _check_condition(
                condition=conditions[name],
                value=value,
                expected=declared,
                what=what,
            )
    if isinstance(space, FeatureSpace):
        dtype = clean.x0.dtype
        assert dtype == torch.float32, f"{what}: features are {dtype}, not float32"
        assert clean.x0.isfinite().all(), f"{what}: features are not finite"
    else:
        dtype = clean.x0.dtype
        assert dtype == torch.int64, f"{what}: ids are {dtype}, not int64"
        _check_ids(clean, space, what)


def _check_condition(
    condition: Condition,
    value: Tensor,
    expected: tuple[int, ...],
    what: str,
) -> None:
    """Assert that a condition has labels -1 .. size-1, integers or a number per sample, or numbers."""
    label = f"{what}: condition {condition.name}"
    shape = tuple(value.shape)
    assert shape == expected, f"{label} has shape {shape}, not {expected}"
    size = condition.size
    if size is None:
        known = value.isfinite()
        if condition.number is not None:
            dtype = value.dtype
            assert dtype == torch.float32, f"{label} is {dtype}, not float32"
            # A missing number
            known = known | value.isnan()
        assert known.all(), f"{label} is not finite"
        return
    assert value.dtype == torch.int64, f"{label}: labels are {value.dtype}, not int64"
    inside = (value >= -1) & (value < size)
    assert inside.all(), f"{label} has labels outside -1..{size - 1}"


def _check_ids(clean: Clean, space: TokenSpace, what: str) -> None:
    inside = usable_ids(space, clean.x0)
    assert inside.all(), f"{what}: ids are outside the vocabulary of their field"
    allowed = clean_ids(space, clean.x0)[clean.valid]
    assert allowed.all(), f"{what}: MASK or PAD at a valid position"
    fields = {field.name: field for field in space.fields}
    valid = space.split(clean.valid)
    for name, x in space.split(clean.x0).items():
        pad = fields[name].pad
        if pad is not None:
            padding = x[~valid[name]]
            is_pad = (padding == pad).all()
            assert is_pad, f"{what}: padding of {name} is not {pad}"


def splits_not_empty(s: Situation) -> None:
    """The splits have samples, and do not begin with the same ones in any order."""
    task = _task(s)
    sizes = {split: task.size(split) for split in ("train", "valid", "test")}
    assert all(size > 0 for size in sizes.values()), f"samples: {sizes}"
    firsts: dict[str, list[bytes]] = {}
    for split, size in sizes.items():
        clean = task.batch(split, range(min(size, CHUNK)))
        firsts[split] = [_bytes_of(clean, row) for row in range(len(clean.valid))]
    for one, other in itertools.permutations(firsts, 2):
        samples = firsts[one]
        others = firsts[other]
        distinct = set(others)
        same = samples[: len(others)] == others[: len(samples)]
        # A subset in another order is unlikely where no sample occurs twice.
        if len(distinct) == len(others) and distinct.issuperset(samples):
            same = True
        count = len(samples)
        assert not same, f"the first {count} samples of {one} are also in {other}"


def space_matches(s: Situation) -> None:
    """The space of the Spec is that of the task, and batches are of this space."""
    task = _task(s)
    declared = s.spec.space()
    assert declared == task.space, f"Spec: {declared}, task: {task.space}"
    for split in ("train", "valid", "test"):
        rows = range(min(MANY_ROWS, task.size(split)))
        _check_batch(
            clean=task.batch(split, rows),
            task=task,
            rows=len(rows),
            what=split,
        )
    # Where a reader of chunks is off by one.
    last = task.size("train") - 1
    _check_batch(
        clean=task.batch("train", [last]),
        task=task,
        rows=1,
        what="the last sample",
    )


def pure_in_rows(s: Situation) -> None:
    """A sample depends only on its row number, not on other rows, their order, or the seed."""
    task = _task(s)
    # Out of order, as shuffled training reads them.
    size = task.size("train")
    rows = [index % size for index in (2, 0, 1, *range(3, MANY_ROWS))]
    seed_cpu(s.seed)
    random = torch.get_rng_state()
    together = task.batch("train", rows)
    unchanged = torch.equal(torch.get_rng_state(), random)
    assert unchanged, "a batch draws from torch's global generator"
    seed_cpu(s.seed + 1)
    for index in (0, 1, 2, MANY_ROWS // 2, MANY_ROWS - 1):
        row = rows[index]
        expected = snapshot(together[index : index + 1])
        alone = task.batch("train", [row])
        assert_unchanged(expected, alone, what=f"sample {row} alone")


def templates_seeded(s: Situation) -> None:
    """The template of samples is of the space, depends on number and seed only, and has values to draw."""
    task = _task(s)
    like = task.like(ROWS, s.seed)
    x0 = like.x0
    # Values that are not fixed may be anything of the right dtype.
    if isinstance(task.space, TokenSpace):
        x0 = torch.where(like.fixed, x0, task.space.clean().int().argmax(-1))
    _check_batch(
        clean=Clean(x0, like.valid, like.known, like.cond),
        task=task,
        rows=ROWS,
        what="like",
    )
    seed_cpu(s.seed)
    again = task.like(ROWS, s.seed)
    assert_unchanged(snapshot(like), again, what="the template with the same seed")
    assert (~like.fixed).any(), "all values are fixed"


def _evaluation(s: Situation, task: Any) -> Callable[[list[slice]], dict[str, float]]:
    """Return a function that evaluates random output on validation samples, in these batches."""
    process = fitting_process(s.catalog, task.space)
    count = min(ROWS, task.size("valid"))
    clean = task.batch("valid", range(count))
    seed_cpu(s.seed)
    # Off both ends, where weights are extreme.
    t = torch.rand(len(clean.valid)) * 0.8 + 0.1
    noised = process.corrupt(clean, t)
    raw = random_output(process.space, clean.valid, s.seed)
    values = torch.rand(clean.valid.shape, generator=s.generator())
    measured = Measured(values, clean.valid.float())

    def compute(batches: list[slice]) -> dict[str, float]:
        metrics = task.metrics()
        check_implements(metrics, Metrics)
        for rows in batches:
            part = noised[rows]
            pred = process.read(raw[rows], part.state, part.noise)
            metrics.update(clean[rows], part, pred, measured[rows])
        computed: dict[str, float] = metrics.compute()
        return computed

    return compute


def metrics_batch_invariant(s: Situation) -> None:
    """Metrics are finite and do not depend on the batch size."""
    compute = _evaluation(s, _task(s))
    whole = compute([slice(None)])
    # Unequal batches: a mean of their means differs from the mean.
    uneven = compute([slice(0, 1), slice(1, None)])
    assert whole, "there are no metrics"
    assert whole.keys() == uneven.keys(), (
        f"{sorted(whole)} for one batch, {sorted(uneven)} for several"
    )
    for name, value in whole.items():
        assert math.isfinite(value), f"{name} is {value}"
        other = uneven[name]
        same = math.isclose(value, other, rel_tol=1e-4, abs_tol=1e-6)
        assert same, (
            f"{name}: {value} for one batch, {other} for a batch of 1 and the rest"
        )


def baselines_are_finite(s: Situation) -> None:
    """Baselines are finite and named `metric/baseline`."""
    task = _task(s)
    # Some are those of the elements of the latest evaluation.
    _evaluation(s, task)([slice(None)])
    assert task.baselines("valid", None), "there are no baselines"
    for split in ("valid", "test"):
        for name, value in task.baselines(split, ROWS).items():
            assert re.fullmatch(r"[^/]+/[^/]+", name), (
                f'"{name}" is not metric/baseline'
            )
            assert math.isfinite(value), f"{name} is {value}"


def evaluates_samples(s: Situation) -> None:
    """Metrics are finite, reproducible, and of all samples; pictures are valid."""
    task = _task(s)
    like = task.like(ROWS, s.seed)
    rows = [index % task.size("valid") for index in range(ROWS)]
    # Real samples, since metrics may refuse meaningless ones.
    samples = torch.where(like.fixed, like.x0, task.batch("valid", rows).x0)
    metrics = task.sample_metrics(samples, like)
    for name, value in metrics.items():
        assert math.isfinite(value), f"{name} is {value}"
    before = snapshot(samples, like)
    again = task.sample_metrics(samples, like)
    assert again == metrics, "metrics differ in a second call"
    if metrics:
        _check_all_seen(
            task=task,
            samples=samples,
            like=like,
            metrics=metrics,
        )
    few = slice(0, PICTURES)
    _check_pictures(list(task.plots(samples[few], like[few])))
    assert_unchanged(before, samples, like, what="samples and template")


def _check_all_seen(
    task: Any, samples: Tensor, like: Clean, metrics: dict[str, float]
) -> None:
    """Assert that metrics change if some of the samples do."""
    # Two changes of the others: a metric may not see one of them.
    changed: list[dict[str, float]] = []
    index = torch.arange(ROWS)
    kept = {
        "the first sample": index == 0,
        "the last sample": index == ROWS - 1,
        "the first eight samples": index < 8,
    }
    for name, alone in kept.items():
        unchanged = like.fixed | over(alone, samples)
        shifted = torch.where(unchanged, samples, samples.roll(1, 1))
        equal = torch.where(unchanged, samples, samples[:1].expand_as(samples))
        others = [task.sample_metrics(x, like) for x in (shifted, equal)]
        assert others != [metrics, metrics], f"metrics are those of {name} alone"
        changed += others
    # A metric may compare samples with the truth, but not measure the truth alone.
    blind = task.sample_metrics(samples, without_truth(like, like.fixed))
    for name, value in metrics.items():
        of_samples = any(others.get(name) != value for others in changed)
        assert of_samples or blind.get(name) == value, (
            f"{name} is that of the template, whatever the samples are"
        )


def _check_pictures(pictures: list[Any]) -> None:
    assert pictures, "there are no pictures"
    names = [picture.name for picture in pictures]
    assert len(set(names)) == len(names), f"names of pictures are not unique: {names}"
    for picture in pictures:
        name = picture.name
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*", name), f'"{name}" is not a file name'
        has_content = picture.png or picture.svg or picture.text is not None
        assert has_content, f"{name} is empty"
        if picture.png is not None:
            assert picture.png.startswith(SIGNATURE), f"{name} is not a PNG"
        if picture.svg is not None:
            assert "<svg" in picture.svg[:500], f"{name} is not an SVG"


def splits_disjoint(s: Situation) -> None:
    """No sample is in two splits."""
    task = _task(s)
    splits: dict[bytes, str] = {}
    for split in ("train", "valid", "test"):
        size = task.size(split)
        for start in range(0, size, CHUNK):
            stop = min(start + CHUNK, size)
            clean = task.batch(split, range(start, stop))
            for row in range(stop - start):
                first = splits.setdefault(_bytes_of(clean, row), split)
                assert first == split, (
                    f"sample {start + row} of {split} is also in {first}"
                )


def _bytes_of(clean: Clean, row: int) -> bytes:
    return b"".join(
        part[row].contiguous().numpy().tobytes() for part in (clean.x0, clean.valid)
    )


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
