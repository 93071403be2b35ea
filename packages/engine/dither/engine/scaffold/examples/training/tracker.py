"""A tracker: metrics as CSV files, one per kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither.registry import Spec, hookimpl
from dither.registry.kinds import TrackerSpec

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Picture, Tracker


class ExampleTracker(TrackerSpec):
    """Lines `step,name,value` in a file for each kind of metrics, such as csv/valid.csv."""

    name = "example-tracker"

    def build(self) -> Tracker:
        return CsvTracker()


class CsvTracker:
    """A `Tracker`; the engine calls it on rank 0 only."""

    def start(self, folder: Path, config: Mapping[str, Any], step: int = 0) -> None:
        """Make the folder; a resumed run appends."""
        self.folder = folder / "csv"
        self.folder.mkdir(exist_ok=True)

    def log(self, step: int, kind: str, metrics: Mapping[str, float]) -> None:
        """Append metrics."""
        with (self.folder / f"{kind}.csv").open("a", encoding="utf-8") as file:
            file.writelines(
                f"{step},{name},{value}\n" for name, value in metrics.items()
            )

    def log_pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        """Do nothing."""

    def finish(self, error: BaseException | None = None) -> None:
        """Do nothing: every file is closed after each line."""


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleTracker]
