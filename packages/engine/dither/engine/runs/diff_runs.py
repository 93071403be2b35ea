"""Differences between the options of runs and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.validation import dump, validate
from dither.registry.files.lookup import exists, is_folder

from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, open_experiment
from ..config.paths import not_a_run
from ..config.provenance import plugin_record
from .run_directory import flat, read_manifest, resolved_file

__all__ = ["differences", "read_side"]

RECORDED = ("plugins", "environment", "git")
"""Sections of a manifest that are compared."""
Side = dict[str, dict[str, Any]]
"""Values by section and dotted key: parts (pinned components), options, plugins, and of a run
environment and git."""


def read_side(path: Path, select: Sequence[str] | None = None) -> Side:
    """Read a run directory or an experiment file; Refused if it is neither, or damaged."""
    if not exists(path) and path.suffix != ".toml":
        raise not_a_run(path, "resolved.toml")
    if is_folder(path):
        tree = Document.read(resolved_file(path)).tree
        record = read_manifest(path)
    else:
        document, plugins = open_experiment(path, select=select)
        # Options are compared even where the components are incompatible.
        loaded = Loaded(
            validate(Experiment, document, plugins.catalog), document, plugins
        )
        tree = dump(loaded.experiment, plugins.catalog)
        record = {"plugins": plugin_record(loaded)}
    side: Side = {"parts": {}, "options": {}}
    for key, value in flat(tree).items():
        if key.endswith(".use"):
            side["parts"][key.removesuffix(".use")] = value
        else:
            side["options"][key] = value
    for section in RECORDED:
        # A manifest written by hand may hold anything.
        if record.get(section) and isinstance(record[section], dict):
            side[section] = flat(record[section])
    return side


def differences(first: Side, second: Side) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return the differences by section and key as (old, new), with None for a missing value.

    Sections that only one side has, such as the git state of a run, are left out.
    """
    sections: dict[str, dict[str, tuple[Any, Any]]] = {}
    for section, old in first.items():
        if section not in second:
            continue
        new = second[section]
        sections[section] = {}
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                sections[section][key] = (old.get(key), new.get(key))
    return sections
