"""Facts of a source of sequences, known before it is read. Read without torch and numpy."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["HasFacts", "SequenceFacts"]


class SequenceFacts(NamedTuple):
    """Bases per sequence, and the names of the cell types."""

    length: int
    cells: tuple[str, ...]


@runtime_checkable
class HasFacts(Protocol):
    """A source of sequences whose facts are known before it is read."""

    def facts(self) -> SequenceFacts:
        """Return length and cell types."""
        ...
