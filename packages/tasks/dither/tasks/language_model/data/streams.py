"""The ids of a split as one stream, and windows of it.

Letters: N ids, D documents, W windows, B batch, L length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64, Integer

__all__ = ["Documents", "Joined", "TokenStream", "Windows"]


class Joined:
    """Several arrays read as one, by slices, which are copies."""

    def __init__(self, arrays: Sequence[Integer[np.ndarray, " n"]]) -> None:
        self.arrays = tuple(arrays)
        self.edges: Int64[np.ndarray, " n"] = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, part: slice) -> Integer[np.ndarray, " n"]:
        """Return the ids of a slice of step 1."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"slices must have step 1, not {step}")
        first, last = np.searchsorted(self.edges, (start, stop), "right") - 1
        parts = [
            array[max(start - edge, 0) : max(stop - edge, 0)]
            for array, edge in zip(self.arrays[first : last + 1], self.edges[first:].tolist(), strict=False)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([self.arrays[0][:0], *parts])


@dataclass(frozen=True)
class TokenStream:
    """The ids of a split.

    Attributes:
        arrays: The ids, in one or several arrays.
        starts: Offset of each document, ascending.
        gap: Ids of the separator between two documents; an end-of-text id belongs to its document.
    """

    arrays: tuple[Integer[np.ndarray, " n"], ...]
    starts: Int64[np.ndarray, " D"]
    gap: int = 0

    @property
    def ids(self) -> Integer[np.ndarray, " N"] | Joined:
        """The ids as one sequence."""
        return self.arrays[0] if len(self.arrays) == 1 else Joined(self.arrays)

    def stops(self) -> Int64[np.ndarray, " D"]:
        """Offset after each document."""
        return np.append(self.starts[1:] - self.gap, len(self.ids))[: len(self.starts)]


Documents = Literal["stream", "separate", "ended"]


class Windows:
    """Windows of equal length over a stream, by number.

    Args:
        stream: The ids.
        length: Ids per window L.
        documents: "stream": consecutive windows; only the last one may be shorter. "separate": each document begins a
            window; long ones continue in further windows, and the rest of the last one is padding. "ended": the same,
            but the rest counts as valid.
        pad: The padding id.
    """

    def __init__(self, stream: TokenStream, length: int, documents: Documents = "stream", pad: int = 0) -> None:
        self.length, self.pad = length, pad
        self._ids = stream.ids
        self._ended = documents == "ended"
        self._table = None if documents == "stream" else _windows_of_documents(stream, length)
        self._count = -(-len(self._ids) // length) if self._table is None else len(self._table[0])

    def __len__(self) -> int:
        return self._count

    def spans(self, rows: Int64[np.ndarray, " B"]) -> tuple[Int64[np.ndarray, " B"], Int64[np.ndarray, " B"]]:
        """Return the offsets of windows, and how many ids they hold."""
        if self._table is not None:
            return self._table[0][rows], self._table[1][rows]
        starts = rows * self.length
        return starts, np.minimum(self.length, len(self._ids) - starts)

    def take(self, rows: Sequence[int]) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Return the ids of windows, and which of them are not padding.

        Raises:
            IndexError: A number is out of range.
        """
        numbers = np.asarray(rows, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"windows are numbered 0..{len(self) - 1}, not {numbers.tolist()}")
        starts, sizes = self.spans(numbers)
        x0 = np.full((len(numbers), self.length), self.pad, np.int64)
        for row, start, size in zip(x0, starts.tolist(), sizes.tolist(), strict=True):
            row[:size] = self._ids[start : start + size]
        valid = np.arange(self.length) < sizes[:, None]
        return x0, np.ones_like(valid) if self._ended else valid


def _windows_of_documents(stream: TokenStream, length: int) -> tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]:
    """Return the offset of each window, and how many ids it holds."""
    sizes = stream.stops() - stream.starts
    windows = -(-sizes // length)
    first = np.repeat(np.cumsum(windows) - windows, windows)
    into = (np.arange(len(first)) - first) * length
    return np.repeat(stream.starts, windows) + into, np.minimum(length, np.repeat(sizes, windows) - into)
