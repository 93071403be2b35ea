"""The checksum of Castagnoli, CRC-32C (RFC 3720), which zarr 3 puts behind chunks and behind the index of a shard.

A checksum is linear: those of pieces of one length may be computed side by side, a byte of each at a time, and joined
by what so many zero bytes do to a state.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from jaxtyping import UInt32

from dither.registry.config.errors import Problem, Refused

__all__ = ["OURS", "DamagedError", "checked", "crc32c", "lacking", "pack", "unpack"]

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


class DamagedError(ValueError):
    """A chunk cannot be unpacked; says why."""


WINDOW: Final = 1 << 28
"""Bytes that lzma may take to look back at, which a chunk chooses."""


def _stream(make: Callable[[], Any]) -> Callable[[bytes, int], bytes]:
    """Unpack what one of the library's incremental readers reads; several packed pieces in a row count as one."""

    def unpack(content: bytes, most: int) -> bytes:
        parts, room = [], most
        while content:
            reader = make()
            part = reader.decompress(content, room + 1)
            room -= len(part)
            if room < 0:
                raise DamagedError(f"it holds more than the {most:,} bytes that it should")
            if not reader.eof:
                raise DamagedError("it is cut short")
            parts.append(part)
            content = reader.unused_data
        return b"".join(parts)

    return unpack


OURS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "zlib": _stream(zlib.decompressobj),
    "gzip": _stream(lambda: zlib.decompressobj(wbits=31)),
    "bz2": _stream(bz2.BZ2Decompressor),
    "lzma": _stream(lambda: lzma.LZMADecompressor(memlimit=WINDOW)),
    "crc32c": lambda content, most: checked(content),
}
"""Packings that need no other package: name -> (content, largest result) -> what was packed."""

THEIRS: Final = ("blosc", "zstd", "lz4")


def unpack(name: str, content: bytes, most: int) -> bytes:
    """Undo one packing.

    Args:
        name: Its name, as zarr has it.
        content: The packed bytes.
        most: Bytes that the result may have.

    Raises:
        DamagedError: The content is not what the name says, is cut short, or holds more than `most` bytes.
        Refused: The packing is not known, or needs a package that is not installed.
    """
    name = name.removeprefix("numcodecs.")
    if problem := lacking(name):
        raise Refused(problem)
    try:
        return OURS[name](content, most) if name in OURS else _with_numcodecs(name, content, most)
    except (zlib.error, OSError, EOFError, lzma.LZMAError, RuntimeError, struct.error) as error:
        raise DamagedError(f"it is damaged or cut short, or not packed with {name} ({error})") from None


def lacking(name: str) -> Problem | None:
    """Say why a packing cannot be undone: nobody knows it, or its package is not installed. None where it can be."""
    name = name.removeprefix("numcodecs.")
    if name in OURS:
        return None
    if name not in THEIRS:
        return Problem(f'its chunks are packed with "{name[:40]}"; known are {", ".join((*OURS, *THEIRS))}')
    try:
        import numcodecs  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        fix = 'install the extra "zarr" of dither-tasks, which brings numcodecs'
        return Problem(f"its chunks are packed with {name}, which needs numcodecs", help=fix)
    return None


def _with_numcodecs(name: str, content: bytes, most: int) -> bytes:
    from numcodecs import LZ4, Blosc, Zstd  # type: ignore[import-not-found,unused-ignore]

    said = _claimed(name, content)
    if said is not None and said > most:
        raise DamagedError(f"it claims to hold {said:,} bytes, more than the {most:,} that it should")
    codec: Any = {"blosc": Blosc, "zstd": Zstd, "lz4": LZ4}[name]()
    try:
        return bytes(codec.decode(content))
    except (ValueError, TypeError, MemoryError) as error:
        raise DamagedError(f"it is damaged or cut short, or not packed with {name} ({error})") from None


def _claimed(name: str, content: bytes) -> int | None:
    """Return how many bytes a packed chunk says that it holds; None where its head does not say."""
    if name == "blosc":
        if len(content) < 16 or struct.unpack_from("<I", content, 12)[0] != len(content):
            raise DamagedError("it is cut short")
        return int(struct.unpack_from("<I", content, 4)[0])
    if name == "lz4":
        return int(struct.unpack_from("<I", content)[0])
    if len(content) < 6 or content[:4] != b"\x28\xb5\x2f\xfd":
        raise DamagedError("it does not begin as zstd does")
    kind, dictionary = content[4] >> 6, (0, 1, 2, 4)[content[4] & 3]
    single = content[4] >> 5 & 1
    size = (single, 2, 4, 8)[kind]
    if not size:
        return None
    field = content[5 + (not single) + dictionary :][:size]
    if len(field) < size:
        raise DamagedError("it is cut short")
    return int.from_bytes(field, "little") + 256 * (size == 2)


def checked(content: bytes) -> bytes:
    """Return what stands before a checksum.

    Raises:
        DamagedError: The checksum is another.
    """
    if len(content) < 4:
        raise DamagedError("it is cut short")
    body, said = content[:-4], int.from_bytes(content[-4:], "little")
    if crc32c(body) != said:
        raise DamagedError("its checksum is wrong")
    return body


def pack(content: bytes, name: str) -> bytes:
    """Pack bytes with zlib or gzip, the same bytes each time."""
    if name == "zlib":
        return zlib.compress(content, 1)
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(content) + packer.flush()
