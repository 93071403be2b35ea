"""Provenance of a run: its components, plugins and data.

A run resumes with the same ones or not at all. manifest.json holds `parts` (pinned name and names
of options by place), `plugins` (source, version and checksum) and `data` (checksum of the files
that each data option names), and again under `resumed` what has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, dotted
from dither.registry.files.lookup import exists, is_file
from dither.registry.kinds import DataSpec
from dither.registry.spec.base import components_in, path_mark

from .experiment import Experiment
from .load_experiment import Loaded

__all__ = [
    "changed_data",
    "changed_plugin_files",
    "changes",
    "component_record",
    "data_record",
    "plugin_record",
    "provenance",
    "recorded",
]

FULL_HASH_LIMIT = 1 << 26
"""Bytes up to which data are hashed in full; of larger data, `BLOCKS` evenly spaced blocks."""
BLOCKS = 1024
BLOCK = 1 << 14
ZARR_FILES = frozenset({".zarray", ".zattrs", ".zgroup", ".zmetadata"})
"""Hidden files that belong to the data."""


def provenance(loaded: Loaded) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the provenance of an experiment by the keys of manifest.json."""
    return {
        "parts": component_record(loaded),
        "plugins": plugin_record(loaded),
        "data": data_record(loaded.experiment),
    }


