"""The bubble diagram task: batches of tokens, metrics, pictures and exports.

Letters: B batch, N samples, L tokens (R room slots, then the pairs of slots, then doors and areas
if modelled).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import Picture, RatioSums, Split
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder

from ..token_metrics import Accuracy
from .constraints.guidance import ConstraintGuidance
from .constraints.table import Constraints
from .decoded_samples import decode_samples, layout_area_error
from .export import write_samples
from .formats.jsonl import read_plan
from .geometry.boundary import read_boundary
from .geometry.outline_fit import outline_iou
from .metrics import (
    MOST_HELD,
    MOST_TRAIN,
    Frequencies,
    Reference,
    field_metrics,
    field_nats,
    shuffled,
)
from .plans import (
    RESIDENT,
    Diagram,
    LazyPlans,
    Modelled,
    Plans,
    PlanSplits,
    area_bins,
    outline_areas,
    real_edges,
)
from .plots.pictures import sample_pictures, trajectory_pictures
from .relations import METRES, net_areas
from .vocabulary import AREAS, LIVING, NODE_PAD, Export, Order, Orientation

__all__ = ["BubbleDiagrams", "GraphMetrics"]

NEAREST = 500
DRAWN = 64
"""Training plans whose numbers of rooms a given outline gets; samples that are drawn to compare
them with outlines, and their areas with those of their tokens."""

REFERENCE = 1024
"""Diagrams of each baseline that are evaluated with the sample metrics."""


@dataclass(frozen=True)
class RoomCounts(Sequence[int]):
    """Number of rooms of each plan, counted on access by a number, a slice or an array of numbers."""

    types: Int[np.ndarray, "N R"]

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: Any) -> Any:
        types = np.moveaxis(self.types[rows], -1, 0)
        return np.sum([part != NODE_PAD for part in types], 0)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Int[np.ndarray, " N"]:
        return np.asarray(self[:], dtype)


class PlanTokens:
    """Tokens of plans: in memory, or encoded on access if there are more than `RESIDENT`."""

    def __init__(self, plans: Plans | LazyPlans, rooms: int, modelled: Modelled) -> None:
        self.plans = plans
        self._rooms = rooms
        self._modelled = modelled
        self.counts = RoomCounts((plans.stored if isinstance(plans, LazyPlans) else plans).types)
        self._tokens: Int[np.ndarray, "N L"] | None = None
        if len(self) <= RESIDENT:
            self._tokens = plans[:].tokens(rooms, **modelled)
        elif any(
            modelled.values()
        ):  # plans whose doors or boxes are unknown are refused before training
            for start in range(0, len(self), RESIDENT // 16):
                self[start : start + RESIDENT // 16]

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, rows: slice | Int[np.ndarray, " n"]) -> Int[np.ndarray, "n L"]:
        if self._tokens is not None:
            return self._tokens[rows]
        return self.plans[rows].tokens(self._rooms, **self._modelled)


class BubbleDiagrams:
    """Bubble diagrams as token sequences with the fields of the space, and constraints on samples."""

    def __init__(
        self,
        plans: PlanSplits,
        space: TokenSpace,
        constraints: Constraints | None = None,
        order: Order = "given",
        orientation: Orientation = "given",
    ) -> None:
        self.space = space
        self._order = order
        self._orientation = orientation
        self.rooms = space.fields[0].length
        for split in ("train", "valid"):
            if not len(getattr(plans, split)):
                raise Refused(f'the split "{split}" contains no plans', code="no-samples")
        if orientation != "given":
            plans = plans.map(Plans.upright)
        if order != "given":
            plans = plans.map(Plans.from_left_to_right)
        names = {field.name for field in space.fields}
        self.modelled = Modelled(doors="doors" in names, areas="areas" in names)
        self._tokens = {
            split: PlanTokens(part, self.rooms, self.modelled)
            for split, part in vars(plans).items()
        }
        self._base = self.rooms * (self.rooms + 1) // 2
        """Number of tokens of types and relations."""
        self._constraints = constraints or Constraints()
        self._goal = None if constraints is None else constraints.goal(self.rooms, **self.modelled)
        self._reference = Reference(
            plans, self.rooms, None if self._goal is None else self._goal.met_by
        )

    @cached_property
    def _rooms(self) -> Int[np.ndarray, " R_1"]:
        """Number of training plans by number of rooms."""
        counts = self._tokens["train"].counts
        starts = range(0, self.size("train"), RESIDENT)
        parts = [
            np.bincount(counts[start : start + RESIDENT], minlength=self.rooms + 1)
            for start in starts
        ]
        return np.asarray(np.sum(parts, 0))

    def size(self, split: Split) -> int:
        return len(self._tokens[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        numbers = np.asarray(rows, np.int64)
        size = self.size(split)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
            raise IndexError(f"{split} has rows 0..{size - 1}, got {numbers.tolist()}")
        x0 = torch.from_numpy(self._tokens[split][numbers]).long()
        clean = Clean.of(x0, self._valid(x0[:, : self.rooms] != NODE_PAD))
        return _bounded(clean, self._boundaries(split, numbers)) if self.space.conditions else clean

    def _boundaries(
        self, split: Split, rows: slice | Int[np.ndarray, " n"]
    ) -> Int[np.ndarray, "n P 2"]:
        boundaries = self._tokens[split].plans[rows].boundaries
        assert boundaries is not None  # see `with_boundaries`
        return boundaries

    def buckets(self, split: Split) -> Sequence[int]:
        """Return the number of rooms of each diagram."""
        return self._tokens[split].counts

    def _valid(self, real: Tensor) -> Tensor:
        pairs = torch.from_numpy(real_edges(real.numpy()))
        parts = {"nodes": [real], "edges": [pairs], "doors": [pairs, real], "areas": [real]}
        return torch.cat([part for field in self.space.fields for part in parts[field.name]], 1)

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` fully masked diagrams whose numbers of rooms are drawn from the training distribution.

        Under constraints only feasible numbers of rooms are drawn, and tokens with a single allowed
        id are known.
        """
        counts = self._rooms if self._goal is None else self._goal.room_counts(self._rooms)
        clean = self._templates(n, seed, counts, self._goal)
        if not self.space.conditions:
            return clean
        # Each template has the boundary of a validation plan with as many rooms, if there is one.
        random = np.random.default_rng((seed, 1))
        counts = self._tokens["valid"].counts[:RESIDENT]
        real = clean.valid[:, : self.rooms].sum(1).numpy()
        choices = {count: np.flatnonzero(counts == count) for count in np.unique(real)}
        rows = [
            random.choice(choices[count] if len(choices[count]) else len(counts)) for count in real
        ]
        return _bounded(clean, self._boundaries("valid", np.array(rows, int)))

    def within(
        self,
        outline: Path,
        n: int,
        seed: int,
        like: Clean | None = None,
    ) -> Clean:
        """Return `n` templates for a given outline; see `geometry.boundary.read_boundary` for the file.

        The number of rooms has the distribution of the training plans that are nearest in area.
        With `like`, these templates get the outline.

        Raises:
            Refused: The file is invalid, or the task has no boundaries (`misfit`).
        """
        if not self.space.conditions:
            raise Refused(
                Problem(
                    "an outline requires a model trained with task.boundary = true", code="misfit"
                )
            )
        boundary = read_boundary(outline)
        if like is None:
            boundaries = self._boundaries("train", slice(RESIDENT))
            areas = np.abs(outline_areas(boundaries) - outline_areas(boundary[None]))
            nearest = np.argsort(areas, kind="stable")[:NEAREST]
            counts = np.bincount(self._tokens["train"].counts[nearest], minlength=self.rooms + 1)
            counts = counts if self._goal is None else self._goal.room_counts(counts)
            like = self._templates(n, seed, counts, self._goal)
        return _bounded(like, np.repeat(boundary[None], len(like.valid), 0))

    def edit(
        self,
        source: Diagram | Path,
        keep: Sequence[int] | None = None,
        redraw: int | None = None,
        n: int = 1,
        seed: int = 0,
    ) -> Clean:
        """Return `n` templates that keep rooms of a plan with their relations to each other, with others to draw.

        Args:
            source: The plan, or a file with it: JSON lines, or a .json file also in the layout of
                HouseGAN++.
            keep: Numbers of the rooms to keep, which come first in the samples, in ascending order;
                by default all. If the task orders rooms from left to right, they keep that order,
                in random slots.
            redraw: Number of other rooms; by default the number that the plan has. To extend a plan
                by a room, keep all and draw one.
            n: Number of templates.
            seed: Seed of these slots.

        Raises:
            Refused: The file is invalid, a room does not exist, or the kept rooms contradict the
                constraints.
        """
        diagram = read_plan(source, self.rooms) if isinstance(source, Path) else source
        if diagram.boxes is not None and set(keep or ()) <= set(range(len(diagram.types))):
            diagram, keep = self._arrange(diagram, keep)
            if self.modelled["areas"] and diagram.areas is None and diagram.boxes is not None:
                sizes = net_areas(np.array(diagram.types), np.array(diagram.boxes)) * METRES**2
                diagram = replace(
                    diagram,
                    areas=tuple((AREAS[i], AREAS[i + 1]) for i in area_bins(sizes).tolist()),
                )

        def place(kept: list[int], total: int) -> Sequence[int]:
            if self._order == "given" or diagram.boxes is None:
                return range(len(kept))
            first = int(diagram.types[kept[0]] == LIVING)  # the living room is first, kept or not
            random = np.random.default_rng(seed).choice(total - 1, len(kept) - first, replace=False)
            slots: list[int] = (np.sort(random) + 1).tolist()
            return [0] * first + slots

        constraints = self._constraints.keeping(
            diagram, keep, redraw, self.rooms, place, **self.modelled
        )
        if misfits := list(constraints.check(self.rooms, **self.modelled)):
            raise Refused(
                [Problem(one.message, one.path, help=one.help, code=one.code) for one in misfits]
            )
        goal = constraints.goal(self.rooms, **self.modelled)
        return self._templates(n, seed, goal.room_counts(self._rooms), goal)

    def _arrange(
        self, diagram: Diagram, keep: Sequence[int] | None
    ) -> tuple[Diagram, Sequence[int] | None]:
        """Return a plan in the orientation and order of the task, and the new numbers of the rooms to keep."""
        plan = Plans.from_diagrams([diagram], len(diagram.types))
        plan = plan if self._orientation == "given" else plan.upright()
        order = (
            plan.order()[0].tolist() if self._order != "given" else list(range(len(diagram.types)))
        )
        plan = plan.from_left_to_right() if self._order != "given" else plan
        areas = diagram.areas and tuple(diagram.areas[room] for room in order)
        return replace(plan.diagram(0), areas=areas), None if keep is None else [
            order.index(room) for room in keep
        ]

    def _templates(
        self,
        n: int,
        seed: int,
        counts: Int[np.ndarray, " R_1"],
        goal: ConstraintGuidance | None,
    ) -> Clean:
        shares = counts / counts.sum()
        rooms = np.random.default_rng(seed).choice(len(shares), n, p=shares)
        valid = self._valid(torch.from_numpy(np.arange(self.rooms) < rooms[:, None]))
        mask, pad = (
            torch.tensor(
                [
                    getattr(field, special)
                    for field in self.space.fields
                    for _ in range(field.length)
                ]
            )
            for special in ("mask", "pad")
        )
        empty = Clean.of(torch.where(valid, mask, pad), valid)
        return empty if goal is None else goal.begin(empty)

    def data_warnings(self) -> Iterator[str]:
        """Yield which plans metrics leave out, and that no training plan has as many rooms as constraints require."""
        compared: dict[Split, int] = {"train": MOST_TRAIN, "valid": MOST_HELD}
        for split, most in compared.items():
            if (size := self.size(split)) > most:
                yield f"samples are compared with the first {most:,} of {size:,} {split} plans"
        if self._goal and (warning := self._goal.unseen_rooms(self._rooms)):
            yield warning

    def metrics(self) -> GraphMetrics:
        """Return a new accumulator of nats per graph and per token."""
        return GraphMetrics(self.space)

    def baselines(self, split: Split = "valid") -> dict[str, float]:
        """Return metrics of the uniform and the unigram predictor, and sample metrics of three reference sets.

        "unigram" are samples of the unigram predictor, "real" test plans (the noise floor), and
        "shuffled" test plans whose relations are permuted among them. They are cached on disk by
        data, constraints and source code.
        """
        file = cache_folder() / "baselines" / f"{self._digest(split)}.json"
        with suppress(OSError, ValueError):
            stored: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
            return stored
        metrics = self._baselines(split)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as beside:
                beside.write_text(json.dumps(metrics), encoding="utf-8")
        return metrics

    def _digest(self, split: Split) -> str:
        digest = blake2b(repr((split, self._goal and self._goal.rules)).encode(), digest_size=16)
        for part in self._tokens.values():
            tokens = part[:RESIDENT]
            digest.update(repr((len(part), tokens.shape[1])).encode() + tokens.tobytes())
        for source in sorted(Path(__file__).parent.rglob("*.py")):
            digest.update(source.read_bytes())
        return digest.hexdigest()

    def _baselines(self, split: Split) -> dict[str, float]:
        train = self._tokens["train"][:RESIDENT]
        uniform, unigram, count = field_nats(train, self._tokens[split][:RESIDENT], self.rooms)
        metrics = {
            "uniform": _nats_metrics(uniform, count),
            "unigram": _nats_metrics(unigram, count),
        }
        learned = Frequencies.of(train[:, : self._base], self.rooms)
        metrics["unigram"] |= self._reference.metrics(learned.draw(REFERENCE, 0))
        real = self._tokens["test"][:REFERENCE][:, : self._base]
        if len(real):
            metrics["shuffled"] = self._reference.metrics(shuffled(real, self.rooms, 0))
            metrics["real"] = self._reference.floor(len(real))
        return {
            f"{name}/{baseline}": value
            for baseline, values in metrics.items()
            for name, value in values.items()
        }

    def sample_metrics(self, samples: Int[Tensor, "N L"], like: Clean) -> dict[str, float]:
        """Return validity levels, and distances to validation plans that meet the constraints, with the noise floor.

        For modelled doors and areas also `field_metrics` and `layout_area_error`.
        """
        tokens = samples.cpu().numpy()
        boundaries = _boundaries_of(like)
        metrics = self._reference.sample_metrics(tokens[:, : self._base])
        if any(self.modelled.values()) and len(tokens):
            valid, test = (
                part.tokens(self.rooms, **self.modelled) for part in self._reference.held
            )
            metrics |= field_metrics(tokens, valid, self.rooms)
            floor = field_metrics(test[: len(tokens)], valid, self.rooms)
            metrics |= {f"{name}_floor": value for name, value in floor.items()}
        if boundaries is not None or self.modelled["areas"]:
            placed = list(decode_samples(tokens[:DRAWN], self.rooms, boundaries, _narrow(like)))
            metrics |= layout_area_error(placed) if self.modelled["areas"] else {}
            values = [
                outline_iou(sample.placement)
                for sample in placed
                if sample.placement and sample.placement.outline
            ]
            metrics |= {"outline_iou": float(np.mean(values))} if values else {}
        return metrics

    def plots(self, samples: Int[Tensor, "N L"], like: Clean) -> Iterator[Picture]:
        yield from sample_pictures(
            samples.cpu().numpy(), self.rooms, _boundaries_of(like), _narrow(like)
        )

    def export(
        self,
        samples: Int[Tensor, "N L"],
        like: Clean,
        form: str,
        folder: Path,
    ) -> tuple[list[Path], list[str]]:
        """Write samples in a format of `EXPORTS`; see `write_samples`."""
        tokens = samples.cpu().numpy()
        boundaries = _boundaries_of(like)
        return write_samples(
            tokens, self.rooms, folder, cast(Export, form), boundaries, _narrow(like)
        )

    def trajectory_plots(self, path: Int[Tensor, "T N L"], like: Clean) -> Iterator[Picture]:
        path = torch.cat([like.x0[None].to(path), path])
        yield from trajectory_pictures(path.cpu().numpy(), self.rooms, _narrow(like))


