"""check: contracts and memory of an experiment, and on request the model itself, without a weight."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .root import Changes, Experiment, Json, Removals, Selected, app

if TYPE_CHECKING:
    from rich.table import Table

    from dither.engine.budget import Budget
    from dither.engine.shapes import Look

__all__: list[str] = []


@app.command()
def check(
    experiment: Experiment,
    shapes: Annotated[bool, typer.Option("--shapes", help="Send a batch without numbers through the model.")] = False,
    changes: Changes = None,
    removals: Removals = None,
    selected: Selected = None,
    as_json: Json = False,
) -> None:
    """Check an experiment and estimate its memory; with --shapes also parameters, shapes and arithmetic.

    Without --shapes it imports no torch.
    """
    from dither.engine.budget import budgets, stages
    from dither.engine.experiment import load_experiment

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    e = loaded.experiment
    space = e.task.space()
    found = budgets(e, space)
    parameters = sum(stage.parameters for stage in stages(e, space))
    warnings = [f"{w.message}; {w.help}" if w.help else w.message for w in loaded.warnings]
    look = None
    if shapes:
        from dither.engine.shapes import look_at

        look = look_at(e)
    if as_json:
        told: dict[str, Any] = {"name": e.name, "parameters": look.parameters if look else parameters}
        told["memory"] = {b.phase: {"total": b.total, "terms": b.terms} for b in found}
        told |= {"warnings": warnings} | ({"shapes": asdict(look)} if look else {})
        typer.echo(json.dumps(told, indent=2))
        return
    _print(f"{experiment}: the parts fit", parameters, found, look, warnings)


def _print(title: str, parameters: int, found: Iterable[Budget], look: Look | None, warnings: Iterable[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    from dither.engine.machine import size, total_memory

    console = Console()
    console.print(Text(title))
    if look is None:
        console.print(f"{parameters:,} parameters", highlight=False)
    else:
        console.print(_shapes(look))
    console.print()
    console.print(_memory(found))
    console.print(Text(f"this machine has {size(total_memory())}", style="dim"))
    for warning in warnings:
        console.print(Text("warning: ", style="yellow") + Text(warning))


def _shapes(look: Look) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("part")
    table.add_column("made by")
    for column in ("parameters", "output", "FLOPs forward"):
        table.add_column(column, justify="right")
    for row in look.rows:
        table.add_row(row.name, row.part, f"{row.parameters:,}", _shape(row.output), _flops(row.flops))
    table.add_row("model", "", f"{look.parameters:,}", _shape(look.output), _flops(look.forward), style="bold")
    table.add_row("a training step", "", "", "", _flops(look.step), style="bold")
    return table


def _memory(found: Iterable[Budget]) -> Table:
    """Make a table: of training with its terms, those below a thousandth left out; of the other phases in all."""
    from rich.table import Table

    from dither.engine.machine import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("memory")
    table.add_column("bytes", justify="right")
    for budget in found:
        table.add_row(budget.phase, size(budget.total), style="bold")
        for name, count in budget.terms.items():
            if budget.phase == "training" and count * 1000 >= budget.total:
                table.add_row(f"  {name}", size(count))
    return table


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _flops(count: int) -> str:
    """Write a number of operations: 11.2 T."""
    for unit, power in (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return str(count)
