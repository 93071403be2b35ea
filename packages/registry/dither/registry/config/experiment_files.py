"""The experiment files that come with dither: in `experiments/` of a checkout, or as data of the installed package."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["find_experiment", "name_of", "shipped_experiments"]


def shipped_experiments() -> dict[str, Path]:
    """Return the experiment files by name, such as `bubble_diagram/quick`."""
    places = [Path(folder) for folder in sys.modules["dither"].__path__]
    checkouts = [place.parents[2] for place in places if place.parents[1].name == "packages"]
    folders = [folder / "experiments" for folder in (*checkouts, *places)]
    files = ((folder, file) for folder in folders for file in sorted(folder.glob("*/*.toml")))
    return {name_of(file.relative_to(folder)): file for folder, file in files}


def name_of(path: Path) -> str:
    """Return the name of an experiment given as `bubble_diagram/quick` or `experiments/bubble_diagram/quick.toml`."""
    return path.as_posix().removesuffix(".toml").removeprefix("experiments/")


def find_experiment(path: Path) -> Path:
    """Return the file of an experiment, given by its path or as in `shipped_experiments`; `.toml` may be omitted.

    A path that names nothing is returned as it is.
    """
    if path.exists() or path.is_absolute():
        return path
    file = Path(f"{path}.toml")
    return file if file.is_file() else shipped_experiments().get(name_of(path), path)
