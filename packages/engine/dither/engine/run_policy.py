"""Which registry.toml governs an experiment; a run keeps to the one that it was started under, wherever it lies."""

from __future__ import annotations

import json
from pathlib import Path

from dither.registry.policy import Policy, policy_file, read_policy

__all__ = ["governing_policy", "governing_policy_file"]

NAME = "registry.toml"


def governing_policy(experiment: Path) -> Policy:
    """Read the registry.toml that governs an experiment file; without one, everything is allowed.

    Raises:
        Refused: The file has mistakes; each is named with its line.
    """
    path = governing_policy_file(experiment)
    return Policy() if path is None else read_policy(path)


def governing_policy_file(experiment: Path) -> Path | None:
    """Return the registry.toml that a run or a sweep was started under, if it is still there, else the nearest one.

    One that lies within the run or the sweep itself is not taken: it may have come with it from elsewhere.
    """
    folder = experiment.parent
    if experiment.name == "resolved.toml":
        kept = _named(folder / "manifest.json")
    elif experiment.name == "experiment.toml" and (folder.parent / "sweep.json").is_file():  # of a point
        folder = folder.parent
        kept = _named(folder / "sweep.json")
    else:
        return policy_file(folder)
    if kept is not None and kept.name == NAME and kept.is_file() and folder.resolve() not in kept.resolve().parents:
        return kept
    return policy_file(folder.parent)


def _named(record: Path) -> Path | None:
    """Return the registry.toml that a file names; None for no such file, or where none governed."""
    try:
        return Path(json.loads(record.read_text(encoding="utf-8"))["registry"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
