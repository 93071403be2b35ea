"""The index of plugins that may be installed: a JSON file in this package, or a newer download.

Nothing is sent anywhere unless `refresh_index` is called. An index is written by others: unknown
keys are dropped, and damaged entries are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from ..config.errors import Refused
from ..files.atomic import atomic_write
from ..files.cache import cache_folder
from ..files.limits import read_bytes
from ..files.lookup import is_file
from ..files.write_errors import unwritable
from .manifest import (
    DISTRIBUTION,
    Foreign,
    Kit,
    Listed,
    Name,
    Text,
    Versions,
    parse_foreign,
)

__all__ = [
    "SNAPSHOT",
    "Entry",
    "indexed_plugin",
    "parse_index",
    "plugin_index",
    "provider_of",
    "refresh_index",
    "search_index",
]

SNAPSHOT = Path(__file__).parent / "index.json"
"""The index of this version, written by tools/index.py."""
ADDRESS = "DITHER_INDEX"
"""Environment variable: https address of an index for `refresh_index`."""
MAX_BYTES = 1 << 23
TIMEOUT = 30


class Entry(Foreign):
    """A plugin that can be installed."""

    distribution: Annotated[str, StringConstraints(pattern=f"^{DISTRIBUTION}$")]
    version: Annotated[
        str, StringConstraints(pattern="^[0-9][0-9A-Za-z.!+]*$", max_length=40)
    ]
    plugin: Name
    summary: Text = ""
    dither: Versions = ""
    """The versions of dither-registry that it is written for."""
    kit: Kit | None = None
    components: list[Listed] = Field([], max_length=1000)

    @property
    def title(self) -> str:
        """Distribution, version, and result of the kit."""
        result = f" (kit: {self.kit})" if self.kit else ""
        return f"{self.distribution} {self.version}{result}"


class _Index(Foreign):
    plugins: list[Any] = Field(max_length=10_000)


def parse_index(data: bytes, source: object) -> tuple[Entry, ...]:
    """Return the entries of an index that are valid.

    Raises `Refused` if the file as a whole is too large or damaged.
    """
    entries = []
    for table in parse_foreign(_Index, data, source, MAX_BYTES).plugins:
        # An entry in a form of later versions must not hide the others.
        with suppress(ValidationError):
            entries.append(Entry.model_validate(table))
    return tuple(entries)


def _downloaded() -> Path:
    return cache_folder() / "plugin-index.json"


@cache
def plugin_index() -> tuple[Entry, ...]:
    """Return the index, read once: the download of `refresh_index`, or else the snapshot."""
    path = _downloaded()
    if is_file(path):
        # The next refresh replaces a damaged one.
        with suppress(OSError, Refused):
            return parse_index(read_bytes(path, MAX_BYTES), path)
    return parse_index(read_bytes(SNAPSHOT, MAX_BYTES), SNAPSHOT)


def refresh_index() -> int:
    """Download the index at `DITHER_INDEX`, and return the number of its entries."""
    from urllib.request import urlopen

    address = os.environ.get(ADDRESS, "")
    if not address.startswith("https://"):
        text = f"{ADDRESS} must be the https address of an index, not {address!r}"
        raise Refused(text, code="invalid-value")
    try:
        with urlopen(address, timeout=TIMEOUT) as response:
            # urllib follows redirects to http, where an attacker could replace the index.
            if not response.url.startswith("https://"):
                raise OSError("redirected to an address without https")
            data = response.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        text = f"the index could not be downloaded: {error}"
        raise Refused(text, code="download-failed") from None
    entries = parse_index(data, address)
    path = _downloaded()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise unwritable(path, error) from None
    plugin_index.cache_clear()
    return len(entries)


def search_index(words: Iterable[str]) -> list[Entry]:
    """Return the plugins in whose names and summaries every word occurs."""
    lowered = [word.lower() for word in words]
    entries = []
    for entry in plugin_index():
        texts = [entry.distribution, entry.plugin, entry.summary]
        for part in entry.components:
            texts += [part.kind, part.name, part.summary]
        text = "\n".join(texts).lower()
        if all(word in text for word in lowered):
            entries.append(entry)
    return entries


def indexed_plugin(name: str) -> Entry | None:
    """Return the entry of a distribution or a plugin of this name."""
    from .policy import is_called

    for entry in plugin_index():
        if is_called(name, entry.distribution, entry.plugin):
            return entry
    return None


def provider_of(kind: str, name: str) -> Entry | None:
    """Return the plugin in the index that has a component."""
    for entry in plugin_index():
        for part in entry.components:
            if (part.kind, part.name) == (kind, name):
                return entry
    return None
