"""Discovery of plugins: entry points of installed distributions, and single files.

Entry points are found without importing anything. A file is imported as a module of its own.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

from ..files.limits import read_bytes

__all__ = [
    "BUILT_IN",
    "FILE_MODULE",
    "GROUP",
    "Installed",
    "entry_points_of",
    "import_file",
    "installed_plugins",
    "invalid_name",
    "package_folders",
]

BUILT_IN = frozenset(
    {
        "core-blocks",
        "embeddings",
        "engine",
        "losses",
        "processes",
        "tasks",
        "testing",
    }
)
"""The plugins of this repository."""
GROUP = "dither.plugins"
"""Group of the entry points."""
FILE_MODULE = "dither_plugin_"
"""Prefix of the modules of one-file plugins."""
INVALID_NAME = re.compile(r"""[/@"\\,]|^no:|\.py$|^\s|\s$|^$""")
"""Names that a pin, a list of names or -p could not express."""


@dataclass(frozen=True)
class Installed:
    """An entry point, with its distribution."""

    name: str
    distribution: str
    version: str
    point: EntryPoint = field(repr=False, compare=False)


def installed_plugins() -> dict[str, list[Installed]]:
    """Return the entry points by name, sorted; more than one of a name is a clash."""
    plugins: dict[str, list[Installed]] = {}
    for point in sorted(entry_points_of(GROUP), key=lambda point: point.name):
        distribution = "?"
        version = ""
        # An interrupted installation leaves metadata that raise many types.
        with suppress(Exception):
            metadata = point.dist.metadata  # type: ignore[union-attr]
            distribution = metadata["Name"] or distribution
            version = metadata["Version"] or version
        plugin = Installed(point.name, distribution, version, point)
        plugins.setdefault(point.name, []).append(plugin)
    return plugins


def entry_points_of(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group, of all distributions that can be read."""
    try:
        return entry_points(group=group)
    except Exception:
        # One unreadable entry_points.txt of any package fails the whole call.
        points: list[EntryPoint] = []
        for distribution in distributions():
            with suppress(Exception):
                points += distribution.entry_points.select(group=group)
        return points


def package_folders(point: EntryPoint) -> list[Path]:
    """Return where the package of an entry point may be, without importing it."""
    match = EntryPoint.pattern.match(point.value)
    if match is None:
        return []
    # The spec of `a.b` would import `a`.
    top, *rest = match["module"].split(".")
    folders: Iterable[str] = ()
    if top in sys.modules:
        # Of several distributions, as `dither` is: its spec has one folder only.
        folders = getattr(sys.modules[top], "__path__", ())
    else:
        with suppress(ImportError, ValueError):
            spec = find_spec(top)
            if spec is not None:
                folders = spec.submodule_search_locations or ()
    return [Path(folder, *rest) for folder in folders]


def invalid_name(name: str) -> str:
    """Return why a plugin cannot have this name, or an empty string."""
    if name.isprintable() and not INVALID_NAME.search(name):
        return ""
    return f"{name!r} is not a valid plugin name: pins and -p could not express it"


def import_file(path: Path) -> tuple[ModuleType, str]:
    """Import a file, again if it was imported before; return the module and its sha256."""
    source = read_bytes(path)
    file = str(path.resolve())
    stem = re.sub(r"\W", "_", path.stem)
    # The digest of the path keeps two files of one name apart.
    name = f"{FILE_MODULE}{stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = file
    # Dataclasses and pydantic look up their module while it runs.
    sys.modules[name] = module
    try:
        _SourceLoader(source, file).exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module, hashlib.sha256(source).hexdigest()


class _SourceLoader(InspectLoader):
    """Runs the source that was hashed.

    Byte code is neither read nor written: it may be older than an edit within the same second.
    """

    def __init__(self, source: bytes, file: str) -> None:
        self.source = source
        self.file = file

    def get_source(self, fullname: str) -> str:
        return self.source.decode()

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.source, self.file)
