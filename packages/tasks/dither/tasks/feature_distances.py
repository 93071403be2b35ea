"""Distances of samples from data in features of images, which a component may compute.

Letters: N and M images, H rows, W columns, C channels, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Float32
from numpy import ndarray

__all__ = [
    "FeatureExtractor",
    "extract_features",
    "frechet_distance",
    "kernel_distance",
    "pair_distances",
    "precision_recall",
]

FeatureExtractor = Callable[[Float32[ndarray, "N H W C"]], Float[ndarray, "N F"]]
"""Built by a data component with `gives = "image-features"`."""
NEIGHBOURS = 3
"""The distance to this neighbour is the radius around an image in precision and recall."""
PART = 64
"""Images whose features are computed at once."""


def extract_features(
    extractor: FeatureExtractor, images: Float[ndarray, "N H W C"]
) -> Float[ndarray, "N F"]:
    """Return the features of images; ValueError if they are not vectors."""
    # In parts: a network requires far more memory for an image than its features.
    features = []
    for start in range(0, len(images), PART):
        part = images[start : start + PART].astype(np.float32)
        # In float64: both distances are small differences of large sums.
        of_part = np.asarray(extractor(part), np.float64)
        if of_part.ndim != 2 or len(of_part) != len(part):
            shape = f"{of_part.shape} for {len(part)} images"
            raise ValueError(f"features have the shape {shape}, expected N F")
        features.append(of_part)
    return np.concatenate(features)


def frechet_distance(a: Float[ndarray, "N F"], b: Float[ndarray, "N F"]) -> float:
    """Return the squared Frechet distance of normal distributions (Heusel et al., 2017, eq. 6)."""
    mean = a.mean(0) - b.mean(0)
    root_a = _root(a)
    root_b = _root(b)
    # tr (A B)^(1/2) is the sum of the singular values of R_a R_b'.
    cross = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    traces = (root_a**2).sum() + (root_b**2).sum()
    return float(mean @ mean + traces - 2 * cross)


def _root(x: Float[ndarray, "N F"]) -> Float[ndarray, "M F"]:
    """Return R with at most N rows, of which R' R is the covariance.

    The covariance itself would have a number for each pair of pixels.
    """
    centred = (x - x.mean(0)) / np.sqrt(len(x) - 1)
    # The stubs of numpy know only the pair of Q and R.
    root: Any = np.linalg.qr(centred, mode="r")
    return root


def kernel_distance(a: Float[ndarray, "N F"], b: Float[ndarray, "M F"]) -> float:
    """Return the squared maximum mean discrepancy, an unbiased estimate (KID; Binkowski et al., 2018).

    The kernel is (x y / F + 1)^3. Equal distributions have 0 on average, so values may be negative.
    """
    between = _cubic_kernel(a, b).mean()
    return float(_mean_of_pairs(a) + _mean_of_pairs(b) - 2 * between)


def _cubic_kernel(
    x: Float[ndarray, "N F"], y: Float[ndarray, "M F"]
) -> Float[ndarray, "N M"]:
    return (x @ y.T / x.shape[1] + 1) ** 3


def _mean_of_pairs(x: Float[ndarray, "N F"]) -> float:
    """Return the mean kernel of two different images."""
    kernel = _cubic_kernel(x, x)
    count = len(kernel)
    total: float = kernel.sum() - np.trace(kernel)
    return total / (count * (count - 1))


def precision_recall(
    samples: Float[ndarray, "N F"], images: Float[ndarray, "N F"]
) -> tuple[float, float]:
    """Return the share of samples among the images, and of images among the samples.

    Among others is what is closer to one of them than its third neighbour (Kynkaanniemi et al.,
    2019).
    """
    distances = pair_distances(samples, images)
    precision = (distances <= _radii(images)).any(1).mean()
    recall = (distances <= _radii(samples)[:, None]).any(0).mean()
    return float(precision), float(recall)


def _radii(x: Float[ndarray, "N F"]) -> Float[ndarray, " N"]:
    # The nearest is the image itself.
    return np.partition(pair_distances(x, x), NEIGHBOURS, axis=1)[:, NEIGHBOURS]


def pair_distances(
    a: Float[ndarray, "N F"], b: Float[ndarray, "M F"]
) -> Float[ndarray, "N M"]:
    """Return the Euclidean distance of each row from each other row."""
    from scipy.spatial.distance import cdist

    # Broadcasting would hold all N M F differences.
    return cdist(a, b)
