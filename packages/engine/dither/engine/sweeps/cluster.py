"""Submit points as jobs through submitit: SLURM, or its own local and debug executors.

A job is one attempt. Before its time limit or on preemption the cluster sends a signal: the run writes a checkpoint and
the job ends as failed. `dither sweep --resume` submits it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dither.registry.config.errors import Problem, Refused

from .directory import UNFINISHED, SweepDirectory
from .point_process import run_job

__all__ = ["check_executor", "submit_points"]


def check_executor(executor: str, options: Mapping[str, Any]) -> None:
    """Check that jobs can be submitted, before anything is written; arguments as for `submit_points`.

    Raises:
        Refused: submitit is missing, there is no such cluster, or submitit rejects an option.
    """
    limit = options.get("timeout_min", 1)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise Refused(f"--job timeout_min: expected a whole number of minutes >= 1, got {limit!r}", code="out-of-range")
    with TemporaryDirectory() as folder:
        _executor(Path(folder), executor, options)


def submit_points(
    sweep: SweepDirectory,
    executor: str,
    arguments: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
) -> list[Any]:
    """Submit every unfinished point that no process is running; return the jobs, which outlive this process.

    Args:
        sweep: The sweep.
        executor: slurm, local, or debug, which runs the points in this process, one after the other.
        arguments: Passed to each point after its folder.
        options: Parameters of submitit, such as slurm_partition or timeout_min.
        jobs: Number of simultaneous jobs (SLURM only).

    Raises:
        Refused: As `check_executor`.
    """
    states = set(UNFINISHED) - {"running"}
    points = [point for point in sweep.folders() if point.status()["state"] in states]
    limit = {"slurm_array_parallelism": jobs} if jobs and executor == "slurm" else {}
    pool = _executor(sweep.path / "jobs", executor, {"name": str(sweep.facts["name"]), **limit, **(options or {})})
    if not points:
        return []
    try:
        with pool.batch():
            submitted = [pool.submit(run_job, str(point.path.resolve()), list(arguments)) for point in points]
    except (RuntimeError, OSError) as error:
        raise Refused(f"submitit cannot submit to {executor}: {error}") from None
    for point, job in zip(points, submitted, strict=True) if executor == "debug" else ():
        job.exception()  # runs the job; the result is in status.json
        if point.status()["state"] == "stopped":
            break
    return submitted


def _executor(folder: Path, executor: str, options: Mapping[str, Any]) -> Any:
    try:
        import submitit
    except ImportError:
        hint = "python -m pip install 'dither-engine[slurm]'"
        raise Refused(Problem("submitit is not installed", help=hint, code="missing-dependency")) from None
    try:
        pool = submitit.AutoExecutor(folder=folder, cluster=executor)
        pool.update_parameters(**options)
        return pool
    except (RuntimeError, NameError, TypeError, ValueError, OSError, AssertionError) as error:
        raise Refused(f"submitit cannot submit to {executor}: {error}") from None
