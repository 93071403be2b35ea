"""The CSV tracker: metrics.csv of a run, for spreadsheets and pandas."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dither.registry.kinds import TrackerSpec

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Picture

__all__ = ["CSV", "CSVTracker"]


class CSV(TrackerSpec):
    """metrics.csv: one row per metric, with step, kind, name and value."""

    name: ClassVar[str] = "csv"

    def build(self) -> CSVTracker:
        return CSVTracker()


class CSVTracker:
    """Appends rows; a resumed run keeps those up to its checkpoint."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Open the file."""
        path = folder / "metrics.csv"
        kept = [["step", "kind", "name", "value"]]
        if step and path.is_file():
            kept = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        self._file = path.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerows(row for row in kept if not row[0].isdecimal() or int(row[0]) <= step)

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Write a row for each metric."""
        self._rows.writerows((step, kind, name, value) for name, value in metrics.items())
        self._file.flush()

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Write nothing."""

    def finish(self, error: BaseException | None = None) -> None:
        """Close the file."""
        self._file.close()
