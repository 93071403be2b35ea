"""How well open regions are told from closed ones: what either are given, and both curves.

Letters: n regions.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from .figures import rank_figures
from .plotting import BLUE, GREY, LIGHT, ORANGE, bare, new_figure, png_of

__all__ = ["draw_accessibility"]


def draw_accessibility(truth: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], cell: str) -> bytes | None:
    """Return a PNG; None where no curve is defined, because all regions are open, or all closed.

    Args:
        truth: Which regions are open.
        score: What was predicted.
        cell: Name of the cell type, or of several.
    """
    from sklearn.metrics import precision_recall_curve, roc_curve

    figures = rank_figures(truth, score)
    if not figures:
        return None
    share = float(truth.mean())
    figure = new_figure(12, 4.2, f"Open in {cell}: {truth.sum():,} of {truth.size:,} regions that were drawn")
    spread, roc, recall = figure.subplots(1, 3)
    bare(spread, "what was predicted")
    edges = np.linspace(min(0.0, score.min()), max(1.0, score.max()), 41)
    for chosen, colour, name in ((~truth, GREY, "closed"), (truth, ORANGE, "open")):
        weights = np.full(int(chosen.sum()), 1 / chosen.sum())
        spread.hist(score[chosen], edges, weights=weights, color=colour, alpha=0.6, label=name)
    spread.legend(fontsize=8, frameon=False)
    spread.set_xlabel("prediction", fontsize=9)
    spread.set_ylabel("share of the regions", fontsize=9)
    false, true, _ = roc_curve(truth, score)
    bare(roc, f"ROC: area {figures['accessibility_auc']:.3f}, chance .5")
    roc.plot([0, 1], [0, 1], color=LIGHT)
    roc.plot(false, true, color=BLUE)
    roc.set_xlabel("closed regions that are called open", fontsize=9)
    roc.set_ylabel("open regions that are called open", fontsize=9)
    precision, found, _ = precision_recall_curve(truth, score)
    bare(recall, f"precision: average {figures['accessibility_auprc']:.3f}, chance {share:.3f}")
    recall.axhline(share, color=LIGHT)
    recall.plot(found, precision, color=BLUE)
    recall.set(ylim=(0, 1.02))
    recall.set_xlabel("recall: open regions that are called open", fontsize=9)
    recall.set_ylabel("precision: called open, and open", fontsize=9)
    return png_of(figure)
