"""Rejected rows of a source, with reasons: counted, written to a file, and a few shown."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MAX_SHOWN", "REJECTED", "Rejected", "RejectedRows"]

REJECTED = "rejected.jsonl"
MAX_SHOWN = 3
"""Rows shown for each reason."""


@dataclass(frozen=True)
class Rejected:
    """A row, document or file that was not taken; `sort` is the reason as one word."""

    place: str
    sort: str
    message: str

    def __str__(self) -> str:
        if self.message.startswith(self.place):
            return self.message
        return f"{self.place}: {self.message}"


class RejectedRows:
    """Collects rejected rows: the first of each reason in memory, all in a temporary file."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._first: dict[str, list[Rejected]] = {}
        # On disk, as millions of rows may be rejected.
        # backslashreplace: names of files may hold bytes that are not UTF-8.
        self._file = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="backslashreplace"
        )

    def __enter__(self) -> RejectedRows:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, row: Rejected) -> None:
        self.counts[row.sort] += 1
        first = self._first.setdefault(row.sort, [])
        if len(first) < MAX_SHOWN:
            first.append(row)
        line = {"place": row.place, "sort": row.sort, "message": row.message}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def load(self, path: Path) -> None:
        """Add the rows of a file that `save` wrote."""
        with path.open(encoding="utf-8") as file:
            for line in file:
                self.add(Rejected(**json.loads(line)))

    def save(self, path: Path) -> None:
        """Write all rows to a file, one JSON object per line."""
        self._file.seek(0)
        with path.open("w", encoding="utf-8") as file:
            shutil.copyfileobj(self._file, file)

    def lines(
        self, title: str = "rejected", sorts: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """Yield a report: the total, then each reason with its number and first rows."""
        if not self.counts:
            return
        descriptions = sorts or {}
        yield f"{len(self):,} {title}:"
        for sort, count in self.counts.most_common():
            yield f"  {count:,} {descriptions.get(sort, sort)}"
            yield from (f"    {row}" for row in self._first[sort])
            if count > MAX_SHOWN:
                yield f"    ... and {count - MAX_SHOWN:,} more"
