"""The plugins that are installed here, read off their metadata: nothing is imported."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import json
import os
import sys
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import unquote, urlparse

__all__ = ["GROUP", "Installed", "environment_stamp", "installed_plugins"]

GROUP = "dither.plugins"
"""The entry-point group, ours and a stranger's alike."""


@dataclass(frozen=True)
class Installed:
    """One entry point of our group.

    Attributes:
        name: Name of the plugin.
        module: What it points at, `package.module` or `package.module:object`.
        distribution: Name of the distribution that it comes with.
        version: Of the distribution.
        point: The entry point itself, to load it with.
    """

    name: str
    module: str
    distribution: str
    version: str
    point: importlib.metadata.EntryPoint = field(repr=False, compare=False)

    @cached_property
    def stamp(self) -> str:
        """Changes when the plugin is installed anew, and when a file of an editable one is saved."""
        top = self.module.partition(":")[0].partition(".")[0]
        facts = [sys.version, self.name, self.module, self.distribution, self.version, _own_stamp(), *_file_facts(top)]
        if (dist := self.point.dist) is not None:
            facts += _folder_facts(dist)
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]


def _file_facts(module: str) -> list[str]:
    """A single-file module, or the package that it is; a namespace has no file."""
    try:
        spec = importlib.machinery.PathFinder.find_spec(module)
        origin = spec.origin if spec is not None else None
        return [f"{origin} {os.stat(origin).st_mtime_ns}"] if origin and os.path.isfile(origin) else []
    except (ImportError, OSError, ValueError):
        return []


def _folder_facts(dist: importlib.metadata.Distribution) -> list[str]:
    """Where the distribution lies and when it came there; the newest source of an editable one."""
    facts = []
    if isinstance(dist, importlib.metadata.PathDistribution) and isinstance(path := getattr(dist, "_path", None), Path):
        facts.append(f"{path} {path.stat().st_mtime_ns if path.exists() else 0}")
    try:
        where = json.loads(dist.read_text("direct_url.json") or "{}")
        if where.get("dir_info", {}).get("editable"):
            facts.append(_newest_source(unquote(urlparse(where["url"]).path)))
    except (OSError, ValueError, KeyError, AttributeError):
        pass
    return facts


@cache
def _own_stamp() -> str:
    """What reads the menus changes what stands on them."""
    return _newest_source(str(Path(__file__).parent))


def _newest_source(folder: str) -> str:
    count, newest = 0, 0
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("tests", "node_modules")]
        for name in files:
            if name.endswith((".py", ".toml")):
                count, newest = count + 1, max(newest, os.stat(os.path.join(where, name)).st_mtime_ns)
    return f"{folder} {count} {newest}"


def installed_plugins() -> dict[str, list[Installed]]:
    """Return the entry points of our group by name, sorted; two of one name are a clash for the caller to tell."""
    found: dict[str, list[Installed]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        name = point.dist.name if point.dist else "?"
        one = Installed(point.name, point.value, name, point.dist.version if point.dist else "?", point)
        same = found.setdefault(point.name, [])
        if all((other.module, other.distribution) != (one.module, one.distribution) for other in same):
            same.append(one)
    return dict(sorted(found.items()))


def environment_stamp() -> str:
    """Changes when any distribution is installed, removed or replaced: their names and versions, from folder names."""
    names: list[str] = []
    for folder in sys.path:
        try:
            names += [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info", ".pth"))]
        except OSError:
            continue
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:20]
