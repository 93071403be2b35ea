"""Records, spaces and protocols of what components do at run time. Torch is imported when a name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocols import *  # noqa: F403
    from .records import *  # noqa: F403


def __getattr__(name: str) -> Any:
    for module in (".records", ".protocols") if name[:1].isupper() else ():
        found = import_module(module, __name__)
        if name in found.__all__:
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
