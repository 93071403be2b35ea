"""The frontier of quality and diversity over options of sampling, with real text as the reference.

Perplexity of samples under a judge alone misleads: repetitive samples are likely. It is read next
to the entropy and the n-grams of samples, and to a distance of the distributions. Letters: N
samples, L length, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from jaxtyping import Float64, Integer
from numpy import ndarray

from dither.registry.contracts.pictures import Picture

from ...plot_style import new_figure, to_picture

__all__ = ["frontier_plot", "mauve", "pair_features"]

_Features = Float64[ndarray, "N F"]
_Shares = Float64[ndarray, " K"]

FEATURES = 512
SCALING = 5.0
"""Of divergences in the area, as published."""


def pair_features(
    rows: Sequence[Integer[ndarray, " l"]],
) -> _Features:
    """Return the roots of the frequencies of neighbouring pairs of ids, hashed to 512 features."""
    table = np.zeros((len(rows), FEATURES))
    for number, row in enumerate(rows):
        ids = row.astype(np.int64)
        pairs = ids[:-1] * 7919 + ids[1:]
        # Multiplicative hashing: Knuth's constant, then the upper bits of 32.
        buckets = pairs * 2_654_435_761 % 2**32 * FEATURES >> 32
        np.add.at(table[number], buckets, 1)
    # A text of one id has no pair.
    table /= np.maximum(table.sum(1, keepdims=True), 1)
    return np.sqrt(table)


def mauve(samples: _Features, real: _Features) -> float:
    """Return the area under the divergence frontier of two sets: 1 if equal, near 0 if distinct.

    MAUVE (Pillutla et al. 2021) with other features: principal components that hold 90 % of the
    variance, k-means into a tenth as many clusters as texts of a set, frequencies with half a count
    added. Values depend on the number of texts and are comparable only at equal numbers.
    """
    from scipy.integrate import trapezoid
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    # Components and clusters are those of both sets together, so that neither is preferred.
    both = np.concatenate([samples, real])
    # Fitted twice, since the number of components follows from their variances.
    whole = PCA(min(both.shape), random_state=0).fit(both)
    share = whole.explained_variance_ratio_.cumsum()
    components = int((share < 0.9).sum()) + 1
    reduced = PCA(components, random_state=0).fit_transform(both)
    clusters = max(2, min(len(samples), len(real)) // 10)
    labels = KMeans(clusters, n_init=3, random_state=0).fit(reduced).labels_
    p = _frequencies(labels[: len(samples)], clusters)
    q = _frequencies(labels[len(samples) :], clusters)

    # The frontier begins at (0, 1) and ends at (1, 0); its area by the trapezoidal rule.
    weight = np.linspace(0, 1, 101)[1:-1, None]
    mixed = weight * p + (1 - weight) * q
    x = np.pad(_closeness(q, mixed)[::-1], 1, constant_values=(0.0, 1.0))
    y = np.pad(_closeness(p, mixed)[::-1], 1, constant_values=(1.0, 0.0))
    return float(trapezoid(y, x))


def _frequencies(labels: Integer[ndarray, " N"], clusters: int) -> _Shares:
    # Half a count in each cluster: without it a divergence could be infinite.
    counts = np.bincount(labels, minlength=clusters) + 0.5
    return counts / counts.sum()


def _closeness(p: _Shares, mixed: Float64[ndarray, "M K"]) -> Float64[ndarray, " M"]:
    """exp(-c KL(p, mixed)) for each mixture."""
    divergence = (p * np.log(p / mixed)).sum(1)
    return np.exp(-SCALING * divergence)


def frontier_plot(
    rows: Sequence[Mapping[str, float]], options: Sequence[str], judge: str
) -> Picture:
    """Plot perplexity, and the distance, against entropy and distinct pairs.

    Args:
        rows: The real text, then one row per point, sorted by the first option.
        options: Names of the options; points of equal first option are joined, and each has the
            value of the last.
        judge: Name of the perplexity.
    """
    figure = new_figure(13, 4.2)
    real = rows[0]
    panels = (
        ("sample_unigram_bits", judge),
        ("distinct_2", judge),
        ("sample_unigram_bits", "mauve"),
    )
    for axis, (x, y) in zip(figure.subplots(1, 3), panels, strict=True):
        for value, group in groupby(rows[1:], key=lambda row: row[options[0]]):
            points = list(group)
            xs = [row[x] for row in points]
            ys = [row[y] for row in points]
            axis.plot(xs, ys, "o-", label=f"{options[0]} {value:g}")
            for row in points:
                axis.annotate(
                    f"{row[options[-1]]:g}",
                    (row[x], row[y]),
                    textcoords="offset points",
                    xytext=(4, 4),
                    fontsize=7,
                )
        axis.plot(
            real[x], real[y], "*", markersize=14, color="#212529", label="real text"
        )
        axis.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "))
        if y == judge:
            axis.set_yscale("log")
        axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    return to_picture("frontier", figure)
