"""dither-plugin.json: the components of a plugin, readable without importing it.

The file is in the package that the entry point names. It is optional, and written by others, so
that only known keys of the right form are read.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from ..config.errors import Refused
from ..files.atomic import atomic_write
from ..files.limits import read_bytes, unreadable
from ..files.lookup import is_file
from .catalog import Catalog, Component
from .discovery import Installed, package_folders

__all__ = [
    "DISTRIBUTION",
    "MANIFEST",
    "Foreign",
    "Kit",
    "Listed",
    "Manifest",
    "Name",
    "Text",
    "Versions",
    "component_entries",
    "is_compatible",
    "manifest_text",
    "parse_foreign",
    "parse_manifest",
    "read_manifest",
    "write_manifest",
]

MANIFEST = "dither-plugin.json"
MAX_BYTES = 1 << 20
DISTRIBUTION = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
"""Names that pip cannot read as an option, a path or a URL."""


def _one_line(text: str) -> str:
    """Return the printable characters on one line: a terminal would obey the others."""
    words = " ".join(text.split())
    return "".join(filter(str.isprintable, words))[:300]


def _specifier(text: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        raise ValueError(f'"{text}" is not a range of versions') from None


Text = Annotated[str, AfterValidator(_one_line)]
Name = Annotated[
    str, StringConstraints(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)
]
Versions = Annotated[str, StringConstraints(max_length=100), AfterValidator(_specifier)]
"""A range of versions such as `>=0.1,<1`; empty for any."""


class Foreign(BaseModel):
    """A table of a file that others wrote; unknown keys are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Kit(Foreign):
    """A result of the conformance kit, as the author of the plugin states it."""

    passed: int = Field(ge=0, le=1_000_000)
    checks: int = Field(ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _is_possible(self) -> Kit:
        if self.passed > self.checks:
            raise ValueError("more checks passed than there are")
        return self

    def __str__(self) -> str:
        return f"{self.passed} of {self.checks}"


class Listed(Foreign):
    """A component of a plugin that may not be installed."""

    kind: Name
    name: Name
    rev: int = Field(1, ge=1)
    summary: Text = ""
    traits: list[Name] = Field([], max_length=50)


class Described(Listed):
    """A component with the JSON Schema of its options."""

    options: dict[str, Any] = {}


class Manifest(Foreign):
    """The content of dither-plugin.json."""

    plugin: Name
    dither: Versions = ""
    """The versions of dither-registry that it is written for."""
    kit: Kit | None = None
    components: list[Described] = Field([], max_length=1000)


def is_compatible(versions: str, installed: str) -> bool:
    """Return whether a range of versions contains an installed one, of a developer, too."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(versions).contains(installed, prereleases=True)


F = TypeVar("F", bound=Foreign)


def parse_foreign(table: type[F], data: bytes, source: object, limit: int) -> F:
    """Parse JSON that others wrote; Refused if it is too large, or with the first mistake."""
    if len(data) > limit:
        text = f"{source}: {len(data):,} bytes, more than {limit:,}"
        raise Refused(text, code="too-large")
    try:
        return table.model_validate_json(data)
    except ValidationError as error:
        mistake = error.errors(include_input=False, include_url=False)[0]
        text = f"{source}: "
        if mistake["loc"]:
            text += ".".join(map(str, mistake["loc"])) + ": "
        text += mistake["msg"]
        raise Refused(_one_line(text), code="damaged-file") from None


def parse_manifest(data: bytes, source: object) -> Manifest:
    """Parse dither-plugin.json; Refused if it is too large or damaged."""
    return parse_foreign(Manifest, data, source, MAX_BYTES)


def read_manifest(plugin: Installed) -> Manifest | None:
    """Return the manifest of an installed plugin, if it has one, without importing the plugin.

    Raises `Refused` if it is damaged, or that of another plugin.
    """
    for folder in package_folders(plugin.point):
        path = folder / MANIFEST
        if not is_file(path):
            continue
        try:
            manifest = parse_manifest(read_bytes(path, MAX_BYTES), path)
        except OSError as error:
            raise unreadable(path, error) from None
        if manifest.plugin != plugin.name:
            text = f'{path} is of plugin "{manifest.plugin}", not "{plugin.name}"'
            raise Refused(text, code="damaged-file")
        return manifest
    return None


def component_entries(catalog: Catalog, plugin: str) -> list[dict[str, Any]]:
    """Return the components of a loaded plugin as tables of a manifest."""
    return [_entry(part) for part in catalog.parts() if part.plugin == plugin]


def _entry(part: Component) -> dict[str, Any]:
    from ..config.json_schema import options_schema

    return {
        "kind": part.kind,
        "name": part.name,
        "rev": part.rev,
        "summary": part.summary,
        "traits": _default_traits(part),
        "options": options_schema(part.spec),
    }


def _default_traits(part: Component) -> list[str]:
    try:
        return sorted(part.spec().traits())
    except ValidationError:
        # An option is required, and traits may depend on it.
        return []


def manifest_text(
    plugin: str, dither: str, components: list[dict[str, Any]], kit: Kit | None = None
) -> str:
    """Return the text of dither-plugin.json."""
    table = {
        "plugin": plugin,
        "dither": dither,
        "kit": kit.model_dump() if kit else None,
        "components": components,
    }
    return json.dumps(table, indent=1, ensure_ascii=False) + "\n"


def write_manifest(
    folder: Path,
    plugin: str,
    dither: str,
    components: list[dict[str, Any]],
    kit: Kit | None = None,
) -> Path:
    """Write the manifest of a plugin into its package.

    Without a new result of the kit the old one stays, unless the components changed.
    """
    path = folder / MANIFEST
    text = manifest_text(plugin, dither, components, kit)
    new = parse_manifest(text.encode(), path)
    if kit is None:
        # A damaged file is replaced.
        with suppress(OSError, Refused):
            old = parse_manifest(read_bytes(path, MAX_BYTES), path)
            if old.components == new.components:
                text = manifest_text(plugin, dither, components, old.kit)
    with atomic_write(path) as temporary:
        # Without CRLF on Windows, so that the file is the same on every system.
        temporary.write_text(text, encoding="utf-8", newline="")
    return path
