"""Metrics of images in features, by default of a small classifier.

Letters: N images, H rows, W columns, C channels, F features, D values.

The classifier is trained on the test split, which no model has seen, and the reference are
validation images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy import ndarray

from ..feature_distances import (
    NEIGHBOURS,
    frechet_distance,
    kernel_distance,
    pair_distances,
    precision_recall,
)

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

__all__ = ["Reference", "nearest"]

_Values = Float[ndarray, "N D"]
_Labels = Int64[ndarray, " N"]

HIDDEN = 64
"""Units of the hidden layer, which are the features."""
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
        # In float64, as distances are small differences of large sums.
        return np.maximum(values.astype(np.float64) @ weight + bias, 0)

    def metrics(self, values: _Values, labels: _Labels) -> dict[str, float]:
        """Return distances from validation images, and accuracies of the classifier."""
        result = {}
        features = self.features(values)
        count = min(len(values), len(self.held_out))
        # A covariance requires two images, a radius more than its neighbours.
        if count > 1:
            result["frechet"] = frechet_distance(features, self.held_out)
            result["kid"] = kernel_distance(features, self.held_out)
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

    def floor(self, labels: _Labels) -> dict[str, float]:
        """Return the metrics of as many training images of the same classes in place of samples."""
        rng = np.random.default_rng(0)
        rows = []
        for label in np.unique(labels):
            # Samples without a class, label -1, are replaced by images of any.
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


def nearest(samples: _Values, images: _Values) -> Int64[ndarray, " N"]:
    """Return the row of the nearest image of each sample."""
    return pair_distances(samples, images).argmin(1)
