"""Facts of a source of sequences, known before it is read. Read without torch and numpy."""

from __future__ import annotations

from typing import NamedTuple

from dither.registry.contracts.spaces import Condition, Field, TokenSpace

__all__ = ["SequenceFacts"]


class SequenceFacts(NamedTuple):
    """Bases per sequence, the names of the cell types, and conditions that are numbers."""

    length: int
    cells: tuple[str, ...]
    numbers: tuple[Condition, ...] = ()

    def space(self) -> TokenSpace:
        """Return one field of four ids, "bases", the condition "cell" and those of numbers."""
        cell = Condition("cell", len(self.cells), self.cells)
        return TokenSpace((Field("bases", self.length, 4),), (cell, *self.numbers))
