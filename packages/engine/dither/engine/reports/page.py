"""HTML pages: a title, problems, and sections of tables, charts, pictures and texts, rendered by one template."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write

from ..config.machine_memory import size
from .metrics import charts_of, differences, flat, format_metric, format_toml, metric_rows, names_of
from .run_record import PictureFile, RunRecord
from .svg import line_classes

__all__ = ["Section", "Table", "compare_page", "render", "run_page", "write_page"]

MAX_COLUMNS = 6
"""Runs up to which each is a column of a table; of more, each is a row."""
MAX_NAMES = 3
"""Runs listed with a problem that several have."""
NO_CURVES = "No metric was measured twice."
NO_METRICS = "Nothing has been measured yet."


@dataclass
class Table:
    """Rows of texts, the first of which is a heading; with a `summary` the table can be collapsed."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    numeric: Collection[int] = ()
    wide: bool = False
    summary: str = ""


@dataclass
class Section:
    """A section of a page.

    Attributes:
        title: Heading, also in the table of contents.
        note: A paragraph.
        tables: Tables.
        legend: Names of lines that the charts share.
        charts: (name, SVG).
        galleries: (heading, pictures).
        texts: (summary, text), collapsible, the first one open.
    """

    title: str
    note: str = ""
    tables: Sequence[Table] = ()
    legend: Sequence[str] = ()
    charts: Sequence[tuple[str, str]] = ()
    galleries: Sequence[tuple[str, list[dict[str, Any]]]] = ()
    texts: Sequence[tuple[str, str]] = field(default_factory=tuple)

    @property
    def id(self) -> str:
        """Anchor of the section."""
        return self.title.lower().replace(" ", "-").replace(",", "")


def write_page(path: Path, page: str) -> Path:
    """Write a page atomically.

    Raises:
        Refused: It cannot be written.
    """
    if path.is_dir():
        raise Refused(f"{path} is a folder; give the name of a file", code="unwritable-file")
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror or error}", code="unwritable-file") from None
    return path


