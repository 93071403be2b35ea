"""Run a checked sweep with local processes or a cluster, and summarize it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rich.console import Console

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.config.layers import Layer

from ..files.resource_errors import shortage
from ..runs.progress import say
from ..runs.signals import STOPPED
from .directory import UNFINISHED, SweepDirectory
from .point_process import EXHAUSTED, TRUSTED
from .scheduler import FAILED, PointSource, run_points
from .summary import rows_of, show_rows, write_tables

__all__ = ["EXECUTORS", "Settings", "run_sweep"]

Executor = Literal["processes", "slurm", "local", "debug"]
EXECUTORS: tuple[str, ...] = get_args(Executor)
"""Names of executors."""
WritePage = Callable[[SweepDirectory, list[dict[str, Any]]], object]


@dataclass(frozen=True)
class Settings:
    """How to run the points.

    Attributes:
        jobs: Number of simultaneous runs.
        keep_going: Whether the others continue if a point fails.
        executor: processes, or an executor of submitit: slurm, local, debug.
        options: `key=value` for submitit.
        select: Plugins as after -p.
        dry_run: Only check and list the points.
        write_page: Writes the report page at the end, given the sweep and its rows.
    """

    jobs: int = 1
    keep_going: bool = True
    executor: str = "processes"
    options: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    dry_run: bool = False
    write_page: WritePage | None = None

    def check(self) -> None:
        """Check the executor and its options.

        Raises:
            Refused: One of them is invalid.
        """
        if self.executor not in EXECUTORS:
            close = nearest(self.executor, EXECUTORS)
            hint = f'did you mean "{close}"?' if close else f"known: {', '.join(EXECUTORS)}"
            raise Refused(Problem(f'unknown executor "{self.executor}"', help=hint, code="unknown-value"))
        options = self.job_options()
        if self.executor != "processes":
            from .cluster import check_executor

            check_executor(self.executor, options)
        elif options:
            raise Refused("--job requires --executor slurm, local or debug", code="usage")

    def job_options(self) -> dict[str, Any]:
        """Return the options for submitit as values.

        Raises:
            Refused: One is not `key=value`.
        """
        try:
            return {key: value for option in self.options for key, value in Layer.override(option).tree.items()}
        except Refused as refused:
            message = refused.problems[0].message.replace("--set", "--job")
            raise Refused(message, code="usage") from None


def run_sweep(
    sweep: SweepDirectory, source: PointSource, settings: Settings, console: Console, *, fresh: bool = False
) -> int:
    """Run the points of a source and summarize; return the exit code.

    Args:
        sweep: The sweep.
        source: Supplies the points.
        settings: How to run them.
        console: For progress messages.
        fresh: Whether this process has just copied the plugin files of the points, so that they may run.
    """
    say(console, str(sweep.path))
    arguments = (*settings.select, *((TRUSTED,) if fresh else ()))
    code = 0
    if settings.executor == "processes":
        try:
            code = run_points(source, settings.jobs, console, arguments, settings.keep_going)
        except OSError as error:
            lacking = shortage(error)
            if lacking is None:
                raise
            say(console, f"stopped: {lacking}", "red")
            code = EXHAUSTED
    else:
        from .cluster import submit_points

        for job in submit_points(sweep, settings.executor, arguments, settings.job_options(), settings.jobs):
            say(console, f"submitted job {job.job_id}")
        if settings.executor != "debug":
            say(console, f"dither sweep status {sweep.path}")
            return 0
    rows = rows_of(sweep)
    try:
        write_tables(sweep, rows)
        if settings.write_page is not None:
            settings.write_page(sweep, rows)
    except (OSError, Refused) as error:  # must not hide how the points ended
        say(console, f"the summary cannot be written: {error}", "yellow")
    show_rows(console, rows)
    if line := source.best_line():
        say(console, line)
    return _print_next_steps(sweep, code, console)


def _print_next_steps(sweep: SweepDirectory, code: int, console: Console) -> int:
    """Print how to continue if points are not done; return the exit code."""
    statuses = [point.status() for point in sweep.folders()]
    states = {status["state"] for status in statuses}
    search = bool(sweep.facts.get("search"))
    others = {"running"} if search else set()  # processes that share a search also share its number of trials
    code = code or (FAILED if states & {"failed", "lost"} else STOPPED if states & set(UNFINISHED) - others else 0)
    running = sum(status["state"] == "running" for status in statuses)
    if running:
        say(console, f"another process is running {running} points: dither sweep status {sweep.path}")
    exhausted = any(status["state"] == "failed" and status.get("exit_code") == EXHAUSTED for status in statuses)
    if exhausted or code == EXHAUSTED:
        say(console, f"too little disk space or memory for {sweep.path}", "red")
    resumable = states & {"waiting", "stopped", "lost"} or exhausted or ("failed" in states and not search)
    if resumable or code in (STOPPED, EXHAUSTED):
        first = "free some, then " if exhausted or code == EXHAUSTED else ""
        say(console, f"{first}resume with: dither sweep --resume {sweep.path}")
    return code
