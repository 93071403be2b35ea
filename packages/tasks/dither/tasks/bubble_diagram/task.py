"""The bubble diagram task: batches of tokens, metrics, pictures and exports.

Letters: B batch, N samples, L tokens (R room slots, then the pairs of slots, then doors and areas,
or boxes, if modelled).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import Metrics, Picture, RatioSums, Split, Task
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import TokenSpace

from ..feature_distances import FeatureExtractor, frechet_distance, kernel_distance
from ..row_numbers import row_numbers
from ..token_metrics import Accuracy
from .arrays import Boundaries, Boundary, BoxBatch, Boxes, Numbers, Tokens
from .box_tokens import decode_boxes, encode_boxes, snap
from .constraints.guidance import ConstraintGuidance, boundaries_of
from .constraints.table import Constraints
from .decoded_samples import (
    DecodedSample,
    box_metrics,
    compatibility,
    decode_samples,
    layout_area_error,
    layout_met,
    outline_metrics,
    read_samples,
)
from .export import write_samples
from .formats.jsonl import read_plan
from .geometry.boundary import read_boundary
from .geometry.outline_rectangles import most_rooms
from .geometry.wall_constraints import SMALLEST
from .metrics import (
    MOST_HELD,
    Frequencies,
    Reference,
    field_metrics,
    field_nats,
    shuffled,
)
from .plan_features import plan_features
from .plans import (
    Diagram,
    Edit,
    Modelled,
    Plans,
    PlanSplits,
    area_bins,
    outline_areas,
    real_edges,
)
from .plots.pictures import sample_pictures, trajectory_pictures
from .relations import net_areas
from .validity import is_buildable
from .vocabulary import (
    AREAS,
    LIVING,
    METRES,
    NODE_PAD,
    SIDES,
    Export,
    Order,
    Orientation,
)

_Samples = Int[Tensor, "N L"]

NEAREST = 500
"""Training plans, those nearest in area, whose numbers of rooms a given outline gets."""

DRAWN = 36
"""Samples that are laid out to see whether they are dwellings, and compared with outlines and
areas."""

REFERENCE = 1024
"""Diagrams of each baseline that are evaluated with the sample metrics."""


class BubbleDiagrams(Task):
    """Bubble diagrams as token sequences by field, and constraints on samples."""

    def __init__(
        self,
        plans: PlanSplits,
        space: TokenSpace,
        constraints: Constraints | None = None,
        order: Order = "given",
        orientation: Orientation = "given",
        extractor: FeatureExtractor | None = None,
    ) -> None:
        for split in ("train", "valid"):
            if not len(getattr(plans, split)):
                raise Refused(
                    f'the split "{split}" contains no plans', code="no-samples"
                )
        # Before the order, which depends on how a plan is turned.
        if orientation != "given":
            plans = plans.map(Plans.upright)
        if order != "given":
            plans = plans.map(Plans.from_left_to_right)

        names = {field.name for field in space.fields}
        self._boxed = not names.isdisjoint(SIDES)
        # Last, as walls do not stay in the middle of bins.
        if self._boxed:
            plans = plans.map(snap)

        self.space = space
        self.rooms = space.fields[0].length
        self.modelled = Modelled(doors="doors" in names, areas="areas" in names)
        self._extractor = extractor
        self._order = order
        self._orientation = orientation
        self._base = self.rooms * (self.rooms + 1) // 2
        """Number of tokens of types and relations."""

        self._plans: dict[Split, Plans] = {
            "train": plans.train,
            "valid": plans.valid,
            "test": plans.test,
        }
        # Encoded once, so that a batch only selects rows.
        self._tokens = {
            split: self._encode(part) for split, part in self._plans.items()
        }
        self._remarks = plans.remarks
        self._room_counts = np.bincount(plans.train.rooms, minlength=self.rooms + 1)
        """Number of training plans by number of rooms."""

        self._constraints = constraints or Constraints()
        self._goal = None
        met_by = None
        if constraints is not None:
            self._goal = constraints.goal(self.rooms, **self.modelled)
            met_by = self._goal.met_by
        self._reference = Reference(plans, self.rooms, met_by)

    def _encode(self, plans: Plans) -> Tokens:
        tokens = plans.tokens(self.rooms, **self.modelled)
        if self._boxed:
            tokens = np.concatenate([tokens, encode_boxes(plans, self.rooms)], 1)
        return tokens

    def _split(self, samples: Tensor) -> tuple[Tokens, BoxBatch | None]:
        """Return tokens without those of boxes, and boxes in pixels if they are modelled."""
        tokens = samples.cpu().numpy()
        if not self._boxed:
            return tokens, None
        return tokens[:, : self._base], decode_boxes(tokens[:, self._base :])

    def size(self, split: Split) -> int:
        return len(self._tokens[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        numbers = row_numbers(rows, self.size(split))
        x0 = torch.from_numpy(self._tokens[split][numbers]).long()
        types = x0[:, : self.rooms]
        clean = Clean.of(x0, self._valid(types != NODE_PAD))
        if not self.space.conditions:
            return clean
        return _bounded(clean, self._boundaries(split)[numbers])

    def _boundaries(self, split: Split) -> Boundaries:
        boundaries = self._plans[split].boundaries
        assert boundaries is not None  # see `with_boundaries`
        return boundaries

    def buckets(self, split: Split) -> Sequence[int]:
        """Return the number of rooms of each diagram."""
        return cast(Sequence[int], self._plans[split].rooms)

    def valid_positions(self, x0: _Samples) -> Bool[Tensor, "N L"]:
        """Return the tokens of rooms that exist, and of pairs of them."""
        return self._valid(x0[:, : self.rooms] != NODE_PAD)

    def decode(self, samples: _Samples, like: Clean) -> list[Diagram | None]:
        """Return each sample as a `Diagram`; None if its tokens contradict each other.

        Samples of an edited plan have boxes, and are as the plan is; so have those of a model of
        boxes, which need not agree with their relations.
        """
        if isinstance(like.goal, ConstraintGuidance) and like.goal.edit is not None:
            tokens = samples.cpu().numpy()
            edited = decode_samples(tokens, self.rooms, narrow=_narrow(like))
            placements = [sample.placement for sample in edited]
            return [placed.diagram if placed else None for placed in placements]
        tokens, boxes = self._split(samples)
        diagrams = read_samples(tokens, self.rooms, boxes)
        return [diagram for diagram, _ in diagrams]

    def _valid(self, real: Tensor) -> Tensor:
        pairs = torch.from_numpy(real_edges(real.numpy()))
        parts = {"edges": [pairs], "doors": [pairs, real]}
        masks = []
        for field in self.space.fields:
            # Of other fields every room has a token.
            masks += parts.get(field.name, [real])
        return torch.cat(masks, 1)

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` fully masked diagrams with numbers of rooms drawn as in training.

        Under constraints only feasible numbers of rooms are drawn, and tokens with a single allowed
        id are known.
        """
        # Under constraints, the weights of infeasible numbers of rooms are 0.
        templates = self._templates(n, seed, self._room_counts, self._goal)
        if not self.space.conditions:
            return templates

        # Each template has the boundary of a validation plan with as many rooms, if there is one.
        # Other draws than those of the numbers of rooms.
        random = np.random.default_rng((seed, 1))
        counts = self._plans["valid"].rooms
        rows = []
        for rooms in templates.valid[:, : self.rooms].sum(1).tolist():
            equal = np.flatnonzero(counts == rooms)
            rows.append(random.choice(equal if len(equal) else len(counts)))
        return _bounded(templates, self._boundaries("valid")[np.array(rows, int)])

    def within(
        self,
        outline: Path,
        n: int,
        seed: int,
        like: Clean | None = None,
    ) -> Clean:
        """Return `n` templates for an outline in a file; see `geometry.boundary.read_boundary`.

        The number of rooms has the distribution of the training plans that are nearest in area.
        With `like`, these templates get the outline.

        Raises:
            Refused: The file is invalid, the task has no boundaries (`misfit`), or the outline is
                too small for the rooms or for the areas of the constraints (`contradiction`).
        """
        if not self.space.conditions:
            message = "an outline requires a model trained with task.boundary = true"
            raise Refused(message, code="misfit")

        boundary = read_boundary(outline)

        if self._goal and (problems := self._goal.outline_problems(boundary)):
            raise Refused(problems)
        limit = most_rooms(boundary)
        if like is not None:
            required = like.valid[:, : self.rooms].sum(1).max()
        else:
            counts = self._nearest_counts(boundary)
            if self._goal is not None:
                counts = self._goal.room_counts(counts)
            required = np.flatnonzero(counts).min()
        if required > limit:
            holds = f"holds at most {limit} rooms of {SMALLEST * METRES:.2f} m"
            message = (
                f"{outline}: the outline {holds}, at least {required} are required"
            )
            raise Refused(message, code="contradiction")
        if like is None:
            counts[limit + 1 :] = 0
            like = self._templates(n, seed, counts, self._goal)
        return _bounded(like, np.repeat(boundary[None], len(like.valid), 0))

    def _nearest_counts(self, boundary: Boundary) -> Numbers:
        """Return how many of the training plans that are nearest in area have each number of rooms."""
        areas = outline_areas(self._boundaries("train"))
        distances = np.abs(areas - outline_areas(boundary[None]))
        nearest = np.argsort(distances, kind="stable")[:NEAREST]
        rooms = self._plans["train"].rooms[nearest]
        return np.bincount(rooms, minlength=self.rooms + 1)

    def _require_editable(self) -> None:
        if self._boxed:
            message = "no plan is edited by a model with task.boxes = true"
            raise Refused(message, ("task", "boxes"), code="misfit")

    def edit(
        self,
        source: Diagram | Path,
        keep: Sequence[int] | None = None,
        redraw: int | None = None,
        n: int = 1,
        seed: int = 0,
    ) -> Clean:
        """Return `n` templates that keep rooms of a plan and their relations, with others to draw.

        Args:
            source: The plan, or a file with it: JSON lines, or a .json file also in the layout of
                HouseGAN++.
            keep: Numbers of the rooms to keep; by default all. Decoded and exported samples have
                them first, in ascending order, and the boxes of the plan where there are such
                boxes. The model sees the plan in the order and orientation of the task: from left
                to right, kept rooms are in random slots.
            redraw: Number of other rooms; by default the number that the plan has. To extend a plan
                by a room, keep all and draw one.
            n: Number of templates.
            seed: Seed of these slots.

        Raises:
            Refused: The file is invalid, a room does not exist, the kept rooms contradict the
                constraints, or boxes are modelled (`misfit`).
        """
        self._require_editable()
        diagram = read_plan(source, self.rooms) if isinstance(source, Path) else source
        kept, total = _kept_rooms(len(diagram.types), keep, redraw, self.rooms)
        numbers = list(range(len(diagram.types)))
        turns = 0
        mirrored = False
        if diagram.boxes is not None:
            diagram, numbers, turns, mirrored = self._arrange(diagram)
        # From here on rooms are numbered as the model sees them.
        rooms = sorted(numbers.index(room) for room in kept)
        slots: Sequence[int] = range(len(rooms))
        if self._order != "given" and diagram.boxes is not None:
            slots = _random_slots(diagram, rooms, total, seed)
        placed = dict(zip(slots, rooms, strict=True))
        constraints = self._constraints.keeping(diagram, placed, total, **self.modelled)
        misfits = constraints.check(self.rooms, **self.modelled)
        problems = [
            Problem(m.message, m.path, help=m.help, code=m.code) for m in misfits
        ]
        if problems:
            raise Refused(problems)
        goal = constraints.goal(self.rooms, **self.modelled)
        if diagram.boxes is not None:
            in_file = sorted(placed.items(), key=lambda item: numbers[item[1]])
            goal.edit = Edit(
                slots=tuple(slot for slot, _ in in_file),
                boxes=tuple(diagram.boxes[room] for _, room in in_file),
                turns=turns,
                mirrored=mirrored,
            )
        return self._templates(n, seed, self._room_counts, goal)

    def _arrange(self, diagram: Diagram) -> tuple[Diagram, list[int], int, bool]:
        """Return a plan as the task's plans are, with the old numbers of its rooms.

        Also how many quarter turns it was given, and whether it was mirrored after.
        """
        plan = Plans.from_diagrams([diagram], len(diagram.types))
        turns = 0
        mirrored = False
        if self._orientation != "given":
            all_turns, all_mirrored = plan.upright_turns()
            turns = int(all_turns[0])
            mirrored = bool(all_mirrored[0])
            plan = plan.upright()
        order = list(range(len(diagram.types)))
        if self._order != "given":
            order = plan.order()[0].tolist()
            plan = plan.from_left_to_right()

        areas = diagram.areas and tuple(diagram.areas[room] for room in order)
        if self.modelled["areas"] and areas is None:
            # A file without areas has those of its boxes.
            pixels = net_areas(plan.types, plan.boxes)[0]
            bins = area_bins(pixels * METRES**2).tolist()
            areas = tuple((AREAS[i], AREAS[i + 1]) for i in bins)
        return replace(plan.diagram(0), areas=areas), order, turns, mirrored

    def _templates(
        self,
        n: int,
        seed: int,
        counts: Numbers,
        goal: ConstraintGuidance | None,
    ) -> Clean:
        """Return masked diagrams whose numbers of rooms have weights `counts`."""
        if goal is not None:
            counts = goal.room_counts(counts)
        shares = counts / counts.sum()
        rooms = np.random.default_rng(seed).choice(len(shares), n, p=shares)
        real = np.arange(self.rooms) < rooms[:, None]
        valid = self._valid(torch.from_numpy(real))
        mask: list[Any] = []
        pad: list[Any] = []
        for field in self.space.fields:
            mask += [field.mask] * field.length
            pad += [field.pad] * field.length
        x0 = torch.where(valid, torch.tensor(mask), torch.tensor(pad))
        empty = Clean.of(x0, valid)

        if goal is None:
            return empty
        return goal.begin(empty)

    def data_warnings(self) -> Iterator[str]:
        """Yield remarks on the data, which plans metrics leave out, and numbers of rooms without a training plan."""
        yield from self._remarks
        size = self.size("valid")
        if size > MOST_HELD:
            yield f"samples are compared with the first {MOST_HELD:,} of {size:,} valid plans"
        if self._goal and (warning := self._goal.unseen_rooms(self._room_counts)):
            yield warning

    def metrics(self) -> GraphMetrics:
        """Return a new accumulator of nats per graph and per token."""
        return GraphMetrics(self.space)

    def baselines(
        self, split: Split = "valid", samples: int | None = None
    ) -> dict[str, float]:
        """Return metrics of the uniform and the unigram predictor, and of three sets of samples.

        "unigram" are samples of the unigram predictor, "real" test plans (the noise floor), and
        "shuffled" test plans whose relations are permuted among them.
        They are those of all plans: `samples` is not used. Without boxes, "unigram" and "shuffled"
        have no levels to compare with those of modelled boxes.
        """
        train = self._tokens["train"]
        uniform, unigram, count = field_nats(
            train, self._tokens[split], self.space.fields
        )
        metrics = {
            "uniform": _nats_metrics(uniform, count),
            "unigram": _nats_metrics(unigram, count),
        }
        fitted = Frequencies.of(train[:, : self._base], self.rooms)
        metrics["unigram"] |= self._reference.metrics(fitted.draw(REFERENCE, 0))
        real = self._tokens["test"][:REFERENCE, : self._base]
        if len(real):
            metrics["shuffled"] = self._reference.metrics(shuffled(real, self.rooms, 0))
            metrics["real"] = self._reference.floor(len(real))

        if self._boxed:
            for name in ("level_3", "level_4", "level_5", "valid_unique_novel"):
                metrics["unigram"].pop(name, None)
                metrics.get("shuffled", {}).pop(name, None)

        named: dict[str, float] = {}
        for baseline, values in metrics.items():
            named |= {f"{name}/{baseline}": value for name, value in values.items()}
        return named

    def sample_metrics(self, samples: _Samples, like: Clean) -> dict[str, float]:
        """Return validity levels, and distances to validation plans that meet the constraints.

        Each distance has its noise floor. For modelled doors and areas also `field_metrics`, and
        for the first `DRAWN` samples those of their layouts; `compatibility` is that of all samples
        unless they have outlines. For modelled boxes also `box_metrics`; levels and layouts are
        those of the boxes.
        """
        tokens, boxes = self._split(samples)
        # Graph metrics depend on types and relations only, which come first.
        metrics = self._reference.sample_metrics(tokens[:, : self._base], boxes)
        if boxes is not None and len(tokens):
            metrics |= box_metrics(tokens, self.rooms, boxes, DRAWN)
        if any(self.modelled.values()) and len(tokens):
            valid, test = (
                part.tokens(self.rooms, **self.modelled)
                for part in self._reference.held
            )
            metrics |= field_metrics(tokens, valid, self.rooms)
            floor = field_metrics(test[: len(tokens)], valid, self.rooms)
            metrics |= {f"{name}_floor": value for name, value in floor.items()}
        if boundaries_of(like.cond) is None:
            metrics |= compatibility(tokens, self.rooms, _narrow(like), boxes)

        drawn = None if boxes is None else boxes[:DRAWN]
        return metrics | self._layout_metrics(tokens[:DRAWN], drawn, like)

    def _layout_metrics(
        self, tokens: Tokens, boxes: BoxBatch | None, like: Clean
    ) -> dict[str, float]:
        """Return metrics of the layouts of samples, which take much longer than others."""
        count = len(tokens)
        if not count:
            return {}
        boundaries = boundaries_of(like.cond)
        required = boundaries is not None or self.modelled["areas"]
        if not required and boxes is None:
            # Others are no dwellings, and nothing else is measured.
            tokens = tokens[is_buildable(tokens, self.rooms)]
        samples = list(
            decode_samples(
                tokens=tokens,
                rooms=self.rooms,
                boundaries=boundaries,
                narrow=_narrow(like),
                boxes=boxes,
            )
        )
        dwellings = [sample for sample in samples if sample.level == 6]
        metrics = {"level_6": len(dwellings) / count}
        if self.modelled["areas"]:
            metrics |= layout_area_error(samples)
        if required:
            metrics |= layout_met(samples)
        return metrics | outline_metrics(samples) | self._plan_distances(samples)

    def _plan_distances(self, samples: Sequence[DecodedSample]) -> dict[str, float]:
        """Return distances of the layouts of buildable samples from validation plans.

        The floor has as many test plans.
        """
        layouts = []
        for sample in samples:
            if sample.level >= 5 and sample.placement:
                placed = sample.placement
                layouts.append((placed.diagram.types, placed.boxes))
        valid, test = self._plan_features
        real = test[: len(layouts)]
        # A covariance requires two plans.
        if min(len(layouts), len(valid), len(real)) < 2:
            return {}
        features = plan_features(layouts, self._extractor)
        return {
            "plan_frechet": frechet_distance(features, valid),
            "plan_frechet_floor": frechet_distance(real, valid),
            "plan_kid": kernel_distance(features, valid),
            "plan_kid_floor": kernel_distance(real, valid),
        }

    @cached_property
    def _plan_features(self) -> list[Float[ndarray, "N F"]]:
        """Features of validation and test plans with boxes."""
        features = []
        for plans in self._reference.held:
            drawn: list[tuple[list[int], Boxes]] = []
            for types, boxes in zip(plans.types, plans.boxes, strict=True):
                real = types != NODE_PAD
                if boxes.any() and len(drawn) < REFERENCE:
                    drawn.append((types[real].tolist(), boxes[real]))
            features.append(plan_features(drawn, self._extractor))
        return features

    def plots(self, samples: _Samples, like: Clean) -> Iterator[Picture]:
        tokens, boxes = self._split(samples)
        yield from sample_pictures(
            samples=tokens,
            rooms=self.rooms,
            boundaries=boundaries_of(like.cond),
            narrow=_narrow(like),
            boxes=boxes,
        )

    def export(
        self,
        samples: _Samples,
        like: Clean,
        form: str,
        folder: Path,
    ) -> tuple[list[Path], list[str]]:
        """Write samples in a format of `EXPORTS`; see `write_samples`."""
        tokens, boxes = self._split(samples)
        return write_samples(
            tokens,
            self.rooms,
            folder,
            cast(Export, form),
            boundaries_of(like.cond),
            _narrow(like),
            boxes,
        )

    def trajectory_plots(
        self, path: Int[Tensor, "T N L"], like: Clean
    ) -> Iterator[Picture]:
        # The start, in which everything is masked, is the first picture.
        path = torch.cat([like.x0[None].to(path), path])
        _, boxes = self._split(path[-1])
        states = path.cpu().numpy()
        if boxes is not None:
            states = states[..., : self._base]
        yield from trajectory_pictures(states, self.rooms, _narrow(like), boxes)


