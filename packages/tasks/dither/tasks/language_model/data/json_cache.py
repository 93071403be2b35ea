"""JSON values cached on disk with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.files.atomic import atomic_write

__all__ = ["cached_json"]


def cached_json(path: Path, compute: Callable[[], Any]) -> Any:
    """Return the value of a cache file; compute and write it if the file is missing or damaged."""
    with suppress(OSError, ValueError, TypeError):
        sha256, value = json.loads(path.read_text("utf-8"))
        if sha256 == _sha256(value):
            return value
    value = compute()
    with suppress(OSError), atomic_write(path) as temporary:  # an unwritable cache only costs time
        temporary.write_text(json.dumps([_sha256(value), value]), "utf-8")
    return value


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
