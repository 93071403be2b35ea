"""Facts of a source of sequences, known before it is read. Read without torch and numpy."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SequenceFacts"]


class SequenceFacts(NamedTuple):
    """Bases per sequence, and the names of the cell types."""

    length: int
    cells: tuple[str, ...]
