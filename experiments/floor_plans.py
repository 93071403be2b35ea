"""Train bubble diagrams on RPLAN, ResPlan, MSD and procedural plans, and print their metrics.

    python -m experiments.floor_plans --rplan floorplan_dataset --resplan ResPlan.pkl --msd graph_out

Every source that is given is prepared, trained on and sampled; procedural plans are always in the
table. `--made-up N` writes N procedural plans in each of the three layouts, to try the commands
without the data. docs/floor-plans.md explains the columns.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

MOST = {"rplan-png": 8, "resplan": 14, "msd": 40}
"""Room slots for each format."""

COLUMNS = {
    "L5": "level_5",
    "GED": "compatibility",
    "IoU": "outline_iou",
    "unique": "unique",
    "novel": "novel",
    "archetypes": "archetype_coverage",
    "type JS": "type_js",
    "edge JS": "edge_js",
}


def main(
    rplan: Annotated[
        Path | None, typer.Option(help="Folder of the RPLAN pictures.")
    ] = None,
    resplan: Annotated[Path | None, typer.Option(help="ResPlan.pkl.")] = None,
    msd: Annotated[Path | None, typer.Option(help="Folder of the MSD graphs.")] = None,
    made_up: Annotated[
        int,
        typer.Option(help="Procedural plans to write in each of the three layouts."),
    ] = 0,
    experiment: Annotated[
        str, typer.Option(help="Experiment to train.")
    ] = "bubble_diagram/small",
    steps: Annotated[
        int | None, typer.Option(help="Steps, instead of those of the experiment.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples of each model.")] = 1000,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path(
        "runs/floor-plans"
    ),
) -> None:
    """Print two rows of metrics for each source, of samples and of test plans, as Markdown."""
    paths = {"rplan-png": rplan, "resplan": resplan, "msd": msd}
    sources = {form: path for form, path in paths.items() if path}
    changes: dict[str, Any] = {"sample.count": samples}
    if steps:
        changes |= {"train.steps": steps, "evaluate.every": steps}
    with tempfile.TemporaryDirectory() as folder:
        if made_up:
            sources = write_made_up(Path(folder), made_up) | sources
        procedural = changes | {"name": "plans-procedural"}
        results = {"procedural": measure(experiment, procedural, samples, runs)}
        for form, path in sources.items():
            results[form] = measure(
                experiment, changes | prepare(form, path), samples, runs
            )
    print_table(results)


def print_table(results: dict[str, dict[str, float]]) -> None:
    """Print the metrics of samples and of test plans, by name of the source."""
    columns = ["plans", "train", "nats", *COLUMNS]
    typer.echo(f"| {' | '.join(columns)} |")
    typer.echo(f"{'|---' * len(columns)}|")
    keys = ["train", "nats_per_graph", *COLUMNS.values()]
    for name, metrics in results.items():
        for kind, end in (("samples", ""), ("test plans", "_floor")):
            cells = [f"{name}, {kind}"]
            for key in keys:
                value = metrics.get(key + end)
                cells.append("-" if value is None else f"{value:.4g}")
            typer.echo(f"| {' | '.join(cells)} |")


def prepare(form: str, path: Path) -> dict[str, Any]:
    """Prepare the plans of a source; return the overrides that select them."""
    from dither.tasks.bubble_diagram.specs import PlanFiles

    options = {"source": str(path), "format": form, "most": MOST[form]}
    typer.echo(PlanFiles.model_validate(options).prepare(), err=True)
    return {
        "name": f"plans-{form}",
        "task.rooms": MOST[form],
        "task.data": {"use": "plans", **options},
    }


def measure(
    experiment: str,
    changes: dict[str, Any],
    samples: int,
    runs: Path,
) -> dict[str, float]:
    """Train, evaluate and sample; return metrics by name."""
    import dither

    system = dither.load(dither.train(experiment, changes, runs=runs))
    task: Any = system.task
    like = task.like(samples, 0)
    tokens = dither.draw(system, like, seed=0)
    assert tokens is not None
    metrics: dict[str, float] = task.sample_metrics(tokens, like)
    metrics |= dither.evaluate(system, samples=min(2000, task.size("valid")))
    metrics["train"] = task.size("train")
    return metrics


def write_made_up(folder: Path, count: int) -> dict[str, Path]:
    """Write procedural plans in the layouts of RPLAN, ResPlan and MSD; return the paths by format."""
    import networkx
    import numpy as np
    import shapely
    from PIL import Image

    from dither.tasks.bubble_diagram.data.procedural import make_plans
    from dither.tasks.bubble_diagram.formats.resplan import (
        MSD_ROOMS,
        PIXELS_PER_METRE,
        RESPLAN_ROOMS,
    )
    from dither.tasks.bubble_diagram.geometry.boundary import (
        boundaries_of_boxes,
        corners_of,
    )
    from dither.tasks.bubble_diagram.vocabulary import LIVING, ROOMS

    # Of two keys of a type, such as balcony and its misspelling, the first one.
    keys = {kind: key for key, kind in reversed(RESPLAN_ROOMS.items())}
    plans = make_plans(1, 0, count)
    resplan = list[dict[str, Any]]()
    for name in ("rplan", "msd"):
        (folder / name).mkdir()
    for row, boundary in enumerate(boundaries_of_boxes(plans.types, plans.boxes)):
        diagram = plans.diagram(row)
        corners = np.array(corners_of(boundary))
        assert diagram.boxes is not None
        pixels = np.zeros((256, 256, 4), np.uint8)
        # The category of pixels outside.
        pixels[..., 1] = 13
        (x0, y0), (x1, y1) = corners.min(0), corners.max(0)
        pixels[y0:y1, x0:x1, 3] = 255
        plan: dict[str, Any] = {"id": row}
        graph = networkx.Graph()
        # The living room first, so that others cover it.
        rooms = sorted(
            enumerate(zip(diagram.types, diagram.boxes, strict=True)),
            key=lambda room: room[1][0] != LIVING,
        )
        for number, (kind, box) in rooms:
            pixels[box[1] : box[3], box[0] : box[2], 1:3] = kind, number + 1
            key = keys.get(ROOMS[kind], "bedroom")
            shape = shapely.box(*box)
            plan[key] = shapely.MultiPolygon(
                [*getattr(plan.get(key), "geoms", ()), shape]
            )
            # y points up in MSD.
            points = [
                (x / PIXELS_PER_METRE, -y / PIXELS_PER_METRE)
                for x, y in shape.exterior.coords
            ]
            room = MSD_ROOMS.index(ROOMS[kind]) if ROOMS[kind] in MSD_ROOMS else 0
            graph.add_node(number, room_type=room, geometry=points)
        Image.fromarray(pixels).save(folder / "rplan" / f"{row}.png")
        (folder / "msd" / f"{row}.pickle").write_bytes(pickle.dumps(graph))
        resplan.append(plan)
    (folder / "ResPlan.pkl").write_bytes(pickle.dumps(resplan))
    return {
        "rplan-png": folder / "rplan",
        "resplan": folder / "ResPlan.pkl",
        "msd": folder / "msd",
    }


if __name__ == "__main__":
    typer.run(main)
