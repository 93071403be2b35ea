"""Diffusion transformers assembled from named components.

    import dither
    system = dither.load("runs/20260101T120000Z-abc123")
    samples = dither.draw(system, system.task.like(4, seed=0), seed=0)

Several distributions, ours and third parties', share this package. Importing it imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import draw, load

__all__ = ["draw", "load"]


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

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
