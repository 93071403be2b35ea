"""Run the next point of a search in a job: `python -m dither.engine.sweeps.trial_process SWEEP`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..runs.progress import Screen
from .directory import SweepDirectory
from .executors import LocalProcesses
from .point_process import exit_code_of, parse_arguments, point_arguments
from .scheduler import Pool
from .search import Trials

__all__ = ["TRIAL_MODULE", "main"]

TRIAL_MODULE = "dither.engine.sweeps.trial_process"


def main(arguments: Sequence[str]) -> int:
    """Run one point, if a trial is left; return the exit code."""
    options = parse_arguments(arguments)
    select = options.select or ()

    def run_trial() -> int:
        (folder,) = options.folders
        console = Screen()
        sweep = SweepDirectory.open(folder)
        pool = Pool(
            Trials(sweep, console, select, shared=True),
            LocalProcesses(),
            console,
            ranks=options.ranks,
            arguments=point_arguments(select, options.ranks),
            limit=1,
        )
        return pool.run()

    return exit_code_of(run_trial)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
