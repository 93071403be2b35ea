"""Hooks, specs, spaces and records: the interface for plugins. No torch at import."""

from .config.errors import Problem, Refused
from .contracts.spaces import (
    Condition,
    FeatureSpace,
    Field,
    Group,
    NumberRange,
    Space,
    TokenSpace,
)
from .hookspecs import hookimpl
from .plugins.catalog import Catalog
from .plugins.manager import default_catalog
from .spec.base import Options, Slot, Spec, _default_catalog, named
from .spec.misfit import Misfit, below

__all__ = [
    "Catalog",
    "Condition",
    "FeatureSpace",
    "Field",
    "Group",
    "Misfit",
    "NumberRange",
    "Options",
    "Problem",
    "Refused",
    "Slot",
    "Space",
    "Spec",
    "TokenSpace",
    "below",
    "default_catalog",
    "hookimpl",
    "named",
]

# `spec.base` needs the catalogue of all plugins, and cannot import the manager, which imports Spec.
_default_catalog[:] = [default_catalog]
