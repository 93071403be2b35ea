"""Pages from records: one run, or several beside each other."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write

from ..config.machine_memory import size
from ..sweeps.points import format_value
from .metrics import charts_of, differences, flat, format_metric, metric_rows, names_of, toml
from .run_record import PictureFile, RunRecord
from .svg import line_classes

__all__ = ["compare_page", "render", "run_page", "write_page"]

BESIDE = 6
"""Runs that stand beside each other in a table; of more, each is a row."""
MOST_NAMES = 3
"""Runs that are named for one problem that many have."""


def write_page(path: Path, page: str) -> Path:
    """Write a page whole or not at all.

    Raises:
        Refused: It cannot be written.
    """
    if path.is_dir():
        raise Refused(f"{path} is a folder; give a file for the page")
    try:
        with atomic_write(path) as beside:
            beside.write_text(page, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def run_page(record: RunRecord) -> str:
    """Return the page of one run as HTML."""
    return render(
        "run.html",
        title=record.name,
        record=record,
        command=shlex.join(map(str, _list(record.manifest.get("argv")))),
        glance=_at_a_glance(record),
        facts=_facts(record),
        parts={key.removesuffix(".use"): v for key, v in flat(record.resolved).items() if key.endswith(".use")},
        figures=metric_rows([record]),
        charts=charts_of([record]),
        pictures=[_picture_data(file) for file in record.pictures],
    )


def compare_page(records: Sequence[RunRecord]) -> str:
    """Return the page that compares runs as HTML."""
    names = names_of(records)
    changed = [(key, ["" if v is None else toml(v) for v in values]) for key, values in differences(records)]
    shared = {key for key, _ in changed if all(key in flat(record.resolved) for record in records)}
    figures = [(name, texts) for name, texts, _ in metric_rows(records)]
    return render(
        "compare.html",
        title=f"{len(records)} runs",
        records=records,
        names=names,
        figures=_grid("figure", names, figures),
        changed=_grid("key", names, [row for row in changed if row[0] in shared]),
        partly=_grid("key", names, [row for row in changed if row[0] not in shared]),
        problems=_grouped_problems(records, names),
        charts=charts_of(records, names),
        pictures=[[_picture_data(file) for file in record.pictures[:2]] for record in records],
    )


def _grid(corner: str, names: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> list[list[str]]:
    """Return a table with its head, one column for each run; or one row for each, where there are many."""
    if not rows:
        return []
    if len(names) <= BESIDE:
        return [[corner, *names], *([key, *texts] for key, texts in rows)]
    columns = [texts for _, texts in rows]
    return [["run", *(key for key, _ in rows)], *(list(row) for row in zip(names, *columns, strict=True))]


def _grouped_problems(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return every problem once, with the runs that have it."""
    found: dict[str, list[str]] = {}
    for name, record in zip(names, records, strict=True):
        for problem in record.problems:
            found.setdefault(problem, []).append(name)
    more = {text: len(having) - MOST_NAMES for text, having in found.items()}
    ends = {text: f" and {count} more" if count > 0 else "" for text, count in more.items()}
    return [f"{'; '.join(having[:MOST_NAMES])}{ends[text]}: {text}" for text, having in found.items()]


def render(template: str, **values: Any) -> str:
    """Fill a template in; every text is escaped."""
    environment = Environment(
        loader=PackageLoader("dither.engine.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"figure": format_metric, "short": format_value, "marks": line_classes}
    return environment.get_template(template).render(**values)


def _at_a_glance(record: RunRecord) -> list[str]:
    """Return how far the run is, how it did at its best, how fast and how large it was."""
    train, evaluate = _table(record.resolved.get("train")), _table(record.resolved.get("evaluate"))
    step, speed = record.summary.get("step", record.step), record.summary.get("steps_per_second")
    total = _table(record.manifest.get("parameters")).get("total")
    said = [f"step {format_metric(step)} of {format_metric(train.get('steps', '?'))}"] if step is not None else []
    figure, sign = str(evaluate.get("best")), -1 if evaluate.get("better") == "higher" else 1
    points = record.curves.get("valid", {}).get(figure, [])
    best = min(((sign * v, s) for s, v in points if math.isfinite(v)), default=None)
    if best is not None:
        said.append(f"best valid/{figure} {format_metric(sign * best[0])} at step {format_metric(best[1])}")
    said += [f"{speed:.3g} steps per second"] if isinstance(speed, int | float) else []
    return [*said, f"{total:,} parameters"] if isinstance(total, int) else said


def _facts(record: RunRecord) -> dict[str, Any]:
    manifest, summary = record.manifest, record.summary
    git = _table(manifest.get("git"))
    facts: dict[str, Any] = {"directory": record.path, "started": manifest.get("started")}
    if git:
        facts["git"] = f"{git.get('commit')}" + ("" if git.get("clean") else ", with changes that are not committed")
    facts["seed"] = manifest.get("seed")
    facts["step"] = summary.get("step", record.step)
    speed, memory = summary.get("steps_per_second"), summary.get("peak_memory_bytes")
    facts["steps per second"] = f"{speed:.3g}" if isinstance(speed, int | float) else None
    facts["peak memory"] = size(memory) if isinstance(memory, int) else None
    device = summary.get("peak_device_memory_bytes")
    facts["peak memory of the GPU"] = size(device) if isinstance(device, int) else None
    facts["resumed"] = f"{len(_list(manifest.get('resumed')))} times" if manifest.get("resumed") else None
    facts |= {str(key): value for key, value in _table(manifest.get("environment")).items()}
    for name, plugin in _table(manifest.get("plugins")).items():
        known = _table(plugin)
        sha = str(known.get("sha256") or "")[:12]
        facts[f"plugin {name}"] = " ".join(str(word) for word in (known.get("from"), known.get("version"), sha) if word)
    counts = _table(manifest.get("parameters"))
    shown = (f"{name} {count:,}" for name, count in counts.items() if isinstance(count, int))
    facts["parameters"] = ", ".join(shown) or None
    return {key: value for key, value in facts.items() if value not in (None, "")}


def _picture_data(file: PictureFile) -> dict[str, Any]:
    """Return what a template shows: an image as a data address, in which nothing can run; or a text."""
    text = file.content.decode("utf-8", "replace") if file.form == "text/plain" else None
    data = f"data:{file.form};base64,{base64.b64encode(file.content).decode()}"
    return {"name": f"{file.folder}/{file.name}", "text": text, "data": None if text is not None else data}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
