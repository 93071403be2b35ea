"""In which form problems are told: as text for a person, as JSON for a program, or as annotations for GitHub."""

from __future__ import annotations

import enum
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app

if TYPE_CHECKING:
    from dither.registry.config.errors import Origin, Problem, Refused

    from ..config.load_experiment import Loaded

__all__ = [
    "Format",
    "OutputOptions",
    "global_options",
    "hoist_global_options",
    "location_record",
    "output_options",
    "print_problems",
    "print_valid",
    "wants_json",
]


class Format(enum.StrEnum):
    """The forms."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


@dataclass
class OutputOptions:
    """What the options that every verb takes say."""

    format: Format = Format.TEXT
    traceback: bool = False


output_options = OutputOptions()
"""What holds for the command that runs; `global_options` sets it from the options."""


@app.callback()
def global_options(
    form: Annotated[
        Format, typer.Option("--format", help="How problems are told; this and the next go anywhere on the line.")
    ] = Format.TEXT,
    with_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code something was refused, for authors of plugins.")
    ] = False,
) -> None:
    """Take the options that every verb has."""
    output_options.format, output_options.traceback = form, with_traceback


def hoist_global_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that every verb takes, which are read before the verb, and the rest of the line."""
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
    return front, rest


def wants_json() -> bool:
    """Whether the output is for a program."""
    return output_options.format is Format.JSON


def print_problems(refused: Refused) -> None:
    """Print every problem in the form that is asked for."""
    if output_options.traceback:
        print("".join(traceback.format_exception(_with_causes(refused))), file=sys.stderr)  # noqa: T201
    _PRINTERS[output_options.format](refused.problems)


def print_valid(loaded: Loaded) -> None:
    """Print that an experiment is valid, and which parts it names."""
    e = loaded.experiment
    parts = {part.kind: part.name for part in (e.task, e.process, e.model, e.loss, e.sampler)}
    if output_options.format is Format.JSON:
        _print_document(True, loaded.warnings, file=str(loaded.path), parts=parts)
    else:
        if loaded.warnings:
            _PRINTERS[output_options.format](loaded.warnings)
        typer.echo(f"{loaded.path}: valid ({', '.join(f'{kind} {name}' for kind, name in parts.items())})")


def _with_causes(error: BaseException) -> BaseException:
    """Let an error show what it came from, which a person who only uses a plugin is spared."""
    inner: BaseException | None = error
    while inner is not None:
        inner.__suppress_context__ = False
        inner = inner.__cause__ or inner.__context__
    return error


def _print_text(problems: Sequence[Problem]) -> None:
    print("\n\n".join(map(str, problems)), file=sys.stderr)  # noqa: T201
    if len(problems) > 1:
        word = "warnings" if all(problem.level == "warning" for problem in problems) else "problems"
        print(f"\n{len(problems)} {word}", file=sys.stderr)  # noqa: T201


def _print_json(problems: Sequence[Problem]) -> None:
    _print_document(False, problems)


def _print_document(valid: bool, problems: Sequence[Problem], **facts: Any) -> None:
    typer.echo(json.dumps({"valid": valid, **facts, "problems": list(map(_record, problems))}, indent=2))


def _record(problem: Problem) -> dict[str, Any]:
    from dither.registry.config.errors import dotted, plain

    record: dict[str, Any] = {
        "level": problem.level,
        "code": problem.code,
        "message": plain(problem.message),
        "path": dotted(problem.path),
    }
    record |= location_record(problem.origin)
    if problem.given is not None:
        record["given"] = _given(problem.given)
    record["help"] = problem.help
    record["related"] = [{"message": word, **location_record(origin)} for word, origin in problem.related]
    return record


def location_record(origin: Origin | None) -> dict[str, Any]:
    """Return where something stands, as JSON has it."""
    if origin is None:
        return {"file": None, "line": None, "column": None}
    return {"file": origin.file, "line": origin.line, "column": origin.column}


def _given(value: Any) -> Any:
    """Return a value as JSON has it; what it does not have, and what is long, as the beginning of a text."""
    try:
        if len(json.dumps(value, allow_nan=False)) <= 200:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    return str(value)[:200]


def _print_github(problems: Sequence[Problem]) -> None:
    from dither.registry.config.errors import dotted, plain

    for problem in problems:
        path = f"{dotted(problem.path)}: " if problem.path else ""
        lines = [path + plain(problem.message), *([problem.help] if problem.help else [])]
        origin = problem.origin
        place = {}
        if origin is not None and origin.line is not None and origin.column is not None:
            place = {"file": origin.file, "line": origin.line, "endLine": origin.line, "col": origin.column}
            place |= {"endColumn": origin.column + origin.width}
        elif origin is not None:
            lines[0] += f" ({origin})"
        where = ",".join(f"{key}={_escaped(str(value), ',:')}" for key, value in place.items())
        typer.echo(f"::{problem.level}{' ' * bool(where)}{where}::{_escaped(chr(10).join(lines))}")


def _escaped(text: str, more: str = "") -> str:
    for letter in ("%", "\r", "\n", *more):
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


_PRINTERS: dict[Format, Callable[[Sequence[Problem]], None]] = {
    Format.TEXT: _print_text,
    Format.JSON: _print_json,
    Format.GITHUB: _print_github,
}
