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
    """Return the JSON Schema of `experiment` or `registry` files; one line for each definition."""
    catalog = visible_plugins(list(selected) if selected else None).catalog
    if of == "registry":
        made = schema_of(Policy, catalog, title="registry.toml of dither")
    else:
        made = schema_of(Experiment, catalog, title="A dither experiment", extends=True)
    definitions = made.pop("definitions")
    lines = [json.dumps(made, ensure_ascii=False, separators=(",", ":"))[:-1] + ',"definitions":{']
    lines += [
        f'"{name}":{json.dumps(definitions[name], ensure_ascii=False, separators=(",", ":"))},' for name in definitions
    ]
    return "\n".join(lines).removesuffix(",") + "\n}}\n"
