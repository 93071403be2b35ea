"""Splits that a source of text was published with, by the names of its files and folders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .file_formats import COMPRESSED, record_format

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = ["SPLIT_NAMES", "splits_of_sources"]

SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
"""Words in names of files and folders that hold a split: those of the library `datasets`."""
SPLIT_FILES = ("", ".txt", ".text", ".raw", ".tokens")
"""Ends of names of plain text that may hold a split; `train.py` next to `test.py` does not."""


def splits_of_sources(sources: Sequence[str | Path]) -> list[Split | None]:
    """Return the published split of each source; None if it belongs to none.

    Files or folders next to each other hold splits if they are named after training and after
    another split, as in a DatasetDict, or `train.jsonl` and `test.jsonl`.
    """
    siblings: defaultdict[Path, set[Split]] = defaultdict(set)
    for source in sources:
        for folder, split in _named_splits(source):
            siblings[folder].add(split)

    splits: list[Split | None] = []
    for source in sources:
        found: Split | None = None
        # The outermost folder comes last and decides.
        for folder, split in _named_splits(source):
            if "train" in siblings[folder] and len(siblings[folder]) > 1:
                found = split
        splits.append(found)
    return splits


def _named_splits(source: str | Path) -> Iterator[tuple[Path, Split]]:
    """Yield the split that a file or a folder around it is named after, and where that is."""
    if isinstance(source, str):
        return
    # Not resolved: in a cache of the Hugging Face Hub files are links to names without meaning.
    file = source.absolute()
    for path in (file, *file.parents):
        plain = path == file and record_format(file) is None
        if plain and file.suffix.lower() not in (*SPLIT_FILES, *COMPRESSED):
            continue
        words = re.split(r"[-._ 0-9]+", path.name.lower())
        splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        if len(splits) == 1:
            yield path.parent, splits.pop()