def render(title: str, sections: Sequence[Section], **values: Any) -> str:
    """Return a page; every text is escaped.

    Args:
        title: Title of the page.
        sections: Its sections; empty ones are omitted.
        values: subtitle, highlights, problems, problems_title, command.
    """
    environment = Environment(
        loader=PackageLoader("dither.engine.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["classes"] = line_classes
    shown = [s for s in sections if s.note or s.tables or s.charts or s.galleries or s.texts]
    defaults: dict[str, Any] = {"subtitle": "", "highlights": (), "problems": (), "command": ""}
    defaults |= {"problems_title": "Missing or damaged", "lines": max((len(s.legend) for s in shown), default=0)}
    return environment.get_template("report.html").render(title=title, sections=shown, **(defaults | values))


def run_page(record: RunRecord) -> str:
    """Return the page of one run."""
    components = {k.removesuffix(".use"): str(v) for k, v in flat(record.resolved).items() if k.endswith(".use")}
    main = ("task", "process", "model", "loss", "sampler")
    rows = [
        (name, values[0], ", ".join(f"{key} {format_metric(value)}" for key, value in references))
        for name, values, references in metric_rows([record])
    ]
    metrics = [Table(rows, ("metric", "last", "baselines"), {1})] if rows else []
    charts = charts_of([record])
    pictures = [_picture(file) for file in record.pictures]
    texts = (("resolved.toml, with every default", record.toml), ("experiment.toml, as given", record.given))
    sections = [
        Section("Metrics", "" if rows else NO_METRICS, metrics),
        Section("Curves", "" if charts else NO_CURVES, charts=charts),
        Section("Samples", galleries=[("", pictures)] if pictures else ()),
        Section("Run", tables=[Table(_facts(record))]),
        Section("Components", tables=[Table(list(components.items()))] if components else ()),
        Section("Configuration", texts=texts),
    ]
    return render(
        record.name,
        sections,
        subtitle=", ".join(f"{key} {components[key]}" for key in main if key in components),
        highlights=_highlights(record),
        problems=record.problems,
        command=shlex.join(map(str, _list(record.manifest.get("argv")))),
    )


def compare_page(records: Sequence[RunRecord]) -> str:
    """Return the page that compares runs."""
    names = names_of(records)
    changed = [(key, ["" if v is None else format_toml(v) for v in values]) for key, values in differences(records)]
    shared = {key for key, _ in changed if all(key in flat(record.resolved) for record in records)}
    partial = [row for row in changed if row[0] not in shared]
    options = _grid("option", names, [row for row in changed if row[0] in shared])
    options += _grid("option", names, partial, summary="options that only some runs have")
    metrics = _grid("metric", names, [(name, texts) for name, texts, _ in metric_rows(records)], numeric=True)
    charts = charts_of(records, names)
    samples = [(n, [_picture(f) for f in r.pictures[:2]]) for n, r in zip(names, records, strict=True) if r.pictures]
    runs = [(n, str(r.path), str(r.manifest.get("started", ""))) for n, r in zip(names, records, strict=True)]
    sections = [
        Section("What differs", "" if changed else "All options are the same.", options),
        Section("Curves", "" if charts else NO_CURVES, legend=names, charts=charts),
        Section("Metrics", "" if metrics else NO_METRICS, metrics),
        Section("Samples", galleries=samples),
        Section("Runs", tables=[Table(runs, ("run", "directory", "started"), wide=True)]),
    ]
    return render(f"{len(records)} runs", sections, problems=_grouped_problems(records, names))


def _grid(
    corner: str, names: Sequence[str], rows: Sequence[tuple[str, list[str]]], numeric: bool = False, summary: str = ""
) -> list[Table]:
    """Return a table with a column per run, or a row per run if there are many."""
    if not rows:
        return []
    if len(names) <= MAX_COLUMNS:
        head, body = [corner, *names], [[key, *texts] for key, texts in rows]
    else:
        head = ["run", *(key for key, _ in rows)]
        body = [list(row) for row in zip(names, *(texts for _, texts in rows), strict=True)]
    return [Table(body, head, range(1, len(head)) if numeric else (), wide=True, summary=summary)]


def _grouped_problems(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return every problem once, with the runs that have it."""
    found: dict[str, list[str]] = {}
    for name, record in zip(names, records, strict=True):
        for problem in record.problems:
            found.setdefault(problem, []).append(name)
    more = {text: len(runs) - MAX_NAMES for text, runs in found.items()}
    ends = {text: f" and {count} more" if count > 0 else "" for text, count in more.items()}
    return [f"{'; '.join(runs[:MAX_NAMES])}{ends[text]}: {text}" for text, runs in found.items()]


def _highlights(record: RunRecord) -> list[str]:
    """Return progress, best metric, speed and size."""
    train, evaluate = _table(record.resolved.get("train")), _table(record.resolved.get("evaluate"))
    step, speed = record.summary.get("step", record.step), record.summary.get("steps_per_second")
    total = _table(record.manifest.get("parameters")).get("total")
    texts = [f"step {format_metric(step)} of {format_metric(train.get('steps', '?'))}"] if step is not None else []
    metric, sign = str(evaluate.get("best")), -1 if evaluate.get("better") == "higher" else 1
    points = record.curves.get("valid", {}).get(metric, [])
    best = min(((sign * value, at) for at, value in points if math.isfinite(value)), default=None)
    if best is not None:
        texts.append(f"best valid/{metric} {format_metric(sign * best[0])} at step {format_metric(best[1])}")
    texts += [f"{speed:.3g} steps per second"] if isinstance(speed, int | float) else []
    return [*texts, f"{total:,} parameters"] if isinstance(total, int) else texts


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    manifest, summary = record.manifest, record.summary
    git, resumed = _table(manifest.get("git")), _list(manifest.get("resumed"))
    commit = f"{git.get('commit')}" + ("" if git.get("clean") else ", with uncommitted changes") if git else None
    facts: dict[str, Any] = {"directory": record.path, "started": manifest.get("started"), "git": commit}
    facts |= {"seed": manifest.get("seed"), "step": summary.get("step", record.step)}
    speed = summary.get("steps_per_second")
    facts["steps per second"] = f"{speed:.3g}" if isinstance(speed, int | float) else None
    for label, key in (("peak memory", "peak_memory_bytes"), ("peak GPU memory", "peak_device_memory_bytes")):
        count = summary.get(key)
        facts[label] = size(count) if isinstance(count, int) else None
    facts["resumed"] = f"{len(resumed)} times" if resumed else None
    facts |= {str(key): value for key, value in _table(manifest.get("environment")).items()}
    for name, plugin in _table(manifest.get("plugins")).items():
        values = _table(plugin)
        words = (values.get("from"), values.get("version"), str(values.get("sha256") or "")[:12])
        facts[f"plugin {name}"] = " ".join(str(word) for word in words if word)
    counts = _table(manifest.get("parameters")).items()
    facts["parameters"] = ", ".join(f"{name} {count:,}" for name, count in counts if isinstance(count, int))
    return [(key, str(value)) for key, value in facts.items() if value not in (None, "")]


def _picture(file: PictureFile) -> dict[str, Any]:
    """Return a picture for the template: a text, or an image as a data URI, which cannot run scripts."""
    name = f"{file.folder}/{file.name}"
    if file.media_type == "text/plain":
        return {"name": name, "text": file.content.decode("utf-8", "replace"), "data": None}
    return {"name": name, "data": f"data:{file.media_type};base64,{base64.b64encode(file.content).decode()}"}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
