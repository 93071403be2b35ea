"""What losses take for one sample, in closed form. No torch here."""

from __future__ import annotations

from dither.registry.flow.spaces import Space, TokenSpace
from dither.registry.kinds import ProcessFacts
from dither.registry.kinds.costs import Cost

__all__ = ["CPU_TILE", "cost_in_columns", "cost_in_rows", "cost_read", "table_size"]

CPU_TILE = 2**22
"""Numbers in a tile of a CPU: 16 MiB of float32, past which products gain nothing."""


def table_size(space: Space) -> int:
    """Numbers that a model gives for one sample."""
    return space.length * (space.vocab if isinstance(space, TokenSpace) else space.width)


def cost_in_columns(process: ProcessFacts, *, half: bool) -> Cost:
    """A fused loss of tiles that are cut along the ids, `half` with a copy of each in bfloat16."""
    return _tiles(process, 1 + half * 0.5)


def cost_in_rows(process: ProcessFacts, *, half: bool) -> Cost:
    """A fused loss of tiles of whole rows, twice as large; `half` puts them together from tiles as above."""
    return _tiles(process, 2 + half * 1.5)


def cost_read(process: ProcessFacts, *, half: bool) -> Cost:
    """A fused loss of tiles of whole rows that a process reads, and autograd goes back through."""
    return _tiles(process, 20 + half * 1.5, 10)


def _tiles(process: ProcessFacts, tiles: float, tables: float = 1) -> Cost:
    """So many tiles at once, and never more than so many tables of all ids."""
    return Cost(tiled=int(max(tables, 1) * table_size(process.space)), tile=int(tiles * CPU_TILE))
