"""Write the page of what is named: a run, several, or a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dither.registry.problems import Refused

from ..sweep.directory import MARK, PointFolder, SweepDirectory
from ..sweep.summary import rows_of
from .gather import gather
from .page import compare_page, run_page, write_page
from .sweeps import write_sweep_page

__all__ = ["write_report"]


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run or of a sweep, or the page that compares several runs; return where it is.

    Args:
        paths: Run directories. A sweep among others stands for the runs of its points, a point for its run.
        out: The file; by default report.html in the run or sweep, or comparison.html in the working directory.

    Raises:
        Refused: One is no run directory, or the page cannot be written.
    """
    named = list(dict.fromkeys(paths))
    if len(named) == 1 and (named[0] / MARK).is_file():
        sweep = SweepDirectory.open(named[0])
        return write_sweep_page(sweep, out or sweep.path / "report.html", rows_of(sweep))
    records = [gather(run) for run in dict.fromkeys(run for path in named for run in _runs(path))]
    if not records:
        raise Refused("no point of these sweeps has begun: there is no run to compare")
    one = len(records) == 1
    target = out or (records[0].path / "report.html" if one else Path("comparison.html"))
    return write_page(target, run_page(records[0]) if one else compare_page(records))


def _runs(path: Path) -> Iterator[Path]:
    if (path / MARK).is_file():
        for point in SweepDirectory.open(path).folders():
            run = point.run_directory()
            if run is not None:
                yield run
    else:
        begun = PointFolder(path, {}).run_directory() if (path / "point.lock").is_file() else None
        yield begun or path
