"""The checksum of Castagnoli, CRC-32C (RFC 3720), which zarr 3 puts behind chunks and behind the index of a shard.

A checksum is linear: those of pieces of one length may be computed side by side, a byte of each at a time, and joined
by what so many zero bytes do to a state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import UInt32

__all__ = ["crc32c"]

ALL: Final = 0xFFFFFFFF
SIDE_BY_SIDE: Final = 1 << 12
"""Bytes from which on the work is done in pieces."""


def _table() -> UInt32[np.ndarray, " 256"]:
    found = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        found = ((found >> 1) ^ (found & 1) * 0x82F63B78).astype(np.uint32)
    return found


TABLE: Final = _table()
"""What each byte does to a state."""
STEPS: Final[list[int]] = TABLE.tolist()


def crc32c(content: bytes) -> int:
    """Return the checksum of some bytes."""
    state, rest = ALL, content
    if len(content) >= SIDE_BY_SIDE:
        length = int(len(content) ** 0.5)
        pieces = np.frombuffer(content, np.uint8, length * (len(content) // length)).reshape(-1, length)
        states = np.zeros(len(pieces), np.uint32)
        for column in np.ascontiguousarray(pieces.T):
            states = TABLE[(states ^ column) & 0xFF] ^ (states >> 8)
        zeros = _zeros(length)
        for piece in states.tolist():
            state = (
                zeros[0][state & 255] ^ zeros[1][state >> 8 & 255] ^ zeros[2][state >> 16 & 255] ^ zeros[3][state >> 24]
            )
            state ^= piece
        rest = content[pieces.size :]
    for byte in rest:
        state = STEPS[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ ALL


def _zeros(length: int) -> list[list[int]]:
    """Return what `length` zero bytes make of each value of each byte of a state."""
    states = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    for _ in range(length):
        states = TABLE[states & 0xFF] ^ (states >> 8)
    found: list[list[int]] = states.tolist()
    return found
