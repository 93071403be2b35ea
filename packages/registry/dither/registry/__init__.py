"""Hooks, names, spaces and records: what every plugin is written against. No torch at import."""

from .catalog import Catalog, default_catalog
from .hookspecs import hookimpl
from .problems import Problem, Refused
from .spaces import Condition, FeatureSpace, Field, Group, Space, TokenSpace
from .spec import Misfit, Options, Slot, Spec, below, named

__all__ = [
    "Catalog",
    "Condition",
    "FeatureSpace",
    "Field",
    "Group",
    "Misfit",
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
