"""Output of the command line: problems as text, JSON or GitHub annotations; tables."""

from __future__ import annotations

import enum
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app

if TYPE_CHECKING:
    from dither.registry.config.errors import Origin, Problem, Refused

    from ..config.load_experiment import Loaded
    from ..runs.events import Event

__all__ = [
    "Format",
    "echo",
    "echo_event",
    "echo_files",
    "echo_json",
    "error_record",
    "global_options",
    "hoist_global_options",
    "location_record",
    "output_options",
    "print_problems",
    "print_valid",
    "wants_json",
]


class Format(enum.StrEnum):
    """Formats of problems."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


MAX_GIVEN = 200
"""Characters of a wrong value in a JSON record."""


class OutputOptions:
    """Values of the options that every command takes."""

    format: Format = Format.TEXT
    traceback: bool = False


output_options = OutputOptions()
"""Options of the current command, set by `global_options`."""


def _show_version(wanted: bool) -> None:
    if wanted:
        echo(f"dither {version('dither-engine')}")
        raise typer.Exit


@app.callback()
def global_options(
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="Format of problems; json, as --json, also that of results. "
            "This and the next option may stand anywhere.",
        ),
    ] = Format.TEXT,
    with_traceback: Annotated[
        bool,
        typer.Option(
            "--traceback", help="Show the traceback of a problem, for plugin authors."
        ),
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    """Set the options that every command takes."""
    output_options.format = form
    output_options.traceback = with_traceback


def hoist_global_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into the options that every command takes, and the rest; set the format.

    click reports an unknown command before it reads the options.
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--format":
            value = next(words, None)
            front += [word] if value is None else [word, value]
        elif word.startswith("--format=") or word == "--traceback":
            front.append(word)
        elif word == "--json":
            # A command that prints no JSON reports the option, in JSON.
            front += ["--format", Format.JSON]
            rest.append(word)
        else:
            rest.append(word)

    # An invalid value is reported by click, in the format of text.
    last = front[-1].removeprefix("--format=") if front else ""
    if last in set(Format):
        output_options.format = Format(last)
    return front, rest


def echo(text: object = "", nl: bool = True, err: bool = False) -> None:
    """Print a text that may come from foreign files: without escapes and overrides of direction."""
    from dither.registry.config.errors import printable

    typer.echo(printable(str(text)), nl=nl, err=err)


def wants_json(as_json: bool = False) -> bool:
    """Return whether to print JSON: by --json or by --format json."""
    return as_json or output_options.format is Format.JSON


def echo_json(as_json: bool, value: object) -> bool:
    """Print a value as JSON if that is requested; return whether it is."""
    if wants_json(as_json):
        echo(_as_json(value, indent=2))
    return wants_json(as_json)


def echo_files(as_json: bool, files: Iterable[object], text: str, **facts: Any) -> None:
    """Print the files that a command has written, as a text or with other facts as JSON."""
    if not echo_json(as_json, {"files": [str(file) for file in files], **facts}):
        echo(text)


def echo_event(event: Event) -> None:
    """Print an event of a run as a line of JSON; a closed pipe does not end the run."""
    from dither.registry.config.errors import Refused

    from ..runs.events import Failed
    from ..runs.progress import Screen, say

    if isinstance(event, Failed):
        problem = Refused(event.message, code=event.code)
        record = error_record(problem, event.exit_code)
    else:
        record = asdict(event)
    say(Screen(), _as_json(record))


def _as_json(value: object, indent: int | None = None) -> str:
    from ..files.metrics_file import as_json

    return as_json(value, indent, default=str)


def print_problems(refused: Refused, exit_code: int | None = None) -> None:
    """Print every problem in the selected format; JSON is one line, as an event of a run."""
    if output_options.traceback:
        from dither.registry.plugins.status import causes_of

        # `from None` hides the causes, which the author of a plugin wants to see.
        for cause in causes_of(refused, implicit=True):
            cause.__suppress_context__ = False
        print("".join(traceback.format_exception(refused)), file=sys.stderr)  # noqa: T201
    if output_options.format is Format.JSON:
        echo(_as_json(error_record(refused, exit_code or refused.exit_code)))
    else:
        _print(refused.problems)


def print_valid(
    loaded: Loaded, as_json: bool = False, deep: dict[str, Any] | None = None
) -> None:
    """Print that an experiment is valid, and the names of its main components."""
    experiment = loaded.experiment
    components = (
        experiment.task,
        experiment.process,
        experiment.model,
        experiment.loss,
        experiment.sampler,
    )
    names = {component.kind: component.name for component in components}
    record: dict[str, Any] = {
        "valid": True,
        "file": str(loaded.path),
        "parts": names,
        "problems": list(map(_record, loaded.warnings)),
    }
    if deep is not None:
        record["deep"] = deep
    if echo_json(as_json, record):
        return
    if loaded.warnings:
        _print(loaded.warnings)
    listed = ", ".join(f"{kind} {name}" for kind, name in names.items())
    echo(f"{loaded.path}: valid ({listed})")


def _print(problems: Sequence[Problem]) -> None:
    if output_options.format is Format.GITHUB:
        for problem in problems:
            echo(_annotation(problem))
        return
    print("\n\n".join(map(str, problems)), file=sys.stderr)  # noqa: T201
    if len(problems) > 1:
        only_warnings = all(problem.level == "warning" for problem in problems)
        noun = "warnings" if only_warnings else "problems"
        print(f"\n{len(problems)} {noun}", file=sys.stderr)  # noqa: T201


def error_record(refused: Refused, exit_code: int) -> dict[str, Any]:
    """Return problems for JSON."""
    return {
        "event": "error",
        "valid": False,
        "exit_code": exit_code,
        "problems": list(map(_record, refused.problems)),
    }


def _record(problem: Problem) -> dict[str, Any]:
    from dither.registry.config.errors import dotted, printable

    record: dict[str, Any] = {
        "level": problem.level,
        "code": problem.code,
        "message": printable(problem.message),
        "path": dotted(problem.path),
        **location_record(problem.origin),
        "help": problem.help,
        "related": [
            {"message": message, **location_record(origin)}
            for message, origin in problem.related
        ],
    }
    if isinstance(problem.given, bool | int):
        record["given"] = problem.given
    elif problem.given is not None:
        record["given"] = str(problem.given)[:MAX_GIVEN]
    return record


def location_record(origin: Origin | None) -> dict[str, Any]:
    """Return a position in a file for JSON."""
    if origin is None:
        return {"file": None, "line": None, "column": None}
    return {"file": origin.file, "line": origin.line, "column": origin.column}


def _annotation(problem: Problem) -> str:
    """Return a problem as a workflow command of GitHub."""
    from dither.registry.config.errors import dotted, printable

    message = printable(problem.message)
    if problem.path:
        message = f"{dotted(problem.path)}: {message}"
    origin = problem.origin
    place = ""
    if origin is not None and origin.line is not None and origin.column is not None:
        place = (
            f" file={_escaped(origin.file, ',:')},line={origin.line},endLine={origin.line}"
            f",col={origin.column},endColumn={origin.column + origin.width}"
        )
    elif origin is not None:
        message += f" ({origin})"
    if problem.help:
        message += f"\n{problem.help}"
    return f"::{problem.level}{place}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    # The percent sign first: it begins the escapes of the others.
    for letter in ("%", "\r", "\n", *more):
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text
