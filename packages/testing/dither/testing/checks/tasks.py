"""Checks for tasks. Letters: B batch, L length, M features."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from dither.registry import FeatureSpace, TokenSpace
from dither.registry.flow.records import Clean, Measured, over

from ..check_utils import NotApplicable, assert_equal, clean_ids, random_output, seed_cpu, snapshot, usable_ids
from ..situations import Situation, default_spec
from .check import checks_of

__all__ = ["CHECKS"]

ROWS = 3
CHUNK = 256
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_built: dict[str, Any] = {}


def _task(s: Situation) -> Any:
    """Build a task once; reading its data may take seconds."""
    key = f"{s.part.pinned} {s.spec!r}"
    if key not in _built:
        _built[key] = s.build()
    return _built[key]


def _satisfies(clean: Clean, task: Any, rows: int, what: str) -> None:
    """Refuse a batch that is not of the space."""
    space = task.space
    features = isinstance(space, FeatureSpace)
    shape = (rows, space.length, *([space.width] if features else []))
    assert tuple(clean.x0.shape) == shape, f"{what}: x0 has the shape {tuple(clean.x0.shape)}, the space says {shape}"
    assert clean.valid.shape == shape[:2], f"{what}: valid has the shape {tuple(clean.valid.shape)}"
    assert clean.known.shape == shape, f"{what}: known has the shape {tuple(clean.known.shape)}"
    assert clean.valid.dtype == clean.known.dtype == torch.bool, f"{what}: masks are bool"
    assert not (clean.known & ~over(clean.valid, clean.x0)).any(), f"{what}: padding is not known"
    told = {condition.name: condition.size for condition in space.conditions}
    for name, value in clean.cond.items():
        assert len(value) == rows, f"{what}: condition {name} has {len(value)} rows, not {rows}"
        if name in told:
            _told_as_said(name, value, told[name], (rows, space.length), what)
    if features:
        assert clean.x0.dtype == torch.float32, f"{what}: features are float32, not {clean.x0.dtype}"
        assert clean.x0.isfinite().all(), f"{what}: features are not finite"
    else:
        assert clean.x0.dtype == torch.int64, f"{what}: ids are int64, not {clean.x0.dtype}"
        _ids_in_place(clean, space, what)


def _told_as_said(name: str, value: Tensor, size: int | None, shape: tuple[int, int], what: str) -> None:
    """Refuse a condition that is not what the space says: labels -1 .. size-1, or a number per position."""
    expected = shape if size is None else shape[:1]
    assert value.shape == expected, f"{what}: condition {name} has the shape {tuple(value.shape)}, not {expected}"
    if size is None:
        assert value.isfinite().all(), f"{what}: condition {name} is not finite"
    else:
        assert value.dtype == torch.int64, f"{what}: labels are int64, and {name} is {value.dtype}"
        assert ((value >= -1) & (value < size)).all(), f"{what}: {name} has labels outside -1..{size - 1}"


def _ids_in_place(clean: Clean, space: TokenSpace, what: str) -> None:
    assert usable_ids(space, clean.x0).all(), f"{what}: ids are outside the vocabulary of their field"
    assert clean_ids(space, clean.x0)[clean.valid].all(), f"{what}: MASK or PAD stands on a valid position"
    for name, x in space.split(clean.x0).items():
        (field,) = (field for field in space.fields if field.name == name)
        padding = x[~space.split(clean.valid)[name]]
        assert field.pad is None or (padding == field.pad).all(), f"{what}: padding of {name} is not {field.pad}"


def splits_not_empty(s: Situation) -> None:
    """There is something to train on, to validate with and to test on."""
    sizes = {split: _task(s).size(split) for split in ("train", "valid", "test")}
    assert all(size > 0 for size in sizes.values()), f"samples: {sizes}"


def space_is_true(s: Situation) -> None:
    """The space told before building is the space of the task, and its batches are in it."""
    task = _task(s)
    assert s.spec.space() == task.space, f"the Spec says {s.spec.space()}, the task {task.space}"
    for split in ("train", "valid", "test"):
        rows = range(min(ROWS, task.size(split)))
        _satisfies(task.batch(split, rows), task, len(rows), split)
    last = task.size("train") - 1
    _satisfies(task.batch("train", [last]), task, 1, "the last sample")


def pure_in_rows(s: Situation) -> None:
    """A sample is a function of its number: not of its neighbours, the order, or the seed."""
    task = _task(s)
    rows = [i % task.size("train") for i in (2, 0, 1)]
    seed_cpu(s.seed)
    random = torch.get_rng_state()
    together = task.batch("train", rows)
    assert torch.equal(torch.get_rng_state(), random), "a batch draws from the global generator"
    seed_cpu(s.seed + 1)
    for place, row in enumerate(rows):
        for a, b in zip(snapshot(task.batch("train", [row])), snapshot(together[place : place + 1]), strict=True):
            assert_equal(a, b, f"sample {row} alone")


def likes_are_seeded(s: Situation) -> None:
    """What sampling starts from is of the space, a function of number and seed, and leaves something to draw."""
    task = _task(s)
    like = task.like(ROWS, s.seed)
    _satisfies_start(like, task)
    seed_cpu(s.seed)
    for a, b in zip(snapshot(task.like(ROWS, s.seed)), snapshot(like), strict=True):
        assert_equal(a, b, "the same seed again")
    assert (~like.fixed).any(), "nothing is left to draw"


def _satisfies_start(like: Clean, task: Any) -> None:
    """Where nothing is known x0 may hold anything of the right kind; what is fixed must be of the space."""
    x0 = like.x0
    if isinstance(task.space, TokenSpace):
        first = task.space.clean().int().argmax(-1)
        x0 = torch.where(like.fixed, x0, first)
    _satisfies(Clean(x0, like.valid, like.known, like.cond), task, ROWS, "like")


def _evaluated(s: Situation) -> tuple[Any, Clean, Any, Tensor, Any]:
    """Return a task, a batch, a process that fits, raw output and the noised batch."""
    task = _task(s)
    for part in s.catalog.parts("process"):
        spec: Any = default_spec(part, s.catalog)
        if not list(spec.check(task.space)):
            process = spec.build(task.space)
            clean = task.batch("valid", range(min(ROWS, task.size("valid"))))
            seed_cpu(s.seed)
            noised = process.corrupt(clean, torch.rand(len(clean.valid)) * 0.8 + 0.1)
            return task, clean, process, random_output(process.space, clean.valid, s.seed), noised
    raise NotApplicable("no process is installed that fits the space")


def metrics_of_any_cut(s: Situation) -> None:
    """Figures are finite, and do not depend on how a split was cut into batches."""
    task, clean, process, raw, noised = _evaluated(s)
    values = torch.rand(clean.valid.shape, generator=torch.Generator().manual_seed(s.seed))
    measured = Measured(values, clean.valid.float())

    def figures(cuts: list[slice]) -> dict[str, float]:
        metrics = task.metrics()
        for cut in cuts:
            pred = process.read(raw[cut], noised[cut].state, noised[cut].noise)
            metrics.update(clean[cut], noised[cut], pred, measured[cut])
        found: dict[str, float] = metrics.compute()
        return found

    whole, cut = figures([slice(None)]), figures([slice(i, i + 1) for i in range(len(clean.valid))])
    assert whole, "there are no metrics"
    assert whole.keys() == cut.keys(), f"{sorted(whole)} for one batch, {sorted(cut)} for several"
    for name, value in whole.items():
        assert math.isfinite(value), f"{name} is {value}"
        close_enough = math.isclose(value, cut[name], rel_tol=1e-4, abs_tol=1e-6)
        assert close_enough, f"{name}: {value} at once, {cut[name]} in rows"


def baselines_are_finite(s: Situation) -> None:
    """Each baseline is `metric/name`, and finite."""
    found = _task(s).baselines()
    assert found, "there is no baseline to compare with"
    for name, value in found.items():
        assert re.fullmatch(r"[^/]+/[^/]+", name), f'"{name}" is not metric/baseline'
        assert math.isfinite(value), f"{name} is {value}"


def judges_and_shows(s: Situation) -> None:
    """Samples have finite figures, and pictures that open under names of their own."""
    task = _task(s)
    like, samples = task.like(ROWS, s.seed), task.batch("valid", [i % task.size("valid") for i in range(ROWS)]).x0
    samples = torch.where(like.fixed, like.x0, samples)
    figures = task.sample_metrics(samples, like)
    for name, value in figures.items():
        assert math.isfinite(value), f"{name} is {value}"
    assert task.sample_metrics(samples, like) == figures, "figures differ when they are asked for again"
    pictures = list(task.plots(samples, like))
    assert pictures, "nothing is shown"
    names = [picture.name for picture in pictures]
    assert len(set(names)) == len(names), f"two pictures have one name: {names}"
    for picture in pictures:
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*", picture.name), f'"{picture.name}" is no file name'
        assert picture.png or picture.svg or picture.text is not None, f"{picture.name} is empty"
        assert picture.png is None or picture.png.startswith(SIGNATURE), f"{picture.name} is no PNG"
        assert picture.svg is None or "<svg" in picture.svg[:500], f"{picture.name} is no SVG"


def splits_disjoint(s: Situation) -> None:
    """No sample of one split is in another."""
    task = _task(s)
    seen: dict[bytes, str] = {}
    for split in ("train", "valid", "test"):
        size = task.size(split)
        for start in range(0, size, CHUNK):
            clean = task.batch(split, range(start, min(start + CHUNK, size)))
            for row in range(len(clean.valid)):
                key = _bytes_of(clean, row)
                first = seen.setdefault(key, split)
                assert first == split, f"sample {start + row} of {split} is also in {first}"


def _bytes_of(clean: Clean, row: int) -> bytes:
    return b"".join(part[row].contiguous().numpy().tobytes() for part in (clean.x0, clean.valid))


CHECKS = (
    *checks_of(
        "task",
        splits_not_empty,
        space_is_true,
        pure_in_rows,
        likes_are_seeded,
        metrics_of_any_cut,
        judges_and_shows,
    ),
    *checks_of("task", splits_disjoint, needs="disjoint-splits"),
    *checks_of("task", baselines_are_finite, level="recommended"),
)
"""The checks for tasks."""
