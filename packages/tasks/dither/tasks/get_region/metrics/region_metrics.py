"""How well a model restores what was taken away. Nothing that the model could see is counted.

A mean over all elements, the visible ones as zeros among them, halves the error for nothing; and a column that never
changes lets a constant look like a correlation. So: wanted elements only, motifs, accessibility and expression apart,
constant columns left out. Figures are computed from the kept pairs themselves, so they are exact however a split is cut
into batches, and over ranks (`RegionMetrics.merge`): ranks, and areas under curves, have no exact shorter sum. A wanted
element takes 8 bytes.

Letters: B batch, L length, M columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from dither.registry.flow.records import Clean, Measured, Noised
from dither.registry.flow.spaces import Group

from ..data.column_groups import BASELINE_REGIONS
from ..data.region_matrix import ColumnStats
from .baselines import Baselines, MaskedBatch
from .bootstrap import intervals
from .column_metrics import binary, group_metrics, rank_metrics, squared_error, varies
from .predictions import Predictions, windows_of

__all__ = ["SINGULAR", "BaselineSubset", "RegionMetrics", "baseline_metrics", "compute_metrics"]

SINGULAR = {"motifs": "motif"}
"""What the figures of a group are called, where it is not the name of the group."""
ROUNDED = 2.0**-20
"""Share of the mean of a column that standardising in float32 and undoing it may leave of a 0; 2^-22 at most."""


def compute_metrics(answers: Predictions, groups: Sequence[Group], mean: Float[np.ndarray, " M"]) -> dict[str, float]:
    """Return all figures of what was answered; see `RegionMetrics`. Empty where nothing was."""
    pairs = answers.pairs()
    varying = [column for column, (truth, _) in enumerate(pairs) if varies(truth)]
    asked = [column for column, (truth, _) in enumerate(pairs) if truth.size]
    counted = varying or asked
    error = squared_error([pairs[column] for column in counted])
    figures: dict[str, float] = {}
    if error is not None:
        figures["masked_mse"] = error
        of_mean = squared_error(
            [(pairs[column][0], np.full_like(pairs[column][0], mean[column])) for column in counted]
        )
        if of_mean:
            figures["masked_gain"] = 1 - error / of_mean
    for group in groups:
        inside = pairs[group.start : group.stop]
        figures |= group_metrics(_name(group), inside)
        if group.name == "accessibility":
            truth, score = inside[0]
            if binary(truth):
                figures |= rank_metrics(truth > 0.5, score)
    return figures | ({"constant_columns": float(len(asked) - len(varying))} if len(asked) > len(varying) else {})


class RegionMetrics:
    """Takes in batches; a figure for which nothing was wanted is left out.

    - `masked_mse`: mean squared error of all wanted elements, in the units of the data (before standardising).
    - `masked_gain`: 1 - masked_mse / error of the training means on the very same elements. 0 is as good as knowing
      nothing, 1 is perfect.
    - `motif_*`, `accessibility_*`, `expression_*`: error, correlations and R2 of one group; see `group_metrics`.
    - `accessibility_auc`, `accessibility_auprc`: how well wanted open regions are ranked before closed ones.
    - `constant_columns`: how many wanted columns were left out of every figure, because what was wanted of them is
      always the same. Where that is so of all, their errors count.
    - `NAME_ci95`: half of a 95 % interval of a figure, over the windows; see `intervals`.
    """

    def __init__(self, groups: Sequence[Group], standard: ColumnStats, mean: Float[np.ndarray, " M"]) -> None:
        """Start at nothing.

        Args:
            groups: Which columns are motifs, accessibility and expression.
            standard: How x0 was standardised, to be undone.
            mean: Mean of each column over the training regions, in the units of the data.
        """
        self.groups, self.mean = groups, mean
        self.shift, self.scale = standard.mean, standard.std
        self.answers = Predictions(len(mean))
        self.kept = BaselineSubset(BASELINE_REGIONS)

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Take in one batch; `pred` gives x0."""
        wanted = noised.target_mask & noised.valid[..., None]
        truth = self.plain(noised.x0)
        self.answers.add(truth, self.plain(pred.x0), wanted.cpu().numpy(), windows_of(clean))
        self.kept.add(MaskedBatch.of(truth, wanted, clean))

    def add(
        self,
        x0: Float[Tensor, "B L M"],
        guess: Float[Tensor, "B L M"],
        counted: Bool[Tensor, "B L M"],
        windows: Integer[np.ndarray, "B 2"] | None = None,
    ) -> None:
        """Take in the elements that are counted: what is true, what was guessed, and of which windows, if told."""
        self.answers.add(self.plain(x0), self.plain(guess), counted.cpu().numpy(), windows)

    def merge(self, other: RegionMetrics) -> None:
        """Take in what another rank took in."""
        self.answers.merge(other.answers)
        self.kept.merge(other.kept)

    def compute(self) -> dict[str, float]:
        """Return the figures, and how sure they are."""
        figures = compute_metrics(self.answers, self.groups, self.mean)
        names = [_name(group) for group in self.groups]
        halves = intervals(self.answers, self.groups, names, self.mean) if figures else {}
        found: dict[str, float] = {}
        for name, figure in figures.items():
            found[name] = figure
            if name in halves:
                found[f"{name}_ci95"] = halves[name]
        return found

    def plain(self, value: Float[Tensor, "B L M"]) -> Float[np.ndarray, "B L M"]:
        """Undo the standardising, on the CPU. What it cannot tell from 0 is 0: it has the rank of all zeros."""
        plain: Float[np.ndarray, "B L M"] = value.detach().to("cpu", torch.float32).numpy() * self.scale + self.shift
        plain[np.abs(plain) <= ROUNDED * np.abs(self.shift)] = 0
        return plain


