"""The ids of a split as one stream, in memory or mapped from one or several files, and windows of it.

Letters: N ids, D documents, W windows, B batch, L length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int64, Integer

__all__ = ["Documents", "Joined", "Stream", "Windows"]

Documents = Literal["stream", "separate", "ended"]
"""Whether windows run across the borders of documents or hold one document each, and whether the rest counts."""


class Joined:
    """Several arrays read as one. A slice is copied; the whole is never held."""

    def __init__(self, arrays: Sequence[Integer[np.ndarray, " n"]]) -> None:
        self.arrays = tuple(arrays)
        self.edges: Int64[np.ndarray, " n"] = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, part: slice) -> Integer[np.ndarray, " n"]:
        """Return the ids of a slice of step 1."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a slice of step 1 is wanted, not {step}")
        found = [
            array[max(start - edge, 0) : max(stop - edge, 0)]
            for array, edge in zip(self.arrays, self.edges.tolist(), strict=False)
        ]
        return np.concatenate([self.arrays[0][:0], *found])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Integer[np.ndarray, " N"]:
        """Return all ids in memory, for whoever insists."""
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)


@dataclass(frozen=True)
class Stream:
    """The ids of a split, and where its documents begin.

    Attributes:
        arrays: The ids, in one or several pieces.
        starts: Where each document begins, ascending.
        gap: Ids between two documents that belong to neither; an id that ends a document belongs to it.
    """

    arrays: tuple[Integer[np.ndarray, " n"], ...]
    starts: Int64[np.ndarray, " D"]
    gap: int = 0

    @property
    def ids(self) -> Integer[np.ndarray, " N"] | Joined:
        """The ids as one sequence."""
        return self.arrays[0] if len(self.arrays) == 1 else Joined(self.arrays)

    def stops(self) -> Int64[np.ndarray, " D"]:
        """Where each document ends."""
        return np.append(self.starts[1:] - self.gap, len(self.ids))[: len(self.starts)]


class Windows:
    """Windows of equal length over a stream, by number.

    Args:
        stream: Where the ids are.
        length: Ids per window L.
        documents: "stream": every L ids in turn, only the last window may be shorter. "separate": each document begins
            a window; a longer one goes on in further windows, and the rest of its last window is padding. "ended": the
            same, but the rest counts as the document's own.
        pad: The id in that rest.
    """

    def __init__(self, stream: Stream, length: int, documents: Documents = "stream", pad: int = 0) -> None:
        self.length, self.pad = length, pad
        # plain arrays over the mapped ones: the subclass would make every access slower
        self._arrays = [np.asarray(array) for array in stream.arrays]
        self._edges: Int64[np.ndarray, " n"] = np.cumsum([0, *map(len, self._arrays)])
        self._views = [
            np.lib.stride_tricks.sliding_window_view(array, length) if len(array) >= length else None
            for array in self._arrays
        ]
        self._ended = documents == "ended"
        self._table = None if documents == "stream" else _windows_of_documents(stream, length)
        self._count = -(-int(self._edges[-1]) // length) if self._table is None else len(self._table[0])

    def __len__(self) -> int:
        return self._count

    def spans(self, rows: Int64[np.ndarray, " B"]) -> tuple[Int64[np.ndarray, " B"], Int64[np.ndarray, " B"]]:
        """Return where windows begin, and how many ids they hold."""
        if self._table is not None:
            return self._table[0][rows], self._table[1][rows]
        starts = rows * self.length
        return starts, np.minimum(self.length, self._edges[-1] - starts)

    def take(self, rows: Sequence[int]) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Return the ids of windows, and which of them are no padding.

        Raises:
            IndexError: There is no window of that number.
        """
        numbers = np.asarray(rows, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"windows are numbered 0..{len(self) - 1}, asked for {numbers.tolist()}")
        starts, sizes = self.spans(numbers)
        ids = self._gather(starts)
        if numbers.size and sizes.min() == self.length:
            return ids, np.ones(ids.shape, bool)
        valid = np.arange(self.length) < sizes[:, None]
        ids[~valid] = self.pad
        return ids, np.ones_like(valid) if self._ended else valid

    def _gather(self, starts: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, "B L"]:
        """Copy L ids from each start on, across the borders of arrays; what lies behind the last id is anything."""
        found = np.empty((len(starts), self.length), np.int64)
        piece = np.searchsorted(self._edges[1:-1], starts, "right")
        inside = starts + self.length <= self._edges[piece + 1]
        for number in np.unique(piece[inside]).tolist():
            chosen = np.flatnonzero(inside & (piece == number))
            found[chosen] = self._views[number][starts[chosen] - self._edges[number]]
        if not inside.all():
            rest = np.flatnonzero(~inside)
            places = np.minimum(starts[rest, None] + np.arange(self.length), self._edges[-1] - 1)
            found[rest] = self._each(places)
        return found

    def _each(self, places: Int64[np.ndarray, "b L"]) -> Int64[np.ndarray, "b L"]:
        found = np.empty(places.shape, np.int64)
        piece = np.searchsorted(self._edges[1:-1], places, "right")
        for number in np.unique(piece).tolist():
            chosen = piece == number
            found[chosen] = self._arrays[number][places[chosen] - self._edges[number]]
        return found


def _windows_of_documents(stream: Stream, length: int) -> tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]:
    """Where the windows of each document begin and how many ids they hold."""
    sizes = stream.stops() - stream.starts
    windows = -(-sizes // length)
    first = np.repeat(np.cumsum(windows) - windows, windows)
    into = (np.arange(len(first)) - first) * length
    return np.repeat(stream.starts, windows) + into, np.minimum(length, np.repeat(sizes, windows) - into)
