"""The command line as typer has it, and the options that more than one verb takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .completion import complete_experiment

__all__ = [
    "Changes",
    "Experiment",
    "Json",
    "Removals",
    "RunDirectory",
    "Runs",
    "Selected",
    "Which",
    "app",
    "which",
]

app = typer.Typer(
    name="dither",
    help="Diffusion transformers assembled from named parts.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The command line as typer has it; `main` is what to call."""

Experiment = Annotated[
    Path,
    typer.Argument(help="The experiment file (TOML).", show_default=False, autocompletion=complete_experiment),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value; VALUE is TOML, or else a string."),
]
Removals = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Drop a value that the file gives.")]
Selected = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME", help="Load this plugin too, by name or file (repeat); no:NAME: without it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Runs = Annotated[Path, typer.Option("--runs", help="The folder in which run directories are made.")]
RunDirectory = Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)]
Which = Annotated[
    str, typer.Option("--checkpoint", metavar="WHICH", help="Which checkpoint: newest, best, or the number of a step.")
]


def which(word: str) -> Any:
    """Return the checkpoint that is meant: a word, or the number of a step.

    Raises:
        Refused: It is neither.
    """
    from dither.registry.problems import Refused

    if word in ("newest", "best"):
        return word
    if not (word.isascii() and word.isdigit() and len(word) <= 12):
        raise Refused(f'--checkpoint is "newest", "best" or the number of a step, not "{word}"')
    return int(word)
