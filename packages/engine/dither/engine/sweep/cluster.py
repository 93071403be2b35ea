"""Points as jobs of a cluster: SLURM through submitit, or submitit's own local and debug executors.

A job is one attempt. Before a time limit, or where another job takes its place, the cluster sends a signal: the run
writes a checkpoint and the job ends, as one that is not done. Nothing submits it again but `dither sweep --resume`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from dither.registry.problems import Problem, Refused

from .directory import UNFINISHED, SweepDirectory
from .point import run_job

__all__ = ["Executor", "check_executor", "submit_points"]

Executor = Literal["processes", "slurm", "local", "debug"]


def check_executor(executor: str, options: Mapping[str, Any]) -> None:
    """See to it that jobs can be submitted so, before anything is made; arguments as for `submit_points`.

    Raises:
        Refused: submitit is not installed, there is no such cluster here, or it refuses an option.
    """
    limit = options.get("timeout_min", 1)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise Refused(f"--job timeout_min: expected whole minutes, at least 1, got {limit!r}")
    with TemporaryDirectory() as folder:
        _executor(Path(folder), executor, options)


def submit_points(
    sweep: SweepDirectory,
    executor: str,
    select: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
) -> list[Any]:
    """Submit every unfinished point that nobody works on as a job, and return the jobs; they outlive this process.

    Args:
        sweep: The sweep.
        executor: slurm; or local or debug, to try it out without a cluster. debug runs them here, one after the other.
        select: Plugins as after -p; and `TRUSTED`.
        options: As submitit has them, such as slurm_partition or timeout_min.
        jobs: How many run at a time, where the cluster can hold them back.

    Raises:
        Refused: submitit is not installed, there is no such cluster here, or it refuses an option.
    """
    waiting = set(UNFINISHED) - {"running"}
    points = [point for point in sweep.folders() if point.status()["state"] in waiting]
    limit = {"slurm_array_parallelism": jobs} if jobs and executor == "slurm" else {}
    named = {"name": str(sweep.facts["name"]), **limit, **(options or {})}
    work = _executor(sweep.path / "jobs", executor, named)
    if not points:
        return []
    try:
        with work.batch():
            submitted = [work.submit(run_job, str(point.path.resolve()), list(select)) for point in points]
    except (RuntimeError, OSError) as error:
        raise Refused(f"submitit cannot submit to {executor}: {error}") from None
    for point, job in zip(points, submitted, strict=True) if executor == "debug" else ():
        job.exception()  # it runs when it is waited for; how it ended stands in the folder of its point
        if point.status()["state"] == "stopped":
            break
    return submitted


def _executor(folder: Path, executor: str, options: Mapping[str, Any]) -> Any:
    try:
        import submitit
    except ImportError:
        raise Refused(_missing("submitit", "slurm")) from None
    try:
        work = submitit.AutoExecutor(folder=folder, cluster=executor)
        work.update_parameters(**options)
        return work
    except (RuntimeError, NameError, TypeError, ValueError, OSError, AssertionError) as error:
        raise Refused(f"submitit cannot submit to {executor}: {error}") from None


def _missing(module: str, extra: str) -> Problem:
    return Problem(f"{module} is not installed", help=f"python -m pip install 'dither-engine[{extra}]'")
