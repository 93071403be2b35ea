"""The command line: `dither COMMAND ...`, and `python -m experiments.run EXPERIMENT`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dither.registry.config.errors import Refused

__all__ = ["main"]

USAGE = 2
EXHAUSTED = 5
"""Exit codes: invalid input; no disk space or memory. docs/runs.md lists all."""
CODES = {
    "No such command": "unknown-command",
    "No such option": "unknown-option",
    "Missing": "missing-argument",
}
"""Problem codes by the beginning of a message of click; all others are `usage`."""


def main(arguments: Sequence[str] | None = None, *, verb: str | None = None) -> int:
    """Run a command (arguments as sys.argv[1:]; `verb` if the first is none) and return its exit code.

    The code is 2 for invalid input, 3 for a damaged run, 75 if stopped by a signal.
    """
    from ..runs.signals import STOPPED, Stopped, interruption_message, stop_on_signals

    if (
        arguments is None
    ):  # imports leave few cycles: collect rarely, and neither before a command nor at the exit
        gc.disable()
        gc.set_threshold(10_000, 10, 10)
        atexit.register(_freeze)
    try:
        with stop_on_signals(
            last=arguments is None
        ) as stop:  # until a run installs its own handlers
            stop.code = _run(sys.argv[1:] if arguments is None else arguments, verb)
            return stop.code
    except Stopped as stopped:
        with suppress(OSError):  # the terminal may be closed
            print(interruption_message(stopped), file=sys.stderr)  # noqa: T201
        return STOPPED


def _freeze() -> None:
    if "triton" not in sys.modules:  # it reports objects that are left as leaks
        gc.freeze()


def _run(arguments: Sequence[str], verb: str | None) -> int:
    # pydantic searches all entry points for its own plugins, and fails at a broken one
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from .app import VERBS, app_for, expand_overrides
    from .output import global_options, hoist_global_options

    global_options()  # reset options of an earlier call
    options, words = hoist_global_options(arguments)
    if verb is not None and not (words and (words[0] in VERBS or words[0] in ("--help", "-h"))):
        words.insert(0, verb)
    try:
        app, words = app_for(words if words[:1] == ["prepare"] else expand_overrides(words))
        result = app([*options, *words], standalone_mode=False)
    except _refused() as refused:
        from .output import print_problems

        print_problems(refused)
        return int(getattr(refused, "exit_code", USAGE))
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        return _discard_output()
    except SystemExit as ended:  # likewise, noticed by click
        if isinstance(ended.__context__, BrokenPipeError):
            return _discard_output()
        raise
    except Exception as error:
        return _report_shortage(error) or _report_usage(error)
    return result if isinstance(result, int) else 0


def _discard_output() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 0


def _refused() -> type[Refused]:
    """Import the class when an exception is raised, and not before: help does without pydantic."""
    from dither.registry.config.errors import Refused

    return Refused


def _report_shortage(error: Exception) -> int:
    """Return 5 if there was too little disk space or memory, 0 for any other error."""
    from ..files.resource_errors import shortage

    lacking = shortage(error)
    if lacking is None:
        return 0
    with suppress(OSError):  # stderr may be on the same disk
        print(f"stopped: {lacking}", file=sys.stderr)  # noqa: T201
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXHAUSTED


def _report_usage(error: Any) -> int:
    """Print an error of click; any other exception is a bug and keeps its traceback."""
    show = getattr(error, "show", None)  # duck-typed: typer may bundle its own copy of click
    if show is None or not hasattr(error, "format_message"):
        raise error
    from .output import Format, output_options, print_problems

    if output_options.format is Format.TEXT:
        show()
    else:
        message = error.format_message()
        code = next((code for start, code in CODES.items() if message.startswith(start)), "usage")
        print_problems(_refused()(message, code=code))
    return USAGE