def component_record(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Return the pinned name of every component, and the names of its options, by place."""
    record = {}
    for path, spec in components_in(loaded.experiment):
        options = sorted(type(spec).model_fields)
        record[dotted(path)] = {
            "part": loaded.plugins.catalog.pin(spec),
            "options": options,
        }
    return record


def plugin_record(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return source, version and, of a file, the sha256 of every active plugin, by name."""
    record = {}
    for status in loaded.plugins.active:
        # A plugin file is known by its content; its folder is that of one machine.
        source = Path(status.source).name if status.sha256 else status.source
        record[status.name] = {
            "from": source,
            "version": status.version,
            "sha256": status.sha256,
        }
    return record


def recorded(manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a table of a manifest as of the last time that the run was started or resumed."""
    for entry in (*reversed(manifest.get("resumed", ())), manifest):
        if isinstance(entry, dict) and isinstance(entry.get(key), dict):
            table: dict[str, Any] = entry[key]
            return table
    return {}


def _tables(manifest: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    tables = recorded(manifest, key).items()
    return {name: table for name, table in tables if isinstance(table, dict)}


def changes(
    manifest: Mapping[str, Any], loaded: Loaded, now: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Return what differs from the last start of a run.

    Args:
        manifest: Of the run.
        loaded: The experiment to resume it.
        now: The `provenance` of that experiment.
    """
    components = [
        *_changed_options(_tables(manifest, "parts"), now["parts"], loaded),
        *_changed_plugins(_tables(manifest, "plugins"), now["plugins"], now["parts"]),
    ]
    data = changed_data(_tables(manifest, "data"), now["data"])
    problems = [Problem(message, code="changed-components") for message in components]
    problems += [Problem(message, code="changed-data") for message in data]
    return problems


def changed_plugin_files(manifest: Mapping[str, Any], loaded: Loaded) -> list[str]:
    """Return a message for every plugin file whose content the run did not use last."""
    before = _tables(manifest, "plugins")
    now = plugin_record(loaded)
    return list(_changed_plugins(before, now, component_record(loaded), versions=False))


def _changed_options(
    before: Mapping[str, Any], now: Mapping[str, Any], loaded: Loaded
) -> Iterator[str]:
    """Yield components with options that they did not have, or no longer have.

    resolved.toml holds the values of all options, so that changed defaults do not matter; another
    component or revision differs there.
    """
    for path, spec in components_in(loaded.experiment):
        place = dotted(path)
        old = before.get(place, {})
        names = old.get("options")
        if old.get("part") != now[place]["part"] or not isinstance(names, list):
            continue
        added = [name for name in now[place]["options"] if name not in names]
        removed = [name for name in names if name not in now[place]["options"]]
        notes = []
        if added:
            values = (
                f"{key} = {json.dumps(getattr(spec, key), default=str)}"
                for key in added
            )
            notes.append(f"new options: {', '.join(values)}")
        if removed:
            notes.append(f"removed options: {', '.join(map(str, removed))}")
        if notes:
            yield f"{place}: the options of {old['part']} changed; {'; '.join(notes)}"


def _changed_plugins(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    parts: Mapping[str, Any],
    versions: bool = True,
) -> Iterator[str]:
    """Yield changed files and versions of the plugins whose components are in use."""
    # Trackers do not change results.
    pins = [
        record["part"]
        for place, record in parts.items()
        if not place.startswith("tracking.")
    ]
    used = {pin.partition("/")[0] for pin in pins}
    for name, old in before.items():
        # Without its plugin, a component of the run was refused before.
        if name not in used or name not in now:
            continue
        new = now[name]
        if new["sha256"] != old.get("sha256"):
            yield f'plugin file {new["from"]} of plugin "{name}" changed'
        elif versions and new["version"] != old.get("version"):
            change = f"version {old.get('version')} -> {new['version']}"
            yield f'plugin "{name}" ({new["from"]}): {change}'


def changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield changed contents; data options that were added or removed are changed options."""
    for place, new in now.items():
        old = before.get(place, new)
        if old["sha256"] == new["sha256"]:
            continue
        old_size = _size(old)
        new_size = _size(new)
        change = f"{old_size} -> {new_size}"
        if old_size == new_size:
            change = "contents differ"
        yield f"the data of {place} changed ({new['first']}): {change}"


def _size(record: Mapping[str, Any]) -> str:
    return f"{record['files']:,} files of {record['bytes']:,} bytes"


def data_record(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return number, bytes and hash of the files that each option of data names, by place."""
    record = {}
    for path, spec in components_in(experiment):
        if not isinstance(spec, DataSpec):
            continue
        for name, info in type(spec).model_fields.items():
            if path_mark(info) and (files := sorted(_files(getattr(spec, name)))):
                record[dotted((*path, name))] = _hash_files(files)
        # An option may name files of both kinds.
        for name, described in spec.describe_elsewhere().items():
            record[f"{dotted((*path, name))} elsewhere"] = dict(described)
    return record


def _files(option: str | Path | Sequence[str | Path] | None) -> Iterator[Path]:
    """Yield the files that an option names by path, by folder, or by pattern."""
    if isinstance(option, str | Path):
        option = [option]
    for value in option or ():
        if not value:
            continue
        # An invalid pattern is reported by the component that reads it.
        with suppress(ValueError, RuntimeError):
            path = Path(value).expanduser()
            matches = [path]
            if not exists(path):
                # Path.glob takes relative patterns only, so that an absolute one starts at its
                # anchor.
                matches = list(
                    Path(path.anchor).glob(str(path.relative_to(path.anchor)))
                )
            for match in matches:
                if is_file(match):
                    yield match
                yield from filter(Path.is_file, _visible(match))


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the content of a folder; of hidden files only those of zarr."""
    for path in folder.rglob("*"):
        names = set(path.relative_to(folder).parts) - ZARR_FILES
        if not any(name.startswith(".") for name in names):
            yield path


def _hash_files(files: Sequence[Path]) -> dict[str, Any]:
    """Return the fingerprint of files, without their folder, so that data may be moved."""
    sizes = [path.stat().st_size for path in files]
    size_sum = sum(sizes)
    step = 1 if size_sum <= FULL_HASH_LIMIT else size_sum // BLOCKS
    digest = hashlib.sha256()
    before = 0
    for path, size in zip(files, sizes, strict=True):
        # A single file may have another name now.
        name = path.name if len(files) > 1 else ""
        digest.update(f"{name} {size}\n".encode())
        # Blocks are evenly spaced over all files; those without a block are not opened.
        offsets = range(-before % step, size, step)
        if step == 1 and size:
            digest.update(path.read_bytes())
        elif offsets:
            with path.open("rb") as file:
                for offset in offsets:
                    file.seek(offset)
                    digest.update(file.read(BLOCK))
        before += size
    return {
        "first": files[0].name,
        "files": len(files),
        "bytes": size_sum,
        "sha256": digest.hexdigest(),
    }
