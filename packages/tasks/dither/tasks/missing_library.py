"""Libraries of the extras of dither-tasks, and the error for a missing one. Imports none."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from dither.registry.config.errors import Problem, Refused
from dither.registry.plugins.install_command import install_command
from dither.registry.spec.misfit import Path

__all__ = ["missing_libraries", "require_extra"]

MODULES: dict[str, tuple[str, ...]] = {
    # one extra for the tasks of a field
    "images": ("PIL", "scipy", "sklearn"),
    "language": ("jinja2", "sklearn", "tokenizers"),
    "plans": (
        "PIL",
        "fontTools",
        "matplotlib",
        "networkx",
        "resvg_py",
        "scipy",
        "shapely",
    ),
    "regions": ("matplotlib", "pandas", "scipy", "sklearn", "zarr"),
    # one extra for a file format or another option
    "anndata": ("anndata",),
    "bigwig": ("pyBigWig",),
    "dxf": ("ezdxf",),
    "frontier": ("matplotlib",),
    "hub": ("huggingface_hub",),
    "ifc": ("ifcopenshell",),
    "judge": ("transformers",),
    "lm-eval": ("lm_eval",),
    "parquet": ("pyarrow",),
    "remote": ("aiohttp", "fsspec"),
    "resplan": ("shapely",),
    "torchvision": ("torchvision",),
    "umap": ("umap",),
}
"""Modules that each extra installs."""


def missing_libraries(extra: str, user: str, path: Path = ()) -> Iterator[Problem]:
    """Yield a problem if libraries of an extra that `user` requires are not installed."""
    missing = [
        module for module in MODULES[extra] if importlib.util.find_spec(module) is None
    ]
    if missing:
        message = (
            f"{user} requires {', '.join(missing)} (extra {extra} of dither-tasks)"
        )
        fix = install_command("dither-tasks", extra)
        yield Problem(message, path, help=fix, code="missing-dependency")


def require_extra(extra: str, user: str, path: Path = ()) -> None:
    """Raise Refused if libraries of an extra that `user` requires are not installed."""
    if problems := list(missing_libraries(extra, user, path)):
        raise Refused(problems)