def _kept_rooms(
    rooms: int,
    keep: Sequence[int] | None,
    redraw: int | None,
    slots: int,
) -> tuple[list[int], int]:
    """Return the rooms of a plan to keep, and the number of rooms with those to draw.

    Raises:
        Refused: A room does not exist, nothing is left to draw, or there are too few slots
            (`out-of-range`).
    """
    kept = sorted(set(range(rooms) if keep is None else keep))
    drawn = redraw
    if drawn is None:
        drawn = rooms - len(kept)
    total = len(kept) + drawn
    problems = [
        f"rooms are numbered 0 to {rooms - 1}, got {room}"
        for room in kept
        if not 0 <= room < rooms
    ]
    if not problems and not len(kept) < total <= slots:
        expected = f"expected 1 to {slots - len(kept)}"
        problems = [f"{len(kept)} rooms to keep, {drawn} to draw: {expected}"]
    if problems:
        raise Refused([Problem(text, code="out-of-range") for text in problems])
    return kept, total


def _random_slots(
    diagram: Diagram,
    rooms: Sequence[int],
    total: int,
    seed: int,
) -> list[int]:
    """Return slots for rooms of a plan among `total` rooms; the living room is always the first."""
    first = [0 for room in rooms[:1] if diagram.types[room] == LIVING]
    random = np.random.default_rng(seed)
    others = random.choice(total - 1, len(rooms) - len(first), replace=False)
    return [*first, *(np.sort(others) + 1).tolist()]


