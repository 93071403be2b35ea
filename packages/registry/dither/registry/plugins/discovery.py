"""The plugins that are installed here, read off their metadata: nothing is imported, and no broken metadata raises."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

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
        folder: Where the metadata of the distribution lies.
        failure: What is wrong with the metadata, empty where nothing is.
    """

    name: str
    module: str
    distribution: str
    version: str
    point: EntryPoint = field(repr=False, compare=False)
    folder: str = ""
    failure: str = ""

    @cached_property
    def stamp(self) -> str:
        """Changes when the plugin is installed anew, and when a file of its package is saved."""
        facts = [sys.version, self.name, self.module, self.distribution, self.version, _own_stamp()]
        facts += [*_saved(self.folder), *_source_facts(_sources(self.module))]
        return _short("\n".join(facts))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:20]


@cache
def _own_stamp() -> str:
    """What reads the menus changes what stands on them."""
    return _short("\n".join(_source_facts([str(Path(__file__).parents[1])])))


def _sources(value: str) -> list[str]:
    """Where an entry point's code lies, without an import: the outermost package with an `__init__`, or one file."""
    top, *inner = re.split(r"[:\[\s]", value)[0].split(".")
    try:
        spec = importlib.util.find_spec(top)
    except Exception:  # what finders of other people's may raise
        return []
    if spec is None:
        return []
    places: Iterable[str] = spec.submodule_search_locations or ()
    if top == "dither":  # many folders, whether one has an `__init__` or none
        places = sys.modules[top].__path__
    elif spec.origin:
        return list(places or [spec.origin])
    folders = [Path(folder) for folder in places]  # of a namespace
    for name in inner:
        folders = [folder / name for folder in folders]
        for one in (*folders, *(folder.with_name(f"{name}.py") for folder in folders)):
            if one.is_file() or (one / "__init__.py").is_file():
                return [str(one)]
    return [str(folder) for folder in folders]


def _source_facts(sources: Iterable[str]) -> list[str]:
    """When each Python file was saved."""
    facts: list[str] = []
    for source in sources:
        facts += _saved(source) if source.endswith(".py") else []
        for where, folders, files in os.walk(source):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            for name in files:
                if name.endswith(".py") and not name.startswith("."):
                    facts += _saved(os.path.join(where, name))
    return sorted(facts)


def _saved(path: str) -> list[str]:
    try:
        return [f"{path} {os.stat(path).st_mtime_ns}"] if path else []
    except (OSError, ValueError):
        return []


def installed_plugins() -> dict[str, list[Installed]]:
    """Return the entry points of our group by name, sorted; two of one name are a clash for the caller to tell.

    One with broken metadata has a `failure`; it is left out where another of its name is whole.
    """
    found: dict[str, list[Installed]] = {}
    for dist in _distributions():
        for one in _offered(dist):
            same = found.setdefault(one.name, [])
            if all((other.module, other.distribution) != (one.module, one.distribution) for other in same):
                same.append(one)
    whole = {name: [one for one in same if not one.failure] for name, same in found.items()}
    return {name: whole[name] or found[name][:1] for name in sorted(found)}


def _distributions() -> Iterator[Distribution]:
    """Yield the distributions that an import would see: the first of each name, none that pip half removed."""
    seen = set()
    for dist in importlib.metadata.distributions():
        stem = Path(_folder(dist)).name.partition("-")[0].removesuffix(".egg")
        name = re.sub(r"[-_.]+", "-", stem).lower()
        if not name.startswith("~") and (not name or name not in seen):
            seen.add(name)
            yield dist


def _folder(dist: Distribution) -> str:
    return str(getattr(dist, "_path", ""))


def _offered(dist: Distribution) -> Iterator[Installed]:
    """Yield the entry points of our group; what other groups hold has no say."""
    try:
        text = dist.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:
        text = bytes(error.object).decode(errors="replace")
    except Exception:  # it cannot be read, so it offers nothing
        return
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and line and not line.startswith(("#", ";")):
            name, equals, module = (word.strip() for word in line.partition("="))
            name_of_dist, version, failure = _identity(dist)
            if not equals:
                failure = f"its line in entry_points.txt has no `=` ({_folder(dist)})"
            point = EntryPoint(name, module, GROUP)
            yield Installed(name, module, name_of_dist, version, point, _folder(dist), failure)


def _identity(dist: Distribution) -> tuple[str, str, str]:
    """Return name and version of a distribution, and what is wrong with them."""
    try:
        name, version = dist.metadata.get("Name"), dist.metadata.get("Version")  # type: ignore[attr-defined]
    except Exception:
        name = version = None
    missing = [key for key, value in (("Name", name), ("Version", version)) if not value]
    failure = f"its metadata has no {' and no '.join(missing)} ({_folder(dist)}); install it anew" if missing else ""
    return str(name or "?"), str(version or ""), failure


def environment_stamp() -> str:
    """Changes when any distribution is installed, removed or replaced: their names and versions, from folder names."""
    names: list[str] = []
    for folder in sys.path:
        try:
            names += [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info", ".pth"))]
        except OSError:
            continue
    return _short("\n".join(sorted(names)))
