"""Which registry.toml governs an experiment; a run keeps to the one that it was started under, wherever it lies."""

from __future__ import annotations

import json
from pathlib import Path

from dither.registry.policy import Policy, policy_file, read_policy

__all__ = ["governing_policy", "governing_policy_file"]


def governing_policy(experiment: Path) -> Policy:
    """Read the registry.toml that governs an experiment file; without one, everything is allowed.

    Raises:
        Refused: The file has mistakes; each is named with its line.
    """
    path = governing_policy_file(experiment)
    return Policy() if path is None else read_policy(path)


def governing_policy_file(experiment: Path) -> Path | None:
    """Return the registry.toml that a run directory's manifest names, if it is still there, else the nearest one."""
    try:
        kept = json.loads((experiment.parent / "manifest.json").read_text(encoding="utf-8"))["registry"]
        if experiment.name == "resolved.toml" and Path(kept).is_file():
            return Path(kept)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no run directory, or one that was started without a registry.toml
    return policy_file(experiment.parent)
