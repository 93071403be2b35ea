"""Which parts the experiment files in a folder name, without reading them as experiments: some may be broken."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dither.registry.kinds import KINDS

__all__ = ["ComponentUsage", "component_usages"]

MOST = 400
"""Files that are looked through."""
LARGEST = 256 * 1024
"""Bytes of a file that is looked through."""


@dataclass(frozen=True)
class ComponentUsage:
    """A part by name, as a file names it.

    Attributes:
        file: The file.
        kind: The kind that its key says, or None where the key says none, such as `inner`.
        plugin: The plugin, where the name is a long one.
        name: The name of the part.
    """

    file: Path
    kind: str | None
    plugin: str
    name: str

    def means(self, kind: str, plugin: str, name: str) -> bool:
        """Whether it may be this part."""
        return self.name == name and self.kind in (kind, None) and self.plugin in (plugin, "")


def component_usages(folder: Path) -> Iterator[ComponentUsage]:
    """Yield every part that a TOML file at or below a folder names."""
    for path in sorted(folder.rglob("*.toml"))[:MOST]:
        try:
            if path.is_file() and path.stat().st_size <= LARGEST:
                tree = tomllib.loads(path.read_text(encoding="utf-8"))
                yield from (ComponentUsage(path, *found) for found in _names(tree, ""))
        except (OSError, ValueError, RecursionError):
            continue


def _names(value: Any, key: str) -> Iterator[tuple[str | None, str, str]]:
    """Yield kind, plugin and name of what stands under a key and below it."""
    kind = key.replace("_", "-") if key.replace("_", "-") in KINDS else None
    table = value if isinstance(value, dict) else {}
    reference = table.get("use", value)
    if isinstance(reference, str) and (kind or table):
        plugin, _, name = reference.rpartition("/")
        yield kind, plugin, name.partition("@")[0]
    for inner_key, inner in table.items():
        if inner_key != "use":
            yield from _names(inner, inner_key)
