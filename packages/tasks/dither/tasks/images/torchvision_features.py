"""Features of classifiers of torchvision. Letters: N images, H rows, W columns, C channels, F features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

from dither.registry.config.errors import Refused, did_you_mean
from dither.registry.files.weight_files import read_weights

from ..feature_distances import FeatureExtractor

__all__ = ["load_features"]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet, by which weights of torchvision expect images to be standardised."""
OF_INCEPTION: dict[str, Any] = {"transform_input": True, "init_weights": False}
"""As torchvision builds these models for its weights."""


def load_features(name: str, weights: Path, size: int) -> FeatureExtractor:
    """Return the input of the last linear layer of a model as a function of images.

    Raises:
        Refused: There is no such model, or the weights do not fit it.
    """
    if name not in models.list_models(models):
        hint = did_you_mean(name, models.list_models(models))
        message = f'torchvision has no classifier "{name}"'
        raise Refused(message, help=hint, code="unknown-value")
    options = OF_INCEPTION if name in ("inception_v3", "googlenet") else {}
    model = models.get_model(name, weights=None, **options).eval()
    try:
        model.load_state_dict(read_weights(weights))
    except RuntimeError as error:
        raise Refused(f"{weights}: {error}", code="shape-mismatch") from None

    # The last one gives the classes; Inception has another before it, for training.
    layers = [key for key, layer in model.named_modules() if type(layer) is nn.Linear]
    model.set_submodule(layers[-1], nn.Identity())

    @torch.no_grad()
    def features(images: Float32[ndarray, "N H W C"]) -> Float32[ndarray, "N F"]:
        output: Tensor = model(_standardised(torch.from_numpy(images), size))
        return output.flatten(1).numpy()

    return features


def _standardised(images: Tensor, size: int) -> Tensor:
    """Return images `N 3 H W` of `size` rows in the units of ImageNet; one channel is grey."""
    colours = images.permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    # antialias: without it a large image would lose all but a few of its pixels.
    scaled = functional.interpolate(
        colours, (size, size), mode="bilinear", antialias=True
    )
    mean = torch.tensor(MEAN)[:, None, None]
    std = torch.tensor(STD)[:, None, None]
    return (scaled - mean) / std
