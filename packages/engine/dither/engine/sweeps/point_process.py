"""One point of a sweep in a process of its own: `python -m dither.engine.sweep.point FOLDER`.

It goes on with the point's run where there is one, and writes down how it ended.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dither.registry.config.errors import Refused

from ..files.resource_errors import shortage
from ..runs.signals import STOPPED, Stopped, stop_on_signals
from .directory import PointFolder, now

__all__ = ["BUSY", "ENDS", "EXHAUSTED", "TRUSTED", "main", "run_job", "run_point"]

BUSY = 11
"""Exit code where another process has the point."""
TRUSTED = "--trusted"
"""Given with plugins where the plugin files of points are copies of those that whoever made the points has run."""
CRASHED, REFUSED = 1, 2
EXHAUSTED = 5
"""Exit code of a run that was out of space or memory: it can go on where there is more."""
ENDS = {
    0: "done",
    1: "an error of the program, see output.txt",
    2: "refused, see output.txt",
    3: "no intact checkpoint is left, see output.txt",
    4: "the loss or the gradient was no number, see output.txt",
    5: "out of space or memory, see output.txt",
    75: "stopped",
    BUSY: "another process works on it",
}
"""What the exit codes of a run say."""


def run_point(folder: Path, select: Sequence[str] | None = None, *, held: bool = False, trust: bool = False) -> int:
    """Run a point, or go on with it; return the exit code of its run.

    Args:
        folder: Of the point.
        select: Plugins as after -p.
        held: Whether the caller holds the point's lock.
        trust: Whether its plugin files may run; see `TRUSTED`.
    """
    point = PointFolder(folder, {})
    lock = None if held else point.claim()
    if not held and lock is None:
        _print_error(f"{folder} is worked on by another process")
        return BUSY
    try:
        return _attempt(point, select, trust)
    except OSError as error:  # of status.json; whoever started this has the exit code
        _print_error(f"stopped: {shortage(error) or error}")
        return EXHAUSTED if shortage(error) else CRASHED
    finally:
        if lock is not None:
            os.close(lock)


def _attempt(point: PointFolder, select: Sequence[str] | None, trust: bool) -> int:
    before = point.status()
    if before["state"] == "done":  # by another process, while this one waited for its turn
        return 0
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "started": before.get("started") or now()}
    facts["attempts"] = int(before.get("attempts") or 0) + 1
    point.write_status("running", **facts)
    code = CRASHED
    try:
        with stop_on_signals():  # until the run takes over
            code = _run(point, select, trust)
    except Stopped:
        code = STOPPED
    except Refused as refused:
        code = REFUSED
        _print_error("\n\n".join(map(str, refused.problems)))
    except Exception:
        _print_error(traceback.format_exc())
    finally:
        state = {0: "done", 75: "stopped"}.get(code, "failed")
        reason = None if code == 0 else ENDS.get(code, "")
        point.write_status(state, exit_code=code, reason=reason, **facts, ended=now())
    return code


def _run(point: PointFolder, select: Sequence[str] | None, trust: bool) -> int:
    from ..config.load_experiment import load_experiment
    from ..runs.launch import run

    begun = point.run_directory()
    file = (begun or point.path) / ("resolved.toml" if begun else "experiment.toml")
    loaded = load_experiment(file, select=select or None, trust=trust)
    given = ["--resume", str(begun)] if begun else [str(file), "--runs", str(point.path)]
    return run(loaded, point.path, ["dither", "run", *given], begun)


def main(arguments: Sequence[str]) -> int:
    """Read the command line, `[--held] [--output] FOLDER [--trusted] [PLUGIN ...]`; --output prints into output.txt."""
    folder, *select = [argument for argument in arguments if argument not in ("--held", "--output", TRUSTED)]
    held, trust = "--held" in arguments, TRUSTED in arguments
    if "--output" not in arguments:
        return run_point(Path(folder), select, held=held, trust=trust)
    with _redirect_output(Path(folder) / "output.txt"):
        return run_point(Path(folder), select, held=held, trust=trust)


def run_job(folder: str, select: Sequence[str]) -> None:
    """Run a point as a job of submitit, in the job's own process, so that a signal of the cluster reaches the run.

    Once there is something to save, submitit's own handlers are out of the way: it neither breaks off nor requeues.

    Raises:
        RuntimeError: It is not done; so the cluster takes note of it.
    """
    code = main(["--output", folder, *select])
    if code:
        raise RuntimeError(f"{folder}: {ENDS.get(code, code)}")


@contextmanager
def _redirect_output(path: Path) -> Iterator[None]:
    """Let all that this process prints go to the end of a file."""
    former = [os.dup(stream) for stream in (1, 2)]
    try:
        _flush()
        with path.open("ab") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        yield
    finally:
        _flush()
        for stream, copy in enumerate(former, 1):
            os.dup2(copy, stream)
            os.close(copy)


def _print_error(text: str) -> None:
    """Print to stderr; a full disk under it changes no exit code, as what Python then holds back would at its end."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it is full, closed, or there is none
            stream.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
