"""Discovery of plugins: entry points of installed distributions, and single files.

Entry points are found without importing anything. A file is imported as a module of its own.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import InspectLoader
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from pathlib import Path
from types import CodeType, ModuleType

from ..files.limits import read_bytes

__all__ = [
    "FILE_MODULE",
    "GROUP",
    "Installed",
    "import_file",
    "installed_plugins",
    "invalid_name",
]

GROUP = "dither.plugins"
"""Group of the entry points."""
FILE_MODULE = "dither_plugin_"
"""Prefix of the modules of one-file plugins."""
INVALID_NAME = re.compile(r"""[/@"\\,]|^no:|\.py$|^\s|\s$|^$""")
"""Names that a pin, a list of names or -p could not express."""


@dataclass(frozen=True)
class Installed:
    """An entry point, with its distribution.

    `failure` says why it cannot be used, such as damaged metadata.
    """

    name: str
    distribution: str
    version: str
    point: EntryPoint = field(repr=False, compare=False)
    failure: str = ""


def installed_plugins() -> dict[str, list[Installed]]:
    """Return the entry points by name, sorted; more than one of a name is a clash."""
    plugins: dict[str, list[Installed]] = {}
    # Intact ones come first, so that a damaged copy of a plugin does not hide it.
    for plugin in sorted(_plugins(), key=lambda plugin: (plugin.name, plugin.failure)):
        same_name = plugins.setdefault(plugin.name, [])
        if not (plugin.failure and same_name):
            same_name.append(plugin)
    return plugins


def _plugins() -> Iterator[Installed]:
    try:
        yield from [_identify(point, point.dist) for point in entry_points(group=GROUP)]
    except Exception:
        # One unreadable entry_points.txt of any package fails the whole call.
        for dist in distributions():
            yield from _plugins_of(dist)


def _plugins_of(dist: Distribution) -> list[Installed]:
    """Return the plugins of a distribution; unreadable entry points are one failed plugin."""
    text = ""
    try:
        text = dist.read_text("entry_points.txt") or ""
        return [
            _identify(point, dist) for point in dist.entry_points.select(group=GROUP)
        ]
    except Exception as error:
        content = (
            error.object if isinstance(error, UnicodeDecodeError) else text.encode()
        )
        if GROUP.encode() not in content:
            return []
        name = _identify(EntryPoint("", "", GROUP), dist).distribution
        point = EntryPoint(name, name, GROUP)
        return [
            Installed(
                name, name, "", point, f"its entry_points.txt is damaged: {error}"
            )
        ]


def _identify(point: EntryPoint, dist: Distribution | None) -> Installed:
    name = version = None
    if dist is not None:
        # Damaged metadata raises many types.
        with suppress(Exception):
            metadata = dist.metadata
            name = metadata["Name"]
            version = metadata["Version"]
    failure = ""
    if not (name and version):
        failure = (
            "the metadata of its distribution lacks the name or version; reinstall it"
        )
    return Installed(point.name, name or "?", version or "", point, failure)


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
