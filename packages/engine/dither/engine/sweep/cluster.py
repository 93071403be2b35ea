"""Points as jobs of a cluster: SLURM through submitit, or submitit's own local and debug executors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dither.registry.problems import Problem, Refused

from .directory import UNFINISHED, SweepDirectory

__all__ = ["Executor", "submit_points"]

Executor = Literal["processes", "slurm", "local", "debug"]


def submit_points(
    sweep: SweepDirectory,
    executor: str,
    select: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
) -> list[Any]:
    """Submit every unfinished point as a job, and return the jobs; they outlive this process.

    Args:
        sweep: The sweep.
        executor: slurm; or local or debug, to try it out without a cluster.
        select: Plugins as after -p; and `TRUSTED`.
        options: As submitit has them, such as slurm_partition or timeout_min.
        jobs: How many run at a time, where the cluster can hold them back.

    Raises:
        Refused: submitit is not installed, there is no such cluster here, or it refuses an option.
    """
    try:
        import submitit
    except ImportError:
        raise Refused(_missing("submitit", "slurm")) from None
    points = [point for point in sweep.folders() if point.status()["state"] in UNFINISHED]
    try:
        work = submitit.AutoExecutor(folder=sweep.path / "jobs", cluster=executor)
        limit = {"slurm_array_parallelism": jobs} if jobs and executor == "slurm" else {}
        work.update_parameters(name=str(sweep.facts["name"]), **limit, **(options or {}))
        with work.batch():
            submitted = [work.submit(_command(point.path, select)) for point in points]
        for job in submitted if executor == "debug" else ():  # which runs a job only when it is waited for
            job.exception()  # how it ended stands in the folder of its point
        return submitted
    except (RuntimeError, NameError, TypeError, ValueError, OSError) as error:
        raise Refused(f"submitit cannot submit to {executor}: {error}") from None


def _command(folder: Path, select: Sequence[str]) -> Any:
    from submitit.helpers import CommandFunction

    command = [sys.executable, "-m", "dither.engine.sweep.point", "--output", str(folder.resolve()), *select]
    return CommandFunction(command, cwd=Path.cwd())


def _missing(module: str, extra: str) -> Problem:
    return Problem(f"{module} is not installed", help=f"python -m pip install 'dither-engine[{extra}]'")