def _name(group: Group) -> str:
    return SINGULAR.get(group.name, group.name)


class BaselineSubset:
    """Questions of every window, or of every second, fourth, eighth one, so that they hold no more regions than asked.

    The first ones alone would be those of the first chromosomes and cell types.

    Args:
        most: Regions that are held, at most; a single window stays however large.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._every, self._seen = 1, 0
        self._parts: list[tuple[Integer[np.ndarray, " B"], MaskedBatch]] = []

    @property
    def questions(self) -> list[MaskedBatch]:
        """What is held, in the order in which it came."""
        return [question for _, question in self._parts]

    def add(self, question: MaskedBatch) -> None:
        """Take in what was asked in a batch."""
        count = len(question.truth)
        self._take(self._seen + np.arange(count), question)
        self._seen += count
        self._thin()

    def merge(self, other: BaselineSubset) -> None:
        """Take in what another rank holds."""
        self._seen += other._seen
        self._parts += other._parts
        self._every = max(self._every, other._every)
        self._take_again()
        self._thin()

    def _take(self, numbers: Integer[np.ndarray, " B"], question: MaskedBatch) -> None:
        rows = numbers % self._every == 0
        if rows.any():
            self._parts.append((numbers[rows], question.of_windows(rows)))

    def _thin(self) -> None:
        """Leave every second window out, as often as it takes."""
        while self._regions() > self.most and self._every < self._seen:
            self._every *= 2
            self._take_again()

    def _take_again(self) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            self._take(*part)

    def _regions(self) -> int:
        return sum(question.truth.shape[0] * question.truth.shape[1] for question in self.questions)


def baseline_metrics(
    fresh: Callable[[], RegionMetrics], fit: Callable[[int], Baselines], questions: Mapping[str, Sequence[MaskedBatch]]
) -> dict[str, float]:
    """Return `FIGURE/BASELINE` for everything that a baseline answers; empty where nothing was asked.

    Args:
        fresh: Makes the figures that are to be filled in.
        fit: From the number of a cell type, or -1, to the baselines fitted on it; one is held at a time.
        questions: What was asked, by what is to stand before the name of its figures.
    """
    figures: dict[tuple[str, str], RegionMetrics] = {}
    every = [(before, question) for before, asked in questions.items() for question in asked]
    for cell in np.unique(np.concatenate([np.zeros(0, np.int64), *(question.cell for _, question in every)])).tolist():
        reference = fit(cell)
        for before, question in every:
            part = question.of_cell(cell)
            if not part.wanted.any():
                continue
            for name, guess, counted in reference.answers(part):
                figures.setdefault((before, name), fresh()).answers.add(part.truth, guess, counted)
        del reference  # before the next one is fitted: each holds a copy of the training regions
    return {
        f"{before}{figure}/{name}": value
        for (before, name), each in figures.items()
        for figure, value in compute_metrics(each.answers, each.groups, each.mean).items()
        if figure != "constant_columns" and (name != "logistic" or figure.startswith("accessibility"))
    }
