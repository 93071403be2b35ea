"""Components that the experiment files of a folder name. The files are not validated, as some may be broken."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dither.registry.kinds import KINDS

__all__ = ["ComponentUsage", "component_usages"]

MAX_FILES = 400
MAX_BYTES = 256 * 1024
"""Size of a file that is read."""


@dataclass(frozen=True)
class ComponentUsage:
    """A component named in a file.

    Attributes:
        file: The file.
        kind: The kind implied by the key, or None for a key such as `inner`.
        plugin: The plugin of a qualified name, or "".
        name: The name of the component.
    """

    file: Path
    kind: str | None
    plugin: str
    name: str

    def means(self, kind: str, plugin: str, name: str) -> bool:
        """Return whether it may refer to a component."""
        return self.name == name and self.kind in (kind, None) and self.plugin in (plugin, "")


def component_usages(folder: Path) -> Iterator[ComponentUsage]:
    """Yield every component named in a TOML file at or below a folder."""
    for path in sorted(folder.rglob("*.toml"))[:MAX_FILES]:
        try:
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                tree = tomllib.loads(path.read_text(encoding="utf-8"))
                yield from (ComponentUsage(path, *names) for names in _names(tree, ""))
        except (OSError, ValueError, RecursionError):
            continue


def _names(value: Any, key: str) -> Iterator[tuple[str | None, str, str]]:
    """Yield kind, plugin and name of the components in a value."""
    kind = key.replace("_", "-") if key.replace("_", "-") in KINDS else None
    table = value if isinstance(value, dict) else {}
    reference = table.get("use", value)
    if isinstance(reference, str) and (kind or table):
        plugin, _, name = reference.rpartition("/")
        yield kind, plugin, name.partition("@")[0]
    for inner_key, inner in table.items():
        if inner_key != "use":
            yield from _names(inner, inner_key)
