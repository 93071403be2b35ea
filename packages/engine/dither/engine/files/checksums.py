"""Checksums inside JSON files, and the manifest of a folder.

JSON objects hold the sha256 of their other values under the key "sha256".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from dither.registry.files.atomic import sha256_of
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import is_file

from .damage import UNREADABLE, damage_of
from .metrics_file import as_json

__all__ = [
    "KEY",
    "MANIFEST",
    "checksum_differs",
    "verify",
    "with_checksum",
    "write_manifest",
]

KEY = "sha256"
"""Key of the checksum in a JSON object."""
FORMAT = 1
"""Version of the folder format."""
MANIFEST = "MANIFEST.json"
"""Lists size and sha256 of the other files of a folder."""
NEEDED = frozenset({"model.safetensors", "optimizer.safetensors", "state.json"})
"""Required files of a checkpoint; each may be a folder of shards."""


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as read back from JSON, with their checksum."""
    plain = json.loads(as_json(values))
    plain.pop(KEY, None)
    return {**plain, KEY: _table_hash(plain)}


def checksum_differs(values: Mapping[str, Any]) -> bool:
    """Return whether a JSON object does not match its checksum, or has none."""
    return values.get(KEY) != _table_hash(values)


def checkpoint_folders(folder: Path) -> list[tuple[int, Path]]:
    """Return steps and folders of the checkpoints in a folder, newest first."""
    found = []
    for path in folder.glob("step-*"):
        if match := re.fullmatch("step-([0-9]+)", path.name):
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def _table_hash(values: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in values.items() if key != KEY}
    # The order of keys is not content: a file that was formatted again is intact.
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, paths: Iterable[Path], **facts: Any) -> None:
    """Write the manifest of files of a folder."""
    entries = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in paths
    }
    manifest = with_checksum({"format": FORMAT, "files": entries, **facts})
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))


def verify(path: Path, needed: Collection[str] = NEEDED) -> str | None:
    """Return why a folder differs from its manifest or lacks a `needed` file; None if intact."""
    try:
        manifest = json.loads(read_text(path / MANIFEST))
        if manifest["format"] != FORMAT:
            return f"{MANIFEST} has format {manifest['format']}; this version reads format {FORMAT}"
        if checksum_differs(manifest) or not manifest.keys() <= {
            "format",
            "step",
            "files",
            "data",
            "space",
            "trained_length",
            KEY,
        }:
            return f"{MANIFEST} does not match its checksum"
        files = {
            str(name): (entry["size"], entry["sha256"])
            for name, entry in manifest["files"].items()
        }
        listed = {
            *files,
            *(f"{name.partition('/')[0]}.safetensors" for name in files if "/" in name),
        }
        shards = {
            f"{file.parent.name}/{file.name}" for file in path.glob("*/*.safetensors")
        }
        unlisted = sorted((set(needed) - listed) | (shards - set(files)))
        reasons = [f"{name} is not listed in {MANIFEST}" for name in unlisted]
        reasons += filter(
            None, (_changed(path / name, *entry) for name, entry in files.items())
        )
    except OSError as error:
        return f"{Path(error.filename or MANIFEST).name}: {damage_of(error).reason}"
    # A damaged manifest may be any JSON.
    except UNREADABLE as error:
        return f"{MANIFEST}: {damage_of(error).reason}"
    return "; ".join(reasons) or None


def _changed(path: Path, size: int, sha256: str) -> str | None:
    if not is_file(path):
        return f"{path.name} is missing"
    if path.stat().st_size != size:
        return f"{path.name} has {path.stat().st_size:,} bytes instead of {size:,}"
    if sha256_of(path) != sha256:
        return f"{path.name} does not match its checksum"
    return None
