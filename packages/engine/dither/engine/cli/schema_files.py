"""The schemas of the files that we read, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dither.registry.config.json_schema import schema_of
from dither.registry.plugins.policy import Policy

from ..config.experiment import Experiment
from .components import visible_plugins

__all__ = ["schema_text"]


def schema_text(of: str, selected: Sequence[str] | None = None) -> str:
    """Return the JSON Schema of `experiment` or `registry` files; equal plugins give equal bytes."""
    catalog = visible_plugins(list(selected) if selected else None).catalog
    if of == "registry":
        made = schema_of(Policy, catalog, title="registry.toml of dither")
    else:
        made = schema_of(Experiment, catalog, title="A dither experiment", extends=True)
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
