"""Who is near whom, types and relations left aside: degrees, clustering, spectra, and how far two sets are apart.

The figures are those of GRAN (Liao and others 2019, arXiv 1910.00760; the histograms are GraphRNN's, You and others
2018), so that they can stand beside published ones: squared maximum mean discrepancy of histograms under the kernel
exp(-TV^2 / 2 sigma^2), TV being the total variation distance, all pairs counted, a graph with itself too. That kernel
is not positive definite (O'Bray and others 2022), so values near zero may be a little below it.

Letters: N graphs, R room slots, K bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist

from .vocabulary import NO_EDGE, NODE_PAD, pairs

__all__ = ["Topology", "mmd"]

_CLUSTERING_BINS: Final = 100
_SPECTRAL_BINS: Final = 200
_WIDTHS: Final = {"degree": 1.0, "clustering": 0.1, "spectral": 1.0}
"""Widths sigma of the kernel."""


@dataclass(frozen=True)
class Topology:
    """A histogram of each kind for every graph; each sums to 1.

    Attributes:
        degree: Rooms by number of neighbours.
        clustering: Rooms by share of the pairs of its neighbours that are neighbours themselves; 0 below two.
        spectral: Eigenvalues of the normalised Laplacian, between 0 and 2.
    """

    degree: Float[np.ndarray, "N K"]
    clustering: Float[np.ndarray, "N K"]
    spectral: Float[np.ndarray, "N K"]

    @classmethod
    def of(cls, tokens: Int[np.ndarray, "N L"], rooms: int) -> Topology:
        """Measure diagrams of `rooms` room slots, each with one room or more; a pair without a relation is no edge."""
        near, real = _adjacency(tokens, rooms)
        degrees = near.sum(2)
        links = np.einsum("nij,njk,nki->ni", near, near, near, optimize=True)
        clustering = links / np.maximum(degrees * (degrees - 1.0), 1.0)
        return cls(
            _histograms(degrees / rooms, real, rooms, 1.0),
            _histograms(clustering, real, _CLUSTERING_BINS, 1.0),
            _histograms(_spectra(near, real), real, _SPECTRAL_BINS, 2.0),
        )

    def distances(self, other: Topology) -> dict[str, float]:
        """Return the squared maximum mean discrepancy of each kind of histogram."""
        return {f"mmd_{name}": mmd(getattr(self, name), getattr(other, name), width) for name, width in _WIDTHS.items()}


def mmd(first: Float[np.ndarray, "N K"], second: Float[np.ndarray, "M K"], width: float) -> float:
    """Return the squared maximum mean discrepancy of two sets of histograms; nan where one of them is empty."""
    if not (len(first) and len(second)):
        return float("nan")
    # Equal histograms count as one, with a weight: the sums over pairs stay the same and become short.
    distinct, place = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    place = place.reshape(-1)
    weight = np.bincount(place[: len(first)], minlength=len(distinct)) / len(first)
    weight -= np.bincount(place[len(first) :], minlength=len(distinct)) / len(second)
    some = distinct[weight != 0]
    weight = weight[weight != 0]
    variation = cdist(some, some, "cityblock") / 2
    return float(weight @ np.exp(-(variation**2) / (2 * width**2)) @ weight)


def _adjacency(
    tokens: Int[np.ndarray, "N L"], rooms: int
) -> tuple[Float[np.ndarray, "N R R"], Bool[np.ndarray, "N R"]]:
    real = tokens[:, :rooms] != NODE_PAD
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    near = np.zeros((len(tokens), rooms, rooms))
    near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] >= 0) & (tokens[:, rooms:] < NO_EDGE)
    return near * real[:, :, None] * real[:, None, :], real


def _spectra(near: Float[np.ndarray, "N R R"], real: Bool[np.ndarray, "N R"]) -> Float[np.ndarray, "N R"]:
    """Eigenvalues of each graph, as many as it has rooms, in the places of its rooms."""
    degrees = near.sum(2)
    scale = np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0.0)
    diagonal = np.where(real, (degrees > 0) * 1.0, 10.0)  # what is no room comes out last, whatever its place
    laplacian = -near * scale[:, :, None] * scale[:, None, :]
    every = np.arange(near.shape[1])
    laplacian[:, every, every] = diagonal
    values: Float[np.ndarray, "N R"] = np.linalg.eigvalsh(laplacian)
    spread = np.zeros_like(values)
    spread[real] = values[every < real.sum(1, keepdims=True)]
    return np.clip(np.round(spread, 9), 0.0, 2.0)


def _histograms(
    values: Float[np.ndarray, "N R"], real: Bool[np.ndarray, "N R"], bins: int, most: float
) -> Float[np.ndarray, "N K"]:
    """Share of the values of each row that fall into each of `bins` bins from 0 to `most`."""
    place = np.minimum((values / most * bins).round(9).astype(int), bins - 1)
    rows = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    counts = np.bincount((rows * bins + place)[real], minlength=len(values) * bins).reshape(-1, bins)
    shares: Float[np.ndarray, "N K"] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares
