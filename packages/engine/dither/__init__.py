"""Diffusion transformers assembled from named parts: `load` gives back what was trained.

    import dither
    system = dither.load("runs/20260101T120000Z-abc123")
    samples = dither.draw(system, system.task.like(4, seed=0), seed=0)

dither comes in several distributions, and others may add to it; each brings a folder `dither`, and all of these are one
package. Importing it imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import draw, load

__all__ = ["draw", "load"]


class Folders(list[str]):
    """Where the packages lie: in every folder `dither` on sys.path as it is now, as if this file were not there."""

    def __iter__(self) -> Iterator[str]:
        """Look for them again, for somebody may have added to sys.path."""
        return iter(extend_path(self[:], __name__))


__path__ = Folders(__path__)


def __getattr__(name: str) -> Any:
    """Import the engine, and torch, for those who ask."""
    if name in __all__:
        from . import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
