"""What differs between two runs, two experiment files, or a run and a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import dotted
from dither.registry.config.validation import dump, validate

from ..config.component_fingerprints import component_fingerprints, plugin_fingerprints
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, open_experiment
from ..config.paths import not_a_run

__all__ = ["Side", "compare", "read_side"]

FINGERPRINT = " takes options"
"""After the place of a part: the fingerprint of the options that it takes."""
Rows = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        parts: Which part stands where, pinned: `model.block` -> `core-blocks/adaln-zero@1`.
        options: Every option by its dotted key.
        plugins: Version and, for a file, sha256 of the plugins that were used.
        environment: Versions and machine; None for a file, which has run nowhere.
        git: Commit and cleanness of the work tree; None for a file.
    """

    parts: Mapping[str, Any]
    options: Mapping[str, Any]
    plugins: Mapping[str, Any]
    environment: Mapping[str, Any] | None = None
    git: Mapping[str, Any] | None = None


def read_side(path: Path, select: Sequence[str] | None = None) -> Side:
    """Read the directory of a run, or an experiment file with the plugins that it names.

    Raises:
        Refused: It is neither, or damaged.
    """
    if not path.exists() and path.suffix != ".toml":
        raise not_a_run(path, "resolved.toml")
    return _of_run(path) if path.is_dir() else _of_file(path, select)


def compare(first: Side, second: Side) -> dict[str, Rows]:
    """Return what differs, by section and key: (old, new), with None where there is nothing.

    What only one of the two can tell, such as the git state of a file that has not run, is left out.
    """
    found: dict[str, Rows] = {}
    for section in Side.__dataclass_fields__:
        old, new = getattr(first, section), getattr(second, section)
        if old is not None and new is not None:
            keys = dict.fromkeys([*old, *new])
            found[section] = {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}
    for place in [place for place in found["parts"] if place + FINGERPRINT in found["parts"]]:
        del found["parts"][place + FINGERPRINT]  # another part takes other options as a matter of course
    return found


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
    prints = {place: record["options"] for place, record in component_fingerprints(loaded).items()}
    return Side(_parts(options, prints), _without_parts(options), _flat(plugin_fingerprints(loaded)))


def _without_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if not key.endswith(".use")}


def _parts(options: Mapping[str, Any], prints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pinned parts, and the fingerprints of what options they take."""
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
