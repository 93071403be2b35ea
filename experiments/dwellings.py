"""Count the dwellings (level 6) among laid-out plans, with the compactness and the time of layouts.

    python -m experiments.dwellings --plans 300
    python -m experiments.dwellings --plans 0 --run runs/bubble-small --samples 400

Plans are procedural ones that are laid out from their own tokens; samples are those of level 5 of a
trained run. A plan that is no dwelling is listed under each reason.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer


def main(
    plans: Annotated[int, typer.Option(help="Procedural plans.")] = 300,
    run: Annotated[Path | None, typer.Option(help="Run to sample.")] = None,
    samples: Annotated[int, typer.Option(help="Samples of it.")] = 400,
    seed: Annotated[int, typer.Option(help="Seed of plans and samples.")] = 9,
) -> None:
    """Print a row of counts for procedural plans, and one for samples of level 5."""
    from dither.tasks.bubble_diagram.data.procedural import make_plans

    if plans:
        tokens = make_plans(seed, 0, plans).tokens(8)
        report("plans laid out from their tokens", tokens, 8)
    if run is not None:
        import dither

        system = dither.load(run)
        task: Any = system.task
        like = task.like(samples, seed)
        drawn = dither.draw(system, like, seed=seed)
        assert drawn is not None
        report("samples of level 5", drawn.numpy(), task.rooms)


def report(title: str, tokens: Any, rooms: int) -> None:
    """Print the share of dwellings among diagrams of level 5, and medians of their layouts."""
    import numpy as np

    from dither.tasks.bubble_diagram.geometry.compactness import compactness
    from dither.tasks.bubble_diagram.geometry.placement import (
        dwelling_problems,
        place_diagram,
    )
    from dither.tasks.bubble_diagram.plans import decode
    from dither.tasks.bubble_diagram.validity import validity_levels

    levels = validity_levels(tokens, rooms)
    rows = np.flatnonzero(levels.buildable)
    reasons: Counter[str] = Counter()
    dwellings = 0
    seconds = []
    shapes = []
    for row in rows.tolist():
        # Doors and areas of the tokens would be further conditions.
        diagram = replace(decode(tokens[row], rooms), doors=None, areas=None)
        proof = levels.boxes[row, : len(diagram.types)].astype(np.int64)
        # CPU time, as several such scripts may run at the same time.
        start = time.process_time()
        placement = place_diagram(diagram, proof, search=False)
        seconds.append(time.process_time() - start)
        problems = list(dwelling_problems(placement))
        dwellings += not problems
        reasons.update(_kinds(problems))
        shapes.append(compactness(diagram.types, placement.boxes))
    fill, corners = np.median(np.array(shapes).reshape(-1, 2), axis=0)
    milliseconds = 1000 * np.array(seconds)
    typer.echo(
        f"{title}: {dwellings} dwellings of {len(rows)} (of {len(tokens)} in all), "
        f"median fill {fill:.1%}, {corners:g} corners, "
        f"{np.median(milliseconds):.0f} ms (largest {milliseconds.max():.0f})"
    )
    for reason, count in reasons.most_common():
        typer.echo(f"  {count:4d} {reason}")


def _kinds(problems: Sequence[str]) -> set[str]:
    """Return problems without the names of rooms and numbers."""
    return {re.sub(r"^\w+( \d+)? |[\d.]+ ?|\b[A-Z]\w+", "", text) for text in problems}


if __name__ == "__main__":
    typer.run(main)
