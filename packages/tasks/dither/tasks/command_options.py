"""Options that the commands of several tasks have in common. No torch at import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dither.registry.contracts.commands import RunOptions

__all__ = [
    "Checkpoint",
    "Count",
    "ExportFormats",
    "Figures",
    "Json",
    "Out",
    "Overrides",
    "Pictures",
    "PluginNames",
    "RunDirectory",
    "SampleMetrics",
    "Seed",
    "Settings",
    "run_options",
    "split_words",
]

RunDirectory = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run directory, an export, or a trained model such as zoo/bubble-small.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Overrides, as with --set.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value (repeatable)."),
]
Count = Annotated[
    int,
    typer.Option("--count", "-n", metavar="NUMBER", min=1, help="Number of samples."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="NUMBER", min=0, help="Seed.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="New folder; by default inside the run.")
]
ExportFormats = Annotated[
    list[str] | None,
    typer.Option("--export", metavar="FORMAT", help="Export format (repeatable)."),
]
SampleMetrics = Annotated[
    bool, typer.Option("--metrics/--no-metrics", help="Compare the samples with data.")
]
Pictures = Annotated[
    bool, typer.Option("--pictures/--no-pictures", help="Draw the samples.")
]
Figures = Annotated[
    list[str] | None,
    typer.Option(
        "--figures", metavar="FORMAT", help="Plots as svg or pdf, too (repeatable)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Checkpoint = Annotated[
    str, typer.Option("--checkpoint", metavar="WHICH", help="newest, best, or a step.")
]
PluginNames = Annotated[
    list[str] | None,
    typer.Option(
        "-p", metavar="NAME", help="Load a plugin by name or file (repeatable)."
    ),
]


def run_options(
    checkpoint: str, plugins: list[str] | None, *overrides: Sequence[str] | None
) -> RunOptions:
    """Return the options of a run, with the overrides of several sources in their order."""
    changes: list[str] = []
    for source in overrides:
        changes += source or ()
    return RunOptions(checkpoint, changes, plugins)


def split_words(words: Sequence[str] | None) -> tuple[list[Path], list[str]]:
    """Return the arguments that are files or folders, and those that are overrides."""
    paths: list[Path] = []
    overrides: list[str] = []
    for word in words or ():
        # A file may be called a=b.txt.
        if "=" in word and not Path(word).exists():
            overrides.append(word)
        else:
            paths.append(Path(word))
    return paths, overrides
