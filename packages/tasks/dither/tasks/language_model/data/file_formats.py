"""Formats of files of text by their names."""

from __future__ import annotations

from pathlib import Path

__all__ = ["COMPRESSED", "record_format"]

COMPRESSED = {
    ".gz": (0, b"\x1f\x8b"),
    ".bz2": (4, b"1AY&SY"),
    ".xz": (0, b"\xfd7zXZ\x00"),
    ".zst": (0, b"\x28\xb5\x2f\xfd"),
}
"""Compressed files: the end of their name, and the bytes that begin one, with their offset."""
FORMATS = {
    ".jsonl": "lines",
    ".jsonlines": "lines",
    ".ndjson": "lines",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""Format of a file by the end of its name; every other file is plain text."""


def record_format(path: Path) -> str | None:
    """Return the format of a file of records, compressed or not; None for plain text."""
    name = path
    if name.suffix.lower() in COMPRESSED:
        name = name.with_suffix("")
    return FORMATS.get(name.suffix.lower())
