"""What the files that a run learns from held, so that it goes on with the same data or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import dotted
from dither.registry.spec.aliases import components_in

from .experiment import Experiment
from .paths import PATH_OPTIONS

__all__ = ["changed_data", "data_fingerprints"]

WHOLE = 1 << 26
"""Bytes up to which files are read whole; of more, so many blocks are, evenly spread."""
BLOCKS = 1024
BLOCK = 1 << 14
READ = frozenset({".zarray", ".zattrs", ".zgroup", ".zmetadata"})
"""Hidden files that belong to the data: those of a zarr store."""


def data_fingerprints(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return every option of a data part that names files: how many there are, their bytes, and a hash of them."""
    found = {}
    for place, part in components_in(experiment):
        for name in sorted(PATH_OPTIONS & set(type(part).model_fields)) if part.kind == "data" else ():
            if files := sorted(_files(getattr(part, name))):
                found[dotted((*place, name))] = _fingerprint_files(files)
    return found


def changed_data(before: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Say which data of a record is not what a run learned from before; what is new, or gone, is told elsewhere."""
    changes = []
    for place, now in record.items():
        then = before.get(place, now)
        if then["sha256"] == now["sha256"]:
            continue
        same = (then["files"], then["bytes"]) == (now["files"], now["bytes"])
        what = "with other contents" if same else f"now {_size(now)}, it was {_size(then)}"
        changes.append(f"the data that {place} names is not what it was: {now['first']}, {what}")
    return changes


def _size(entry: Mapping[str, Any]) -> str:
    return f"{entry['files']:,} files of {entry['bytes']:,} bytes"


def _files(named: str | Sequence[str] | None) -> Iterator[Path]:
    """Yield the files that a value of an option names: itself, what lies in it, what fits it as a pattern."""
    for value in filter(None, [named] if isinstance(named, str) else named or ()):
        with suppress(ValueError, RuntimeError):  # neither a name nor a pattern, which the part tells that reads it
            path = Path(value).expanduser()
            there = [path] if path.exists() else Path(path.anchor).glob(str(path.relative_to(path.anchor)))
            for one in there:
                yield from [one] if one.is_file() else _inside(one)


def _inside(folder: Path) -> Iterator[Path]:
    """Yield the files at any depth of a folder, but hidden ones: nobody learns from what a desktop leaves there."""
    for path in folder.rglob("*"):
        names = path.relative_to(folder).parts
        if not any(name.startswith(".") and name not in READ for name in names) and path.is_file():
            yield path


def _fingerprint_files(files: Sequence[Path]) -> dict[str, Any]:
    """Return what is kept of files; where they lie is not, so that they may be moved."""
    sizes = [path.stat().st_size for path in files]
    total, hashed = sum(sizes), hashlib.sha256()
    step = 1 if total <= WHOLE else total // BLOCKS
    before = 0
    for path, size in zip(files, sizes, strict=True):
        hashed.update(f"{path.name if len(files) > 1 else ''} {size}\n".encode())
        if places := range(-before % step, size, step):  # most of very many files have none, and are not opened
            with path.open("rb") as file:
                if step == 1:
                    hashed.update(file.read())
                for place in places if step > 1 else ():
                    file.seek(place)
                    hashed.update(file.read(BLOCK))
        before += size
    return {"first": files[0].name, "files": len(files), "bytes": total, "sha256": hashed.hexdigest()}
