"""Differences between two runs, two experiment files, or a run and a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import dotted
from dither.registry.config.validation import dump, validate

from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, open_experiment
from ..config.paths import not_a_run
from ..config.provenance import component_record, plugin_record

__all__ = ["Side", "compare", "read_side"]

FINGERPRINT = " option types"
"""Suffix of the place of a component for the fingerprint of its option types."""
Rows = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Side:
    """A run or an experiment file.

    Attributes:
        parts: Pinned component by place: `model.block` -> `core-blocks/adaln-zero@1`.
        options: Every option by dotted key.
        plugins: Version, and sha256 of a file, of the plugins in use.
        environment: Versions and machine of a run; None for a file.
        git: Commit and state of the work tree of a run; None for a file.
    """

    parts: Mapping[str, Any]
    options: Mapping[str, Any]
    plugins: Mapping[str, Any]
    environment: Mapping[str, Any] | None = None
    git: Mapping[str, Any] | None = None


def read_side(path: Path, select: Sequence[str] | None = None) -> Side:
    """Read a run directory or an experiment file.

    Raises:
        Refused: It is neither, or damaged.
    """
    if not path.exists() and path.suffix != ".toml":
        raise not_a_run(path, "resolved.toml")
    return _of_run(path) if path.is_dir() else _of_file(path, select)


def compare(first: Side, second: Side) -> dict[str, Rows]:
    """Return the differences by section and key as (old, new), with None for a missing value.

    Sections that only one side has, such as the git state of a run, are left out.
    """
    sections: dict[str, Rows] = {}
    for section in Side.__dataclass_fields__:
        old, new = getattr(first, section), getattr(second, section)
        if old is not None and new is not None:
            keys = dict.fromkeys([*old, *new])
            sections[section] = {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
    for place in [place for place in sections["parts"] if place + FINGERPRINT in sections["parts"]]:
        del sections["parts"][place + FINGERPRINT]  # another component has other options anyway
    return sections


def _of_run(path: Path) -> Side:
    from .run_directory import read_manifest, resolved_file

    resolved = resolved_file(path)
    manifest = read_manifest(path)
    options = _flat(Document.read(resolved).tree)
    prints = {place: record.get("options") for place, record in _tables(manifest.get("parts")).items()}
    git = manifest.get("git")
    return Side(
        _parts(options, prints),
        _without_parts(options),
        _flat(_tables(manifest.get("plugins"))),
        _flat(manifest["environment"]),
        _flat(git) if isinstance(git, dict) else None,
    )


def _of_file(path: Path, select: Sequence[str] | None) -> Side:
    document, plugins = open_experiment(path, select=select)
    loaded = Loaded(validate(Experiment, document, plugins.catalog), document, plugins)
    options = _flat(dump(loaded.experiment, plugins.catalog))
    prints = {place: record["options"] for place, record in component_record(loaded).items()}
    return Side(_parts(options, prints), _without_parts(options), _flat(plugin_record(loaded)))


def _without_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not key.endswith(".use")}


def _parts(options: Mapping[str, Any], prints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pinned components and the fingerprints of their option types."""
    parts = {key.removesuffix(".use"): value for key, value in options.items() if key.endswith(".use")}
    return parts | {place + FINGERPRINT: fingerprint for place, fingerprint in prints.items()}


def _tables(value: Any) -> dict[str, dict[str, Any]]:
    return {key: inner for key, inner in value.items() if isinstance(inner, dict)} if isinstance(value, dict) else {}


def _flat(tree: Mapping[str, Any], path: tuple[str | int, ...] = ()) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in tree.items():
        here = (*path, key)
        values |= _flat(value, here) if isinstance(value, dict) else {dotted(here): value}
    return values
