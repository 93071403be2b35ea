"""Trained models of installed distributions, such as `zoo/bubble-small`; no torch.

An entry point of the group `dither.models` names a package. Each of its folders that `dither export`
wrote is a model, called ENTRY POINT/FOLDER.
"""

from __future__ import annotations

from pathlib import Path

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.lookup import exists
from dither.registry.plugins.discovery import entry_points_of, package_folders

from .mirror import local_run

__all__ = ["EXPERIMENT", "WEIGHTS", "installed_models", "model_folder"]

GROUP = "dither.models"
WEIGHTS = "weights.safetensors"
"""File that only exports and installed models have."""
EXPERIMENT = "experiment.toml"


def installed_models() -> dict[str, Path]:
    """Return the folder of every installed model by its name, sorted."""
    models = {}
    for point in entry_points_of(GROUP):
        for folder in package_folders(point):
            for weights in folder.glob(f"*/{WEIGHTS}"):
                models[f"{point.name}/{weights.parent.name}"] = weights.parent
    return dict(sorted(models.items()))


def model_folder(path: str | Path) -> Path:
    """Return the folder of an installed model of this name, or of a mirrored run, or else the path.

    Refused if only the package is installed, and no file or folder has this name.
    """
    path = local_run(Path(path))
    # An installed model is called PACKAGE/FOLDER; other paths need no search of the distributions.
    if exists(path) or len(path.parts) != 2:
        return path
    models = installed_models()
    name = path.as_posix()
    if name in models:
        return models[name]
    if any(model.startswith(f"{path.parts[0]}/") for model in models):
        hint = did_you_mean(name, models) or f"there are: {', '.join(models)}"
        message = f'there is no trained model "{name}"'
        raise Refused(Problem(message, help=hint, code="unknown-value"))
    return path
