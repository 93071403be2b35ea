"""The conformance kit: checks of the contracts of components, for the tests of any plugin; see `conformance`.

Importing this package imports neither pytest nor torch and has no side effects; names are loaded on
first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import conformance, strategies
    from .checks import CHECKS, Check
    from .conformance import Case, parametrize
    from .situations import Situation
    from .strategies import cleans, spaces, specs

__all__ = [
    "CHECKS",
    "Case",
    "Check",
    "Situation",
    "cleans",
    "conformance",
    "parametrize",
    "spaces",
    "specs",
    "strategies",
]

MODULES = {
    "CHECKS": "checks",
    "Check": "checks",
    "Case": "conformance",
    "parametrize": "conformance",
}
MODULES |= {
    "Situation": "situations",
    "cleans": "strategies",
    "spaces": "strategies",
    "specs": "strategies",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
