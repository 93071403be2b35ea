"""Provenance of a run: its components, plugins and data, so that it resumes with the same ones or not at all.

manifest.json holds `parts` (component name and option fingerprint by place), `plugins` (source,
version and checksum) and `data` (checksum of the files that each data option names), and again
under `resumed` what has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.spec.base import components_in, path_mark
from dither.registry.spec.fingerprint import fingerprint

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

KEYS = ("parts", "plugins", "data")
FULL_HASH_LIMIT = 1 << 26
"""Bytes up to which data are hashed in full; of larger data, `BLOCKS` evenly spaced blocks."""
BLOCKS = 1024
BLOCK = 1 << 14
ZARR_FILES = frozenset({".zarray", ".zattrs", ".zgroup", ".zmetadata"})
"""Hidden files that belong to the data."""


def provenance(loaded: Loaded) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the provenance of an experiment: the tables of `KEYS`."""
    return {
        "parts": component_record(loaded),
        "plugins": plugin_record(loaded),
        "data": data_record(loaded.experiment),
    }


def component_record(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return the pinned name of every component, and the fingerprint of its options, by place."""
    return {
        dotted(path): {"part": loaded.plugins.catalog.pin(spec), "options": fingerprint(type(spec))}
        for path, spec in components_in(loaded.experiment)
    }


def plugin_record(loaded: Loaded) -> dict[str, dict[str, str]]:
    """Return the distribution or file, the version, and the sha256 of a file of every active plugin, by name."""
    return {
        status.name: {
            "from": status.source.rpartition("/")[2] if status.sha256 else status.source,
            "version": status.version,
            "sha256": status.sha256,
        }
        for status in loaded.plugins.active
    }


def recorded(manifest: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a table of a manifest as of the last time that the run was started or resumed."""
    entries = [
        manifest,
        *(entry for entry in manifest.get("resumed", ()) if isinstance(entry, dict)),
    ]
    return next((entry[key] for entry in reversed(entries) if isinstance(entry.get(key), dict)), {})


def _tables(manifest: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    return {
        name: table for name, table in recorded(manifest, key).items() if isinstance(table, dict)
    }


def changes(
    manifest: Mapping[str, Any], loaded: Loaded, now: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Return what differs from the last start of a run; `now` is the `provenance` of the experiment to resume it."""
    components = [
        *_changed_components(_tables(manifest, "parts"), now["parts"], loaded),
        *_changed_plugins(_tables(manifest, "plugins"), now["plugins"], now["parts"]),
    ]
    data = changed_data(_tables(manifest, "data"), now["data"])
    messages = {"changed-components": components, "changed-data": data}
    return [Problem(message, code=code) for code, found in messages.items() for message in found]


def changed_plugin_files(manifest: Mapping[str, Any], loaded: Loaded) -> list[str]:
    """Return a message for every plugin file in use whose content differs from the one that the run last used."""
    before = _tables(manifest, "plugins")
    return list(
        _changed_plugins(before, plugin_record(loaded), component_record(loaded), versions=False)
    )


def _changed_components(
    before: Mapping[str, Any], now: Mapping[str, Any], loaded: Loaded
) -> Iterator[str]:
    for path, spec in components_in(loaded.experiment):
        place = dotted(path)
        old = before.get(place, {})
        new = now[place]
        try:  # it may have been renamed since
            name = loaded.plugins.catalog.find(spec.kind, str(old.get("part"))).pinned
        except Refused:
            continue
        if name == new["part"] and new["options"] != old.get(
            "options"
        ):  # other names differ in resolved.toml, too
            table = loaded.document.at(path)
            options = {key: getattr(spec, key) for key in type(spec).model_fields}
            added = {
                key: value
                for key, value in options.items()
                if isinstance(table, dict) and key not in table
            }
            shown = ", ".join(
                f"{key} = {json.dumps(v, default=str)}" for key, v in added.items() if v is not None
            )
            yield f"{place}: the options of {name} changed" + (
                f"; new options: {shown}" if added else ""
            )


def _changed_plugins(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    parts: Mapping[str, Any],
    versions: bool = True,
) -> Iterator[str]:
    """Yield changed files and versions of the plugins whose components are in use."""
    used = {
        record["part"].partition("/")[0]
        for key, record in parts.items()
        if not key.startswith("tracking.")
    }
    for name, old in before.items():
        if name not in used or name not in now:
            continue
        new = now[name]
        if new["sha256"] != old.get("sha256"):
            yield f'plugin file {new["from"]} of plugin "{name}" changed'
        elif versions and new["version"] != old.get("version"):
            yield f'plugin "{name}" ({new["from"]}): version {old.get("version")} -> {new["version"]}'


def changed_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield changed contents; data options that were added or removed are reported as changed options."""
    for place, new in now.items():
        old = before.get(place, new)
        if old["sha256"] == new["sha256"]:
            continue
        sizes = [f"{entry['files']:,} files of {entry['bytes']:,} bytes" for entry in (old, new)]
        change = "contents differ" if sizes[0] == sizes[1] else f"{sizes[0]} -> {sizes[1]}"
        yield f"the data of {place} changed ({new['first']}): {change}"


def data_record(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return number, bytes and hash of the files that each path option of a data component names, by place."""
    found = {}
    for path, spec in components_in(experiment):
        names = [name for name, info in type(spec).model_fields.items() if path_mark(info)]
        for name in names if spec.kind == "data" else ():
            if files := sorted(_files(getattr(spec, name))):
                found[dotted((*path, name))] = _hash_files(files)
    return found


def _files(option: str | Path | Sequence[str | Path] | None) -> Iterator[Path]:
    """Yield the files that an option names by path, by folder, or by pattern; hidden ones only if zarr wrote them."""
    options: Sequence[str | Path] = [option] if isinstance(option, str | Path) else option or ()
    for value in (option for option in options if option):
        with suppress(
            ValueError, RuntimeError
        ):  # not a valid pattern; the component that reads it says so
            path = Path(value).expanduser()
            for match in (
                [path]
                if path.exists()
                else Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            ):
                if match.is_file():
                    yield match
                for below in match.rglob("*"):
                    names = set(below.relative_to(match).parts) - ZARR_FILES
                    if below.is_file() and not any(name.startswith(".") for name in names):
                        yield below


def _hash_files(files: Sequence[Path]) -> dict[str, Any]:
    """Return the fingerprint of files. Their folder is not part of it, so that data may be moved."""
    sizes = [path.stat().st_size for path in files]
    total = sum(sizes)
    digest = hashlib.sha256()
    step = 1 if total <= FULL_HASH_LIMIT else total // BLOCKS
    before = 0
    for path, size in zip(files, sizes, strict=True):
        digest.update(f"{path.name if len(files) > 1 else ''} {size}\n".encode())
        if offsets := range(-before % step, size, step):  # files without a block are not opened
            with path.open("rb") as file:
                if step == 1:
                    digest.update(file.read())
                for offset in offsets if step > 1 else ():
                    file.seek(offset)
                    digest.update(file.read(BLOCK))
        before += size
    return {
        "first": files[0].name,
        "files": len(files),
        "bytes": total,
        "sha256": digest.hexdigest(),
    }
