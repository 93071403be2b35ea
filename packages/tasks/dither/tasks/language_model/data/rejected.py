"""What a conversion leaves out, and why: counted, written down in full, the first places shown."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .documents import Fault

__all__ = ["LEFT_OUT", "Rejected"]

LEFT_OUT = "left-out.jsonl"
"""Name of the file that lists every place."""

SHOWN = 3
"""Places that are named for each fault."""

WORDS = {
    "unreadable": "cannot be read",
    "empty": "without text",
    "binary": "binary, not text",
    "encoding": "not UTF-8",
    "json": "not JSON",
    "key": "without the text that was asked for",
    "duplicate": "the same as others",
}
"""What each sort of fault is called."""


class Rejected:
    """Takes down faults: in memory only the first of each sort, all of them in a temporary file while it is open."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._all = tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        self._first: dict[str, list[Fault]] = {}

    def __enter__(self) -> Rejected:
        return self

    def __exit__(self, *raised: object) -> None:
        self._all.close()

    def add(self, fault: Fault) -> None:
        """Take down one."""
        self.counts[fault.sort] += 1
        some = self._first.setdefault(fault.sort, [])
        if len(some) < SHOWN:
            some.append(fault)
        said = {"place": fault.place, "sort": fault.sort, "why": fault.message}
        self._all.write(json.dumps(said, ensure_ascii=False) + "\n")

    def save(self, folder: Path) -> None:
        """Write all of them into a folder."""
        self._all.seek(0)
        with (folder / LEFT_OUT).open("w", encoding="utf-8") as file:
            shutil.copyfileobj(self._all, file)

    def lines(self) -> Iterator[str]:
        """Yield how many were left out, of which sorts, and the first of each."""
        if not self.counts:
            return
        yield f"{self.counts.total():,} left out:"
        for sort, count in self.counts.most_common():
            yield f"  {count:,} {WORDS.get(sort, sort)}"
            for fault in self._first[sort]:
                whole = fault.message.startswith(fault.place)  # what is said of a file begins with its path
                yield f"    {fault.message}" if whole else f"    {fault.place} {fault.message}"
            if count > SHOWN:
                yield f"    ... and {count - SHOWN:,} more"
