"""Diffusion transformers assembled from named components.

    import dither
    run = dither.train("bubble_diagram/quick", {"train.steps": 500})
    system = dither.load(run)
    samples = system.sample(4)

Several distributions, ours and third parties', share this package. Importing it imports none of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import draw, evaluate, load, load_experiment, save_experiment, train
    from .engine.runs.api import components

__all__ = [
    "components",
    "draw",
    "evaluate",
    "load",
    "load_experiment",
    "save_experiment",
    "train",
]


class Folders(list[str]):
    """Every folder `dither` on sys.path, as in a namespace package."""

    def __iter__(self) -> Iterator[str]:
        """Search again, as sys.path may have changed."""
        return iter(extend_path(self[:], __name__))


__path__ = Folders(__path__)


def __getattr__(name: str) -> Any:
    """Import the engine, and torch, on first use."""
    if name in __all__:
        from . import engine

        if name == "components":  # there, this is a module
            from .engine.runs.api import components

            return components
        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
