"""Metrics of images in features, by default of a small classifier.

Letters: N images, H rows, W columns, C channels, F features, D values.

The classifier is trained on the test split, which no model has seen, and the reference are
validation images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64
from numpy import ndarray

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

__all__ = [
    "FeatureExtractor",
    "Reference",
    "frechet_distance",
    "nearest",
    "precision_recall",
]

_Values = Float[ndarray, "N D"]
_Labels = Int64[ndarray, " N"]
FeatureExtractor = Callable[[Float32[ndarray, "N H W C"]], Float[ndarray, "N F"]]

HIDDEN = 64
"""Units of the hidden layer, which are the features."""
NEIGHBOURS = 3
"""The distance to this neighbour is the radius around an image in precision and recall."""
MAX_IMAGES = 5000
"""Images of a split that the classifier and the distances use."""


class Reference:
    """Validation images in features, and a classifier.

    Args:
        values: Scaled images by split, flattened.
        labels: Their classes.
        classes: Names of the classes; without any the features are the values.
        features: See `Images.features`, or a function of such values.
    """

    def __init__(
        self,
        values: dict[str, _Values],
        labels: dict[str, _Labels],
        classes: tuple[str, ...],
        features: Literal["classifier", "pixels"]
        | Callable[[_Values], Float[ndarray, "N F"]],
    ) -> None:
        self.values = values
        self.labels = labels
        self.classes = classes
        self.classifier: MLPClassifier | None = None
        # A classifier requires two classes.
        if len(np.unique(labels["test"])) > 1:
            self.classifier = _train(values["test"], labels["test"])
        self.extract = features
        self.held_out = self.features(values["valid"][:MAX_IMAGES])

    def features(self, values: _Values) -> Float[ndarray, "N F"]:
        """Return the hidden layer of the classifier, the values, or those of a function."""
        if not isinstance(self.extract, str):
            return self.extract(values)
        if self.extract == "pixels" or self.classifier is None:
            return values.astype(np.float64)
        weight = self.classifier.coefs_[0]
        bias = self.classifier.intercepts_[0]
        return np.maximum(values.astype(np.float64) @ weight + bias, 0)

    def metrics(self, values: _Values, labels: _Labels) -> dict[str, float]:
        """Return distances from validation images, and accuracies of the classifier."""
        result = {}
        features = self.features(values)
        count = min(len(values), len(self.held_out))
        # A covariance requires two images, a radius more than its neighbours.
        if count > 1:
            result["frechet"] = frechet_distance(features, self.held_out)
        if count > NEIGHBOURS:
            precision, recall = precision_recall(features, self.held_out)
            result |= {"precision": precision, "recall": recall}
        return result | self.accuracies(values, labels)

    def accuracies(self, values: _Values, labels: _Labels) -> dict[str, float]:
        """Return the share of images of the right class, in total and by class; label -1 has none."""
        known = labels >= 0
        if self.classifier is None or not known.any():
            return {}
        right: Bool[ndarray, " N"] = self.classifier.predict(values) == labels
        result = {"accuracy": float(right[known].mean())}
        for number, name in enumerate(self.classes):
            if (labels == number).any():
                result[f"accuracy_{name}"] = float(right[labels == number].mean())
        return result

    def floor(self, labels: _Labels, seed: int = 0) -> dict[str, float]:
        """Return the metrics of as many training images of the same classes in place of samples."""
        rng = np.random.default_rng(seed)
        rows = []
        for label in np.unique(labels):
            same = np.flatnonzero((self.labels["train"] == label) | (label < 0))
            count = min(int((labels == label).sum()), len(same))
            rows.append(rng.permutation(same)[:count])
        chosen = np.concatenate(rows)
        return self.metrics(self.values["train"][chosen], self.labels["train"][chosen])


def _train(values: _Values, labels: _Labels) -> MLPClassifier:
    """Return a classifier with one hidden layer."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    classifier = MLPClassifier(
        (HIDDEN,), alpha=0.01, learning_rate_init=3e-3, random_state=0
    )
    with warnings.catch_warnings():
        # A few more steps would change nothing.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return classifier.fit(values[:MAX_IMAGES], labels[:MAX_IMAGES])


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


def precision_recall(
    samples: Float[ndarray, "N F"], images: Float[ndarray, "N F"]
) -> tuple[float, float]:
    """Return the share of samples among the images, and of images among the samples.

    Among others is what is closer to one of them than its third neighbour (Kynkaanniemi et al.,
    2019).
    """
    distances = _distances(samples, images)
    precision = (distances <= _radii(images)).any(1).mean()
    recall = (distances <= _radii(samples)[:, None]).any(0).mean()
    return float(precision), float(recall)


def _radii(x: Float[ndarray, "N F"]) -> Float[ndarray, " N"]:
    # The nearest is the image itself.
    return np.partition(_distances(x, x), NEIGHBOURS, axis=1)[:, NEIGHBOURS]


def _distances(
    a: Float[ndarray, "N F"], b: Float[ndarray, "M F"]
) -> Float[ndarray, "N M"]:
    from scipy.spatial.distance import cdist

    return cdist(a, b)


def nearest(samples: _Values, images: _Values) -> Int64[ndarray, " N"]:
    """Return the row of the nearest image of each sample."""
    return _distances(samples, images).argmin(1)
