"""How well single motifs are restored: truth against prediction, and the correlation of every motif.

Letters: n pairs, K motifs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .figures import Pair, pearson, r2, varies
from .plotting import BLUE, GREY, LIGHT, ORANGE, bare, new_figure, png_of

__all__ = ["MotifAnswers", "draw_motif_bars", "draw_motif_scatter"]

SHOWN = 12
"""Motifs of a scatter plot."""

FEWEST = 8
"""Pairs that a correlation is shown for."""

DOTS = 3000
"""Pairs that are drawn of a motif."""


@dataclass(frozen=True)
class MotifAnswers:
    """Motifs that were drawn and whose truth varies, from the best r to the worst.

    Attributes:
        names: `K`.
        pairs: Truth and prediction of each.
        r: Pearson's r of each; 0 where the prediction is constant.
    """

    names: list[str]
    pairs: list[Pair]
    r: list[float]

    @classmethod
    def of(cls, names: Sequence[str], pairs: Sequence[Pair]) -> MotifAnswers:
        """Sort the motifs of which there is enough."""
        found = [
            (pearson(*pair), name, pair)
            for name, pair in zip(names, pairs, strict=True)
            if len(pair[0]) >= FEWEST and varies(pair[0]) and np.isfinite(pair[1]).all()
        ]
        found.sort(key=lambda each: -each[0])
        return cls([name for _, name, _ in found], [pair for _, _, pair in found], [r for r, _, _ in found])


def draw_motif_scatter(answers: MotifAnswers) -> bytes:
    """Return a PNG: truth against prediction for the motifs that are found in most regions."""
    count = min(SHOWN, len(answers.names))
    often = np.argsort([-np.count_nonzero(truth) / len(truth) for truth, _ in answers.pairs], kind="stable")[:count]
    columns = min(4, count)
    rows = -(-count // columns)
    figure = new_figure(3.1 * columns, 2.9 * rows + 0.5, f"The {count} motifs that most regions hold")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    for place, (axis, motif) in enumerate(zip(axes, often, strict=False)):
        truth, guess = answers.pairs[motif]
        bare(axis, f"{answers.names[motif]}:  r = {answers.r[motif]:z.2f}, R² = {r2(truth, guess):z.2f}")
        low = min(0.0, float(truth.min()), float(guess.min()))
        high = max(float(truth.max()), float(guess.max()))
        axis.plot([low, high], [low, high], color=LIGHT, zorder=0)
        step = -(-len(truth) // DOTS)
        axis.scatter(truth[::step], guess[::step], s=9, color=BLUE, alpha=0.35, linewidths=0)
        margin = 0.04 * (high - low)
        axis.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
        if place % columns == 0:
            axis.set_ylabel("prediction", fontsize=9)
        if place + columns >= count:
            axis.set_xlabel("truth", fontsize=9)
    return png_of(figure)


def draw_motif_bars(answers: MotifAnswers) -> bytes:
    """Return a PNG: Pearson's r of every motif as one curve, and by name of the best and the worst ones."""
    r = np.array(answers.r)
    mean = float(r.mean())
    figure = new_figure(12, 5.2, f"Pearson's r of {len(r)} motifs: mean {mean:.3f}")
    whole, best, worst = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    bare(whole, "all motifs, sorted")
    whole.fill_between(np.arange(len(r)), r, color=BLUE, step="mid", linewidth=0)
    whole.axhline(mean, color=ORANGE, linewidth=1)
    whole.text(len(r) - 1, mean, "mean", color=ORANGE, fontsize=8, ha="right", va="bottom")
    whole.axhline(0, color=GREY, linewidth=0.8)
    whole.set_xlabel("motif", fontsize=9)
    whole.set_ylabel("Pearson's r, over the regions that were drawn", fontsize=9)
    count = min(15, len(r))
    for axis, title, part in ((best, "best", slice(0, count)), (worst, "worst", slice(len(r) - count, len(r)))):
        bare(axis, title)
        axis.barh(np.arange(count), r[part], color=BLUE, height=0.7)
        axis.set_yticks(np.arange(count), answers.names[part])
        axis.invert_yaxis()
        axis.axvline(0, color=GREY, linewidth=0.8)
        axis.set_xlim(min(-0.1, float(r.min()) * 1.1), max(0.1, float(r.max()) * 1.1))
        axis.set_xlabel("Pearson's r", fontsize=9)
    return png_of(figure)
