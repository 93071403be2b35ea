"""The command line: `dither VERB ...`, and `python -m experiments.run EXPERIMENT`."""

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


def main(arguments: Sequence[str] | None = None, *, verb: str | None = None) -> int:
    """Run a command and return its exit code: 2 where what was given cannot be used, 3 for a damaged run, 75 stopped.

    Args:
        arguments: As in sys.argv[1:], which is the default.
        verb: What is meant when the first argument is no verb.
    """
    from ..runs.signals import STOPPED, Stopped, broken_off, stop_on_signals

    if arguments is None:  # the process is ours; without this its end looks for cycles in all that was ever imported
        atexit.register(gc.freeze)
    try:
        with stop_on_signals(last=arguments is None) as stop:  # a run takes over once it has something to save
            stop.code = _run(sys.argv[1:] if arguments is None else arguments, verb)
            return stop.code
    except Stopped as stopped:
        with suppress(OSError):  # the terminal may be what is gone
            print(broken_off(stopped), file=sys.stderr)  # noqa: T201
        return STOPPED


def _run(arguments: Sequence[str], verb: str | None) -> int:
    # pydantic reads the entry points of everything installed for plugins of its own, and stops at a broken one
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from .app import VERBS, app_for
    from .output import global_options, hoist_global_options

    global_options()  # no option holds over from an earlier call
    options, given = hoist_global_options(arguments)
    if verb is not None and not (given and (given[0] in VERBS or given[0] in ("--help", "-h"))):
        _suggest_verb(given[:1])
        given.insert(0, verb)
    try:
        result = app_for(given[0] if given else None)([*options, *given], standalone_mode=False)
    except _refused() as refused:
        return _refuse(refused)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return _discard_output()
    except SystemExit as ended:  # the same, where click found out
        if isinstance(ended.__context__, BrokenPipeError):
            return _discard_output()
        raise
    except Exception as error:
        return _report_shortage(error) or _report_usage(error)
    return result if isinstance(result, int) else 0


def _discard_output() -> int:
    """Drop what is still to be written, and end as if it had been read."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 0


def _refused() -> type[Refused]:
    """Return the class of refusals. It comes with pydantic, so only once something is raised: help does without."""
    from dither.registry.config.errors import Refused

    return Refused


def _refuse(refused: Any) -> int:
    from .output import print_problems

    print_problems(refused)
    return int(getattr(refused, "exit_code", 2))


def _suggest_verb(first: list[str]) -> None:
    """Say so where the first argument is no file but nearly a verb."""
    from dither.registry.config.errors import nearest

    from .app import VERBS

    for word in first:
        close = nearest(word, VERBS)
        if close and not word.startswith("-") and not os.path.exists(word) and not word.endswith(".toml"):
            print(f'note: "{word}" is no command; did you mean "{close}"?', file=sys.stderr)  # noqa: T201


def _report_shortage(error: Exception) -> int:
    """Return 5 where there was no space, or no memory; 0 for any other error."""
    from ..files.resource_errors import shortage

    lacking = shortage(error)
    if lacking is not None:
        with suppress(OSError):  # stderr may be on the same disk
            print(f"stopped: {lacking}", file=sys.stderr)  # noqa: T201
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if lacking is None else 5


def _report_usage(error: Any) -> int:
    """Say what is wrong with the command line; anything else is a mistake of ours and keeps its traceback."""
    show = getattr(error, "show", None)  # of click's exceptions, which typer may carry in a copy of its own
    if show is None or not hasattr(error, "format_message"):
        raise error
    from .output import Format, output_options, print_problems

    if output_options.format is Format.TEXT:
        show()
    else:
        print_problems(_refused()(error.format_message()))
    return 2
