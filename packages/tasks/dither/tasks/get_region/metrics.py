"""How well a model restores what was taken away. Nothing that the model could see is counted.

A mean over all elements, the visible ones as zeros among them, halves the error for nothing; and a column that never
changes lets a constant look like a correlation. So: wanted elements only, motifs and accessibility apart, columns that
are constant left out. Every figure is exact however the split is cut into batches.

Letters: B batch, L length, M columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow import Clean, Measured, Noised

from .baselines import rank_figures
from .regions import Standard

__all__ = ["ColumnSums", "RegionMetrics", "over_groups"]


class ColumnSums:
    """Sums per column over some elements, from which errors and correlations follow."""

    def __init__(self, width: int) -> None:
        self.sums = torch.zeros(6, width, dtype=torch.float64)

    def add(self, truth: Float[Tensor, "B L M"], guess: Float[Tensor, "B L M"], counted: Bool[Tensor, "B L M"]) -> None:
        """Take in the elements that are counted."""
        x, y = (torch.where(counted, value, 0).double().flatten(0, 1) for value in (truth, guess))
        n = counted.flatten(0, 1).double()
        self.sums += torch.stack([n.sum(0), x.sum(0), y.sum(0), (x * x).sum(0), (y * y).sum(0), (x * y).sum(0)])

    def squared_error(self, columns: slice) -> float | None:
        """Return the mean squared error over some columns; None where nothing was counted."""
        n, _, _, xx, yy, xy = self.sums[:, columns].sum(1).tolist()
        return max(xx + yy - 2 * xy, 0.0) / n if n else None

    def error_of(self, constant: Float[Tensor, " M"], columns: slice) -> float | None:
        """Return the mean squared error, on the same elements, of one constant per column."""
        n, x, _, xx, _, _ = self.sums[:, columns]
        c = constant[columns].double()
        count = float(n.sum())
        return max(float((xx - 2 * c * x + c * c * n).sum()), 0.0) / count if count else None

    def pearson(self, columns: slice) -> float | None:
        """Return the mean over columns of Pearson's r.

        Columns whose truth is constant are left out; one that is predicted by a constant counts as 0. None where no
        column is left.
        """
        n, x, y, xx, yy, xy = self.sums[:, columns]
        n = n.clamp(min=1)
        spread_x, spread_y = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
        varies, answers = spread_x > 1e-12 * (1 + xx / n), spread_y > 1e-12 * (1 + yy / n)
        both = varies & answers
        together = torch.where(both, xy / n - x * y / n**2, 0)
        r = together / torch.where(both, spread_x * spread_y, 1).sqrt()
        return float(r[varies].mean()) if bool(varies.any()) else None


def over_groups(sums: ColumnSums, motifs: int) -> dict[str, float]:
    """Return the error of the motif columns, of the accessibility column behind them, and the motifs' correlation."""
    figures = {
        "motif_mse": sums.squared_error(slice(0, motifs)),
        "motif_pearson": sums.pearson(slice(0, motifs)),
        "accessibility_mse": sums.squared_error(slice(motifs, None)),
    }
    return {name: value for name, value in figures.items() if value is not None}


class RegionMetrics:
    """Adds up over batches. A figure for which nothing was wanted is left out.

    - `masked_mse`: mean squared error of all wanted elements, in the units of the data ([0, 1] before standardising).
    - `masked_gain`: 1 - masked_mse / error of the training means on the very same elements. 0 is as good as knowing
      nothing, 1 is perfect.
    - `motif_mse`, `motif_pearson`, `accessibility_mse`: the same for one group of columns; the correlation is taken
      per motif, over regions, and averaged.
    - `accessibility_auc`, `accessibility_auprc`: how well wanted open regions are ranked before closed ones.
    """

    def __init__(self, motifs: int, standard: Standard, mean: Float[Tensor, " M"]) -> None:
        """Start at nothing.

        Args:
            motifs: Number of motif columns; a column behind them is accessibility.
            standard: How x0 was standardised, to be undone.
            mean: Mean of each column over the training regions, in the units of the data.
        """
        self.motifs = motifs
        self.shift, self.scale = torch.from_numpy(standard.mean), torch.from_numpy(standard.std)
        self.mean = mean
        self.sums = ColumnSums(len(standard.mean))
        self.truth: list[Bool[Tensor, " n"]] = []
        self.score: list[Float[Tensor, " n"]] = []

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Take in one batch; `pred` gives x0."""
        self.add(noised.x0, pred.x0, noised.wanted & noised.valid[..., None])

    def add(self, x0: Float[Tensor, "B L M"], guess: Float[Tensor, "B L M"], counted: Bool[Tensor, "B L M"]) -> None:
        """Take in the elements that are counted: what is true, and what was guessed."""
        counted = counted.cpu()
        truth, guess = self._plain(x0), self._plain(guess)
        self.sums.add(truth, guess, counted)
        if truth.shape[-1] > self.motifs:
            asked = counted[..., self.motifs]
            self.truth.append(truth[..., self.motifs][asked] > 0.5)
            self.score.append(guess[..., self.motifs][asked])

    def compute(self) -> dict[str, float]:
        """Return the figures."""
        everything = slice(None)
        error, of_mean = self.sums.squared_error(everything), self.sums.error_of(self.mean, everything)
        figures = {} if error is None else {"masked_mse": error}
        if error is not None and of_mean:
            figures["masked_gain"] = 1 - error / of_mean
        figures |= over_groups(self.sums, self.motifs)
        if any(len(part) for part in self.truth):
            figures |= rank_figures(np.asarray(torch.cat(self.truth)), np.asarray(torch.cat(self.score)))
        return figures

    def _plain(self, value: Float[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        """Undo the standardising, on the CPU."""
        return value.detach().float().cpu() * self.scale + self.shift