def _narrow(like: Clean) -> Callable[[Diagram], Diagram] | None:
    """Return the function that narrows the areas of a diagram to the constraints on samples."""
    return like.goal.narrow if isinstance(like.goal, ConstraintGuidance) else None


def _bounded(clean: Clean, boundaries: Int[np.ndarray, "N P 2"]) -> Clean:
    """Add boundaries as the condition of a batch."""
    flat = torch.from_numpy(boundaries.reshape(len(boundaries), -1).astype(np.int64))
    return replace(clean, cond={**clean.cond, "boundary": flat})


def _boundaries_of(like: Clean) -> Int[np.ndarray, "N P 2"] | None:
    """Return the boundaries of templates, if they have any."""
    flat = like.cond.get("boundary")
    return None if flat is None else flat.cpu().numpy().reshape(len(flat), -1, 2)


class GraphMetrics:
    """Nats per graph (nodes, edges and total) and per token, and accuracy by noise level; independent of batch sizes.

    Uses the weights of the loss. If the loss is a NELBO, the values are upper bounds of the
    negative log-likelihood.
    """

    def __init__(self, space: TokenSpace) -> None:
        self._space = space
        self._sums: dict[str, Any] = {field.name: torch.zeros(3) for field in space.fields}
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
        values = measured.values.double()
        weights = measured.weights.double()
        parts = torch.stack([values * weights, weights, (~clean.fixed).double()])
        for name, part in self._space.split(parts, 2).items():
            self._sums[name] = self._sums[name].to(part) + part.sum((1, 2))
        self._graphs += len(clean.valid)
        if pred is not None:
            self._accuracy.update(noised, pred)

    def per_sample(self, clean: Clean, measured: Measured) -> dict[str, RatioSums]:
        """Return numerators and denominators per graph; empty if the loss weights its positions."""
        if not self._accuracy.unweighted(clean, measured):
            return {}
        nats = (measured.values.double() * measured.weights.double()).sum(1)
        tokens = measured.weights.double().sum(1)
        return {"nats_per_graph": (nats, torch.ones_like(nats)), "nats_per_token": (nats, tokens)}

    def compute(self) -> dict[str, float]:
        """Return the metrics; NaN without data."""
        if not self._graphs:
            return _nats_metrics(
                dict.fromkeys(self._sums, float("nan")), dict.fromkeys(self._sums, 0.0)
            )
        sums = {name: part.tolist() for name, part in self._sums.items()}
        tokens = {name: count / self._graphs for name, (_, _, count) in sums.items()}
        nats = {
            name: total / weight * tokens[name] if weight else 0.0
            for name, (total, weight, _) in sums.items()
        }
        return _nats_metrics(nats, tokens) | self._accuracy.compute()


def _nats_metrics(nats: dict[str, float], tokens: dict[str, float]) -> dict[str, float]:
    """Return nats per graph by field, their sum, and nats per token."""
    total = sum(nats.values())
    count = sum(tokens.values())
    return {
        "nats_per_graph": total,
        **{f"{name}_nats_per_graph": value for name, value in nats.items()},
        "nats_per_token": total / count if count else float("nan"),
    }