def _narrow(like: Clean) -> Callable[[Diagram], Diagram] | None:
    """Return the function that narrows the areas of a diagram to the constraints on samples."""
    if isinstance(like.goal, ConstraintGuidance):
        return like.goal.narrow
    return None


def _bounded(clean: Clean, boundaries: Boundaries) -> Clean:
    """Add boundaries as the condition of a batch."""
    flat = torch.from_numpy(boundaries.reshape(len(boundaries), -1).astype(np.int64))
    return replace(clean, cond={**clean.cond, "boundary": flat})


class GraphMetrics(Metrics):
    """Nats per graph (by field and total) and per token, and accuracy by noise level.

    Independent of batch sizes. Uses the weights of the loss. If the loss is a NELBO, the values are
    upper bounds of the negative log-likelihood.
    """

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._sums: dict[str, Any] = {
            field.name: torch.zeros(3) for field in space.fields
        }
        """Of each field: nats, weights, and the number of tokens to predict; on the device."""
        self._graphs = 0
        self._accuracy = Accuracy(space)

    def update(
        self,
        clean: Clean,
        noised: Noised,
        pred: Any,
        measured: Measured,
    ) -> None:
        # Sums over many batches lose digits in float32.
        values = measured.values.double()
        weights = measured.weights.double()
        parts = torch.stack([values * weights, weights, (~clean.fixed).double()])
        for name, part in self._space.split(parts, 2).items():
            # On the device of the batch: reading the sums would wait for it.
            previous = self._sums[name].to(part)
            self._sums[name] = previous + part.sum((1, 2))
        self._graphs += len(clean.valid)
        if pred is not None:
            self._accuracy.update(noised, pred)

    def per_sample(self, clean: Clean, measured: Measured) -> dict[str, RatioSums]:
        """Return numerators and denominators per graph; empty if the loss weights its positions."""
        if not self._accuracy.unweighted(clean, measured):
            return {}
        weights = measured.weights.double()
        nats = (measured.values.double() * weights).sum(1)
        return {
            "nats_per_graph": (nats, torch.ones_like(nats)),
            "nats_per_token": (nats, weights.sum(1)),
        }

    def compute(self) -> dict[str, float]:
        """Return the metrics; NaN without data."""
        if not self._graphs:
            nothing = dict.fromkeys(self._sums, 0.0)
            return _nats_metrics(dict.fromkeys(self._sums, float("nan")), nothing)
        nats = {}
        tokens = {}
        # Weights of a loss need not sum to the number of tokens: the mean is scaled to it.
        for name, sums in self._sums.items():
            nats_sum, weight_sum, token_sum = sums.tolist()
            tokens[name] = token_sum / self._graphs
            nats[name] = nats_sum / weight_sum * tokens[name] if weight_sum else 0.0
        return _nats_metrics(nats, tokens) | self._accuracy.compute()


def _nats_metrics(nats: dict[str, float], tokens: dict[str, float]) -> dict[str, float]:
    """Return nats per graph by field, their sum, and nats per token."""
    nats_sum = sum(nats.values())
    count = sum(tokens.values())
    metrics = {"nats_per_graph": nats_sum}
    metrics |= {f"{name}_nats_per_graph": value for name, value in nats.items()}
    metrics["nats_per_token"] = nats_sum / count if count else float("nan")
    return metrics
