"""Seals: a file holds the sha256 of its own contents, so that a change that nobody meant is found.

JSON tables hold it under the key "sha256", TOML files in their last line, which is a comment. A file that was written
before there were seals has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .metrics_file import as_json

__all__ = ["KEY", "broken_table", "broken_text", "sealed_table", "sealed_text"]

KEY = "sha256"
"""Where a JSON table holds its seal."""
LINE = "# sha256 of the lines above: "


def sealed_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table as JSON gives it back, with its seal."""
    plain = json.loads(as_json(values))
    plain.pop(KEY, None)
    return {**plain, KEY: _table_hash(plain)}


def broken_table(values: Mapping[str, Any]) -> bool:
    """Tell whether a table is not what was sealed; one without a seal is taken as it is."""
    return KEY in values and values[KEY] != _table_hash(values)


def sealed_text(text: str) -> str:
    """Return a TOML text with its seal."""
    return f"{text}{LINE}{_hash(text)}\n"


def broken_text(text: str) -> bool | None:
    """Tell whether a TOML text is not what was sealed; None where it has no seal."""
    above, line, said = text.rpartition(LINE)
    if not line:
        return None
    return said != _hash(above) + "\n"


def _table_hash(values: Mapping[str, Any]) -> str:
    return _hash(json.dumps({key: value for key, value in values.items() if key != KEY}, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
