"""How well a model restores what was taken away. Nothing that the model could see is counted.

A mean over all elements, the visible ones as zeros among them, halves the error for nothing; and a column that never
changes lets a constant look like a correlation. So: wanted elements only, motifs, accessibility and expression apart,
constant columns left out. Figures are computed from the kept pairs themselves, so they are exact however a split is cut
into batches, and over ranks (`RegionMetrics.merge`): ranks, and areas under curves, have no exact shorter sum. A wanted
element takes 8 bytes.

Letters: B batch, L length, M columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from dither.registry.flow import Clean, Measured, Noised
from dither.registry.spaces import Group

from .answers import Answers, windows_of
from .baselines import Question
from .facts import KEPT
from .figures import binary, group_figures, rank_figures, squared_error, varies
from .intervals import intervals
from .kept import Kept
from .regions import Standard

__all__ = ["SINGULAR", "RegionMetrics", "figures_of"]

SINGULAR = {"motifs": "motif"}
"""What the figures of a group are called, where it is not the name of the group."""
ROUNDED = 2.0**-20
"""Share of the mean of a column that standardising in float32 and undoing it may leave of a 0; 2^-22 at most."""


def figures_of(answers: Answers, groups: Sequence[Group], mean: Float[np.ndarray, " M"]) -> dict[str, float]:
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
        figures |= group_figures(_name(group), inside)
        if group.name == "accessibility":
            truth, score = inside[0]
            if binary(truth):
                figures |= rank_figures(truth > 0.5, score)
    return figures | ({"constant_columns": float(len(asked) - len(varying))} if len(asked) > len(varying) else {})


class RegionMetrics:
    """Takes in batches; a figure for which nothing was wanted is left out.

    - `masked_mse`: mean squared error of all wanted elements, in the units of the data (before standardising).
    - `masked_gain`: 1 - masked_mse / error of the training means on the very same elements. 0 is as good as knowing
      nothing, 1 is perfect.
    - `motif_*`, `accessibility_*`, `expression_*`: error, correlations and R2 of one group; see `group_figures`.
    - `accessibility_auc`, `accessibility_auprc`: how well wanted open regions are ranked before closed ones.
    - `constant_columns`: how many wanted columns were left out of every figure, because what was wanted of them is
      always the same. Where that is so of all, their errors count.
    - `NAME_ci95`: half of a 95 % interval of a figure, over the windows; see `intervals`.
    """

    def __init__(self, groups: Sequence[Group], standard: Standard, mean: Float[np.ndarray, " M"]) -> None:
        """Start at nothing.

        Args:
            groups: Which columns are motifs, accessibility and expression.
            standard: How x0 was standardised, to be undone.
            mean: Mean of each column over the training regions, in the units of the data.
        """
        self.groups, self.mean = groups, mean
        self.shift, self.scale = standard.mean, standard.std
        self.answers = Answers(len(mean))
        self.kept = Kept(KEPT)

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Take in one batch; `pred` gives x0."""
        wanted = noised.wanted & noised.valid[..., None]
        truth = self.plain(noised.x0)
        self.answers.add(truth, self.plain(pred.x0), wanted.cpu().numpy(), windows_of(clean))
        self.kept.add(Question.of(truth, wanted, clean))

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
        figures = figures_of(self.answers, self.groups, self.mean)
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
