"""Compare boxes that a model draws with relations and the layout of them, over training seeds.

    python -m experiments.boxes
    python -m experiments.boxes --seeds 2 --samples 64

Both models are those of `bubble_diagram/quick`; the one with boxes is trained for more time. Each
run is a line of docs/boxes.jsonl; those that are there are not repeated. Printed are mean, smallest
and largest of the seeds. Whatever a sample gives, the drawn plan is measured: rooms at boxes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from experiments.results import ORDERED, cpu_seconds_of_children, processor

FOLDER = Path(__file__).parent / "bubble_diagram"
ROWS = Path(__file__).parents[1] / "docs" / "boxes.jsonl"
ARMS = {
    # A step without boxes takes 0.6 times as long.
    "layout": ("quick.toml", ["train.steps=3400", "evaluate.every=3400"]),
    "boxes": ("boxes.toml", []),
}
"""File and overrides of each model."""

SAMPLERS = {"first-hitting": 'sampler="first-hitting"', "ordered": ORDERED}
PERCENT = (
    "level_5",
    "level_6",
    "plan_level_5",
    "plan_dwelling",
    "boxes_legal",
    "relations_shown",
    "unique",
    "novel",
)
"""Shares of all samples; levels 5 and 6 require that the plan shows the relations of the sample."""

NUMBERS = ("edge_js", "plan_kid", "sampling_ms", "placement_ms", "train_cpu_s")


def main(
    seeds: Annotated[int, typer.Option(help="Training seeds.")] = 5,
    samples: Annotated[int, typer.Option(help="Samples of each sampler.")] = 256,
) -> None:
    """Run what is missing; print a column per model and sampler."""
    for seed in range(seeds):
        for arm in ARMS:
            if not any((row["arm"], row["seed"]) == (arm, seed) for row in _rows()):
                _measure(arm, seed, samples)
    columns: dict[str, list[dict[str, float]]] = {}
    for row in _rows():
        columns.setdefault(f"{row['arm']}, {row['sampler']}", []).append(row["values"])
    columns["real plans"] = [_of_real_plans(samples)]
    typer.echo(f"| | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    for name in (*PERCENT, *NUMBERS):
        cells = [_cell(name, values) for values in columns.values()]
        typer.echo(f"| {name} | {' | '.join(cells)} |")


def _measure(arm: str, seed: int, samples: int) -> None:
    """Train a model and append a row for each sampler."""
    import dither

    file, overrides = ARMS[arm]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.run", "run", str(FOLDER / file)]
        command += ["--runs", folder, f"seed={seed}", "sample.count=0", *overrides]
        command += ["train.threads=1", "evaluate.samples=1"]
        before = cpu_seconds_of_children()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        train_seconds = cpu_seconds_of_children() - before
        lines = []
        for name, override in SAMPLERS.items():
            system = dither.load(Path(folder) / "latest", overrides=[override])
            task: Any = system.task
            like = task.like(samples, seed)
            start = time.process_time()
            drawn = dither.draw(system, like, seed=seed)
            sampling = time.process_time() - start
            assert drawn is not None
            values = _values(drawn.numpy(), task.rooms)
            values["sampling_ms"] = 1000 * sampling / samples
            values["train_cpu_s"] = train_seconds
            row = {"arm": arm, "seed": seed, "sampler": name, "cpu": processor()}
            lines.append(json.dumps({**row, "samples": samples, "values": values}))
            typer.echo(lines[-1])
    # Both at once, as a run with one row would count as measured.
    with ROWS.open("a", encoding="utf-8") as rows:
        rows.write("\n".join(lines) + "\n")


def _values(tokens: Any, rooms: int) -> dict[str, float]:
    """Return the metrics of samples; with tokens after the relations, which are boxes."""
    from dither.tasks.bubble_diagram.box_tokens import decode_boxes
    from dither.tasks.bubble_diagram.decoded_samples import read_samples
    from dither.tasks.bubble_diagram.geometry.placement import place_diagram
    from dither.tasks.bubble_diagram.validity import validity_levels

    base = rooms * (rooms + 1) // 2
    boxes = None
    if tokens.shape[1] > base:
        boxes = decode_boxes(tokens[:, base:])
        tokens = tokens[:, :base]
    start = time.process_time()
    levels = validity_levels(tokens, rooms, boxes=boxes, search=boxes is None)
    placements = []
    for row, (diagram, _) in enumerate(read_samples(tokens, rooms, boxes)):
        if diagram is not None:
            proof = levels.boxes[row, : len(diagram.types)].astype(np.int64)
            known = proof if proof.any() else None
            placements.append(place_diagram(diagram, known, search=False))
    seconds = time.process_time() - start

    shown = [holds for placed in placements for holds in placed.holds]
    values = _of_plans(placements, rooms, len(tokens))
    values["level_5"] = float(levels.buildable.mean())
    values["boxes_legal"] = len(placements) / len(tokens)
    values["relations_shown"] = float(np.mean(shown))
    values["placement_ms"] = 1000 * seconds / len(tokens)
    return values


def _of_plans(placements: list[Any], rooms: int, count: int) -> dict[str, float]:
    """Return the metrics of drawn plans, as shares of `count` samples."""
    from dither.tasks.bubble_diagram.geometry.placement import dwelling_problems
    from dither.tasks.bubble_diagram.metrics import Reference
    from dither.tasks.bubble_diagram.plan_features import plan_features
    from dither.tasks.bubble_diagram.plans import Diagram, Plans
    from dither.tasks.bubble_diagram.validity import validity_levels
    from dither.tasks.feature_distances import kernel_distance

    splits = _data()
    diagrams = []
    for placed in placements:
        walls = [tuple(box) for box in placed.boxes.tolist()]
        diagrams.append(Diagram.from_boxes(placed.diagram.types, walls))
    plans = Plans.from_diagrams(diagrams, rooms)
    tokens = plans.tokens(rooms)
    levels = validity_levels(tokens, rooms, boxes=plans.boxes, search=False)
    metrics = Reference(splits, rooms).metrics(tokens, plans.boxes, search=False)
    dwelling = [not [*dwelling_problems(placed)] for placed in placements]
    dwelling = np.array(dwelling) & levels.buildable
    exact = np.array([placed.exact for placed in placements])

    real = [splits.valid.diagram(row) for row in range(1000)]
    reference = plan_features([(d.types, np.array(d.boxes)) for d in real], None)
    drawn = [(d.types, np.array(d.boxes)) for d in diagrams]
    valid = [drawn[row] for row in np.flatnonzero(levels.buildable)]
    scale = len(plans) / count
    values = {
        "plan_level_5": float(levels.buildable.mean()) * scale,
        "plan_dwelling": float(dwelling.mean()) * scale,
        "level_6": float((dwelling & exact).mean()) * scale,
        "unique": metrics["unique"] * scale,
        "novel": metrics["novel"] * scale,
        "edge_js": metrics["edge_js"],
    }
    # Unbiased, so that it may be of different numbers of plans.
    if len(valid) > 1:
        values["plan_kid"] = kernel_distance(plan_features(valid, None), reference)
    return values


def _of_real_plans(count: int) -> dict[str, float]:
    """Return the metrics of test plans at their own boxes, which a model of boxes learns."""
    from dither.tasks.bubble_diagram.geometry.placement import place_diagram

    plans = _data().test
    placements = [place_diagram(plans.diagram(row)) for row in range(count)]
    return _of_plans(placements, plans.types.shape[1], count)


def _data() -> Any:
    """Return the plans of both experiments, in their order and orientation."""
    from dither.tasks.bubble_diagram.plans import Plans
    from dither.tasks.bubble_diagram.specs import ProceduralPlans

    return ProceduralPlans().build().map(Plans.upright).map(Plans.from_left_to_right)


def _rows() -> list[dict[str, Any]]:
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def _cell(name: str, rows: list[dict[str, float]]) -> str:
    values = [row[name] for row in rows if name in row]
    if not values:
        return ""
    if name in PERCENT:
        values = [100 * value for value in values]
        return f"{np.mean(values):.0f} % ({min(values):.0f} to {max(values):.0f})"
    return f"{np.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    typer.run(main)
