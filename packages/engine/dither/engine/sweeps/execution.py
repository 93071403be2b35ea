"""Points as jobs of a cluster: SLURM through submitit, or submitit's own local and debug executors.

A job is one attempt. Before a time limit, or where another job takes its place, the cluster sends a signal: the run
writes a checkpoint and the job ends, as one that is not done. Nothing submits it again but `dither sweep --resume`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rich.console import Console

from dither.registry.config.errors import Problem, Refused
from dither.registry.config.layers import Layer

from ..files.resource_errors import shortage
from ..reports.write import write_summary
from ..runs.progress import say
from ..runs.signals import STOPPED
from .directory import UNFINISHED, SweepDirectory
from .point_process import EXHAUSTED, TRUSTED, run_job
from .scheduler import FAILED, PointSource, run_points
from .summary import rows_of, show_rows

__all__ = ["Executor", "Settings", "check_executor", "submit_points"]

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


@dataclass(frozen=True)
class Settings:
    """How points are run.

    Attributes:
        jobs: Runs at a time.
        keep_going: Whether the others go on when a point fails.
        executor: processes, or one of submitit's: slurm, local, debug.
        options: `key=value` for submitit.
        select: Plugins as after -p.
        dry_run: Only check and name the points.
    """

    jobs: int = 1
    keep_going: bool = True
    executor: str = "processes"
    options: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    dry_run: bool = False


def run_sweep(
    sweep: SweepDirectory, source: PointSource, settings: Settings, console: Console, *, fresh: bool = False
) -> int:
    """Run the points of a source, and sum up; those of a fresh sweep hold copies of the plugin files that ran here."""
    say(console, str(sweep.path))
    select = (*settings.select, *((TRUSTED,) if fresh else ()))
    if settings.executor != "processes":
        for job in submit_points(sweep, settings.executor, select, _options(settings), settings.jobs):
            say(console, f"submitted job {job.job_id}")
        if settings.executor != "debug":
            say(console, f"dither sweep status {sweep.path}")
            return 0
        return _summarize(sweep, source, 0, console)
    try:
        code = run_points(source, settings.jobs, console, select, settings.keep_going)
    except OSError as error:
        lacking = shortage(error)
        if lacking is None:
            raise
        say(console, f"stopped: {lacking}", "red")
        code = EXHAUSTED
    return _summarize(sweep, source, code, console)


def _summarize(sweep: SweepDirectory, source: PointSource, code: int, console: Console) -> int:
    """Show how all points stand, whoever has run them, and what can be done; return the exit code."""
    try:
        rows = write_summary(sweep)
    except (OSError, Refused) as error:  # which must not hide how the points ended
        rows = rows_of(sweep)
        say(console, f"the summary is not written: {error}", "yellow")
    show_rows(console, rows)
    if outcome := source.outcome():
        say(console, outcome)
    return _print_next_steps(sweep, code, console)


def _print_next_steps(sweep: SweepDirectory, code: int, console: Console) -> int:
    """Say what can be done about points that are not done; return the exit code."""
    every = [point.status() for point in sweep.folders()]
    states = {status["state"] for status in every}
    others = {"running"} if sweep.facts.get("search") else set()  # searches share the trials out among processes
    code = code or (FAILED if states & {"failed", "lost"} else STOPPED if states & set(UNFINISHED) - others else 0)
    running = sum(status["state"] == "running" for status in every)
    if running:
        say(console, f"another process still works on {running} of them: dither sweep status {sweep.path}")
    short = any(status["state"] == "failed" and status.get("exit_code") == EXHAUSTED for status in every)
    if short or code == EXHAUSTED:
        say(console, f"there was too little space or memory for {sweep.path}", "red")
    again = states & {"waiting", "stopped", "lost"} or short or ("failed" in states and not sweep.facts.get("search"))
    if again or code in (STOPPED, EXHAUSTED):
        first = "make room, then " if short or code == EXHAUSTED else ""
        say(console, f"{first}go on with what is unfinished: dither sweep --resume {sweep.path}")
    return code


def _options(settings: Settings) -> dict[str, Any]:
    """Return what submitit is told.

    Raises:
        Refused: One is no `key=value`.
    """
    try:
        return {key: value for option in settings.options for key, value in Layer.change(option).tree.items()}
    except Refused as refused:
        raise Refused(str(refused.problems[0].message).replace("--set", "--job")) from None
