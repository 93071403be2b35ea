"""Output of the command line: problems as text, JSON or GitHub annotations; tables."""

from __future__ import annotations

import enum
import json
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app

if TYPE_CHECKING:
    from dither.registry.config.errors import Origin, Problem, Refused

    from ..config.load_experiment import Loaded

__all__ = [
    "Format",
    "echo",
    "echo_json",
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
            "--format", help="Format of problems. This and the next option may stand anywhere."
        ),
    ] = Format.TEXT,
    with_traceback: Annotated[
        bool,
        typer.Option("--traceback", help="Show the traceback of a problem, for plugin authors."),
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
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
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        elif word.startswith("--format=") or word == "--traceback":
            front.append(word)
        else:
            rest.append(word)
    for form in Format:
        if front and front[-1].removeprefix("--format=") == form:
            output_options.format = form
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
        echo(json.dumps(value, indent=2, default=str))
    return wants_json(as_json)


def print_problems(refused: Refused) -> None:
    """Print every problem in the selected format."""
    if output_options.traceback:
        cause: BaseException | None = refused
        while cause is not None:  # `from None` hides the causes from users of a plugin
            cause.__suppress_context__ = False
            cause = cause.__cause__ or cause.__context__
        print("".join(traceback.format_exception(refused)), file=sys.stderr)  # noqa: T201
    if output_options.format is Format.JSON:
        _print_json(False, refused.problems)
    else:
        _print(refused.problems)


def print_valid(loaded: Loaded, as_json: bool = False, deep: dict[str, Any] | None = None) -> None:
    """Print that an experiment is valid, and the names of its main components."""
    e = loaded.experiment
    parts = {part.kind: part.name for part in (e.task, e.process, e.model, e.loss, e.sampler)}
    if wants_json(as_json):
        extra = {} if deep is None else {"deep": deep}
        _print_json(True, loaded.warnings, file=str(loaded.path), parts=parts, **extra)
        return
    if loaded.warnings:
        _print(loaded.warnings)
    echo(f"{loaded.path}: valid ({', '.join(f'{kind} {name}' for kind, name in parts.items())})")


def _print(problems: Sequence[Problem]) -> None:
    if output_options.format is Format.GITHUB:
        for problem in problems:
            echo(_annotation(problem))
        return
    print("\n\n".join(map(str, problems)), file=sys.stderr)  # noqa: T201
    if len(problems) > 1:
        word = "warnings" if all(problem.level == "warning" for problem in problems) else "problems"
        print(f"\n{len(problems)} {word}", file=sys.stderr)  # noqa: T201


def _print_json(valid: bool, problems: Sequence[Problem], **more: Any) -> None:
    echo(json.dumps({"valid": valid, **more, "problems": list(map(_record, problems))}, indent=2))


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
            {"message": word, **location_record(origin)} for word, origin in problem.related
        ],
    }
    if problem.given is not None:
        record["given"] = (
            problem.given if isinstance(problem.given, bool | int) else str(problem.given)[:200]
        )
    return record


def location_record(origin: Origin | None) -> dict[str, Any]:
    """Return a position in a file for JSON."""
    return {key: getattr(origin, key, None) for key in ("file", "line", "column")}


def _annotation(problem: Problem) -> str:
    """Return a problem as a workflow command of GitHub."""
    from dither.registry.config.errors import dotted, printable

    path = f"{dotted(problem.path)}: " if problem.path else ""
    message = path + printable(problem.message)
    origin = problem.origin
    place = ""
    if origin is not None and origin.line is not None and origin.column is not None:
        end = origin.column + origin.width
        file = _escaped(origin.file, ",:")
        place = f" file={file},line={origin.line},endLine={origin.line},col={origin.column},endColumn={end}"
    elif origin is not None:
        message += f" ({origin})"
    text = f"{message}\n{problem.help}" if problem.help else message
    return f"::{problem.level}{place}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    for letter in ("%", "\r", "\n", *more):
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text
