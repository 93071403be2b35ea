"""Seals: a file holds the sha256 of its own contents, so that a change that nobody meant is found.

JSON tables hold it under the key "sha256", TOML files in their last line, which is a comment. A file that was written
before there were seals has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dither.registry.files.atomic import sha256_of

from .metrics_file import as_json

__all__ = [
    "FORMAT",
    "KEY",
    "MANIFEST",
    "checksum_differs",
    "text_checksum_differs",
    "text_with_checksum",
    "verify",
    "with_checksum",
]

KEY = "sha256"
"""Where a JSON table holds its seal."""
LINE = "# sha256 of the lines above: "


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table as JSON gives it back, with its seal."""
    plain = json.loads(as_json(values))
    plain.pop(KEY, None)
    return {**plain, KEY: _table_hash(plain)}


def checksum_differs(values: Mapping[str, Any]) -> bool:
    """Tell whether a table is not what was sealed; one without a seal is taken as it is."""
    return KEY in values and values[KEY] != _table_hash(values)


def text_with_checksum(text: str) -> str:
    """Return a TOML text with its seal."""
    return f"{text}{LINE}{_hash(text)}\n"


def text_checksum_differs(text: str) -> bool | None:
    """Tell whether a TOML text is not what was sealed; None where it has no seal."""
    above, line, said = text.rpartition(LINE)
    if not line:
        return None
    return said != _hash(above) + "\n"


def _table_hash(values: Mapping[str, Any]) -> str:
    return _hash(json.dumps({key: value for key, value in values.items() if key != KEY}, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


FORMAT = 1
"""Of the folders that this version writes and reads."""
MANIFEST = "MANIFEST.json"
"""Lists the files of a folder with size and sha256."""
NEEDED = frozenset({"model.safetensors", "optimizer.safetensors", "state.json"})
"""What a checkpoint cannot do without; each may be a folder of pieces."""
MUCH = 2**24
"""Bytes from which on files are read beside each other: their sha256 takes longer than reading, and a core each."""
READERS = 4
"""Files that are read at once then."""


def verify(path: Path, needed: Collection[str] = NEEDED) -> str | None:
    """Return why a checkpoint cannot be used, or None if every file is as it was written, those `needed` among them."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"{MANIFEST} has the format {manifest['format']}, this version reads {FORMAT}"
        if checksum_differs(manifest) or not manifest.keys() <= {"format", "step", "files", "data", "space", KEY}:
            return f"{MANIFEST} is not what was written: its sha256 differs"
        files = {str(name): (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
        listed = {*files, *(f"{name.partition('/')[0]}.safetensors" for name in files if "/" in name)}
        there = {
            f"{part}/{file.name}" for part in ("model", "average", "optimizer") for file in (path / part).glob("*")
        }
        reasons = [
            f"{name} is not listed in {MANIFEST}" for name in sorted((set(needed) - listed) | (there - set(files)))
        ]
        reasons += _changes(path, files)
    except OSError as error:
        return f"{Path(error.filename or MANIFEST).name} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read: {type(error).__name__}"
    return "; ".join(reasons) or None


def _changes(path: Path, files: dict[str, tuple[int, str]]) -> list[str]:
    """Return what is wrong with the files, in their order."""

    def changed(name: str) -> str | None:
        return _changed(path / name, *files[name])

    if sum(size for size, _ in files.values()) < MUCH:
        return list(filter(None, map(changed, files)))
    with ThreadPoolExecutor(READERS) as readers:
        return list(filter(None, readers.map(changed, files)))


def _changed(path: Path, size: int, sha256: str) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != size:
        return f"{path.name} has {path.stat().st_size:,} bytes, it was written with {size:,}"
    return None if sha256_of(path) == sha256 else f"{path.name} is not what was written: its sha256 differs"
