"""The command line: `dither COMMAND ...`, and `python -m experiments.run EXPERIMENT`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..signals import Stop

__all__ = ["main"]

USAGE = 2
"""Exit code of invalid input; docs/runs.md lists all."""
EXHAUSTED = 5
"""Exit code without disk space or memory."""
COMMAND = re.compile(r"[a-z]+(?:-[a-z]+)*")
NULL = "embedded null"
"""How messages of Python about NUL in the name of a file begin."""
CODES = {
    "No such command": "unknown-command",
    "No such option": "unknown-option",
    "Missing": "missing-argument",
}
"""Problem codes by the beginning of a message of click; all others are `usage`."""


def main(arguments: Sequence[str] | None = None, *, verb: str | None = None) -> int:
    """Run a command and return its exit code: 2 for invalid input, 3 for a damaged run, 75 stopped.

    Args:
        arguments: As `sys.argv[1:]`, the default, which also adapts the garbage collection of the
            process to one command.
        verb: The command, if the first argument is none.
    """
    from ..signals import (
        STOPPED,
        Stopped,
        interruption_message,
        kill_suspended_ranks,
        stop_on_signals,
    )

    is_process = arguments is None
    if is_process:
        from .garbage_collection import disable_collection

        disable_collection()
    try:
        # Until a run installs its own handlers.
        with stop_on_signals(last=is_process) as stop:
            words = sys.argv[1:] if arguments is None else arguments
            stop.code = _run(words, verb, stop)
            return stop.code
    except Stopped as stopped:
        # The terminal may be closed.
        with suppress(OSError):
            _print_end(interruption_message(stopped), "stopped", STOPPED)
        kill_suspended_ranks()
        return STOPPED


def _run(arguments: Sequence[str], verb: str | None, stop: Stop) -> int:
    # pydantic searches all entry points for its own plugins, and fails at a broken one
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from .commands import app_for
    from .output import global_options, hoist_global_options

    # Reset options of an earlier call.
    global_options()
    options, words = hoist_global_options(arguments)
    words = _complete(words, verb)
    try:
        if stop.last and words:
            _require_one_rank(words[0])
        app, words = app_for(words)
        result = app([*options, *words], standalone_mode=False)
    # The reader of our output is gone, as with `| head`.
    except BrokenPipeError:
        return _discard_output()
    # Likewise, noticed by click.
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            return _discard_output()
        return _report_exit(ended)
    except BaseException as error:
        from dither.registry.plugins.status import is_interruption

        if is_interruption(error):
            raise
        stop.raise_again(error)
        return _report(error)
    return result if isinstance(result, int) else 0


def _complete(words: list[str], verb: str | None) -> list[str]:
    """Return the words of a command with its verb, and with overrides written out."""
    from .commands import expand_overrides

    if verb is not None and not _is_command(words[0] if words else ""):
        words = [verb, *words]
    # `prepare` takes the options of a component, which may have the same names.
    return words if words[:1] == ["prepare"] else expand_overrides(words)


def _require_one_rank(command: str) -> None:
    """Refuse a command on several ranks of torchrun, each of which would do all of it, unless it is `run`."""
    from ..signals import TORCHRUN

    if command == "run" or TORCHRUN not in os.environ:
        return
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        from dither.registry.config.errors import Problem, Refused

        message = f"torchrun has started {size} ranks, and only `run` shares its work among them"
        hint = "start it without torchrun"
        raise Refused(Problem(message, help=hint, code="usage"))


def _report_exit(ended: SystemExit) -> int:
    from .commands import COMPLETION

    if COMPLETION in os.environ:
        raise ended
    # A component that exits with 0 must not look like a command that succeeded.
    failed = RuntimeError(f"SystemExit: {ended.code}")
    failed.__cause__ = ended
    return _report(failed)


def _is_command(word: str) -> bool:
    """Return whether a word is a command, perhaps of a plugin, and not an experiment."""
    from .app import VERBS

    if word in {*VERBS, "--help", "-h"}:
        return True
    is_file = os.path.exists(word) or os.path.exists(f"{word}.toml")
    return COMMAND.fullmatch(word) is not None and not is_file


def _discard_output() -> int:
    stdout = sys.__stdout__.fileno() if sys.__stdout__ else 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return 0


def _report(error: BaseException) -> int:
    """Print why a command failed and return its exit code; a bug is raised again."""
    from dither.registry.config.errors import Refused

    from ..files.resource_errors import shortage

    lacking = shortage(error)
    if lacking is not None and not isinstance(error, Refused):
        return _report_shortage(lacking)
    refused = _as_refused(error)
    if isinstance(refused, Refused):
        from .output import print_problems

        print_problems(refused)
        return refused.exit_code
    return _report_usage(error)


def _as_refused(error: BaseException) -> BaseException:
    """Return the problem of a file that the system does not open or write, or else the error."""
    if isinstance(error, OSError) and error.filename is not None:
        reason = f"{str(error.filename)!r}: {error.strerror or error}"
    elif isinstance(error, ValueError) and str(error).startswith(NULL):
        reason = f"the name of a file has a {str(error).removeprefix('embedded ')}"
    else:
        return error
    from dither.registry.config.errors import Refused

    refused = Refused(reason, code="unreadable-file")
    refused.__cause__ = error
    return refused


def _report_shortage(lacking: str) -> int:
    """Print that there was too little disk space or memory; return the exit code."""
    from ..files.resource_errors import shortage_code

    # stderr may be on the same disk.
    with suppress(OSError):
        _print_end(f"stopped: {lacking}", shortage_code(lacking), EXHAUSTED)
    with suppress(OSError):
        # Python flushes stdout when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXHAUSTED


def _print_end(message: str, code: str, exit_code: int) -> None:
    """Print why a command ended before it was done: one line of text, or JSON."""
    from dither.registry.config.errors import Refused

    from .output import Format, output_options, print_problems

    if output_options.format is Format.JSON:
        print_problems(Refused(message, code=code), exit_code)
    else:
        print(message, file=sys.stderr)  # noqa: T201


def _report_usage(error: Any) -> int:
    """Print an error of click or of a third party; any other exception is a bug and keeps its traceback."""
    import typer

    # typer may bundle its own copy of click: take the class from one of its own exceptions
    click_exception = next(
        base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
    )
    from dither.registry.config.errors import Refused

    from .output import Format, output_options, print_problems

    if not isinstance(error, click_exception):
        from ..config.component_errors import plugin_failure

        failed = plugin_failure(error)
        if failed is None:
            raise error
        print_problems(failed)
        return failed.exit_code

    if output_options.format is Format.TEXT:
        error.show()  # type: ignore[attr-defined]
        return USAGE
    message = error.format_message()  # type: ignore[attr-defined]
    code = "usage"
    for beginning, known in CODES.items():
        if message.startswith(beginning):
            code = known
    print_problems(Refused(message, code=code))
    return USAGE
