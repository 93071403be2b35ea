"""HTML pages of a run, of several runs, and of a sweep: sections of tables, charts, pictures and texts."""

from __future__ import annotations

import math
import re
import shlex
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write

from ..files.metrics_file import FLOOR, INTERVAL, is_companion_metric, with_interval
from ..runs.progress import HEADLINE
from ..runs.run_directory import flat
from ..sweeps.directory import MARK, PointFolder, SweepDirectory, columns_of, rows_of
from ..sweeps.points import format_value, short_keys
from .run_record import PictureFile, RunRecord, read_run
from .svg import COLOURS, SMOOTHING, curve, line_classes, scatters

__all__ = ["write_report", "write_sweep_page"]

NO_CURVES = "No metric was measured twice."
NO_METRICS = "Nothing has been measured yet."
MANY = 50
"""Most runs that are compared in full: with a column each, all curves and pictures."""
COLUMNS = 8
"""Options and metrics in the table of more runs."""
HIDDEN = ("argv", "parts", "resumed", "sha256")
"""Keys of the manifest that are shown elsewhere, or not at all."""


@dataclass
class Table:
    """Rows of texts, the first of which is a heading."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    numeric: Collection[int] = ()
    wide: bool = False


@dataclass
class Section:
    """A section of a page: a paragraph, a table, charts (name, SVG) that share a legend of lines, pictures by heading.

    `texts` are (summary, text), collapsible, the first one open.
    """

    title: str
    note: str = ""
    table: Table | None = None
    legend: Sequence[str] = ()
    charts: Sequence[tuple[str, str]] = ()
    galleries: Sequence[tuple[str, list[PictureFile]]] = ()
    texts: Sequence[tuple[str, str]] = ()

    @property
    def id(self) -> str:
        return self.title.lower().replace(" ", "-").replace(",", "")


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of a run or sweep, or one that compares several runs; return its path.

    A sweep among several paths stands for the runs of its points, a point for its run. `out` is by
    default report.html in the run or sweep, or comparison.html in the working directory. Refused if
    a path is not a run directory.
    """
    named = list(dict.fromkeys(map(Path, paths)))
    out = Path(out) if out else None
    if len(named) == 1 and (named[0] / MARK).is_file():
        sweep = SweepDirectory.open(named[0])
        return write_sweep_page(sweep, rows_of(sweep), out)
    runs = list(dict.fromkeys(run for path in named for run in _runs(path)))
    records = [read_run(run, len(runs) > MANY) for run in runs]
    if not records:
        raise Refused("no point of these sweeps has started", code="not-a-run")
    single = len(records) == 1
    target = out or (records[0].path / "report.html" if single else Path("comparison.html"))
    page = (
        _run_page(records[0])
        if single
        else (_list_page if len(records) > MANY else _compare_page)(records)
    )
    return _write(target, page)


def write_sweep_page(
    sweep: SweepDirectory, rows: Sequence[dict[str, Any]], path: Path | None = None
) -> Path:
    """Write the page of a sweep, by default report.html in it, and return its path."""
    return _write(path or sweep.path / "report.html", _sweep_page(sweep, rows))


def _runs(path: Path) -> Iterator[Path]:
    if (path / MARK).is_file():
        runs = (point.run_directory() for point in SweepDirectory.open(path).folders())
        yield from (run for run in runs if run is not None)
    else:
        run = PointFolder(path, {}).run_directory() if (path / "point.lock").is_file() else None
        yield run or path


def _write(path: Path, page: str) -> Path:
    if path.is_dir():
        raise Refused(f"{path} is a folder; give the name of a file", code="unwritable-file")
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"cannot write {path}: {error.strerror or error}", code="unwritable-file"
        ) from None
    return path


def render(title: str, sections: Sequence[Section], **values: Any) -> str:
    """Return a page, without empty sections; `values` are subtitle, highlights, problems, problems_title, command."""
    environment = Environment(
        loader=PackageLoader("dither.engine.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["classes"] = line_classes
    shown = [s for s in sections if s.note or s.table or s.charts or s.galleries or s.texts]
    script = environment.get_template("charts.js").render()
    digest = b64encode(sha256(script.encode()).digest()).decode()
    defaults: dict[str, Any] = {"subtitle": "", "highlights": (), "problems": (), "command": ""}
    zoomed = any("data-x" in svg for section in shown for _, svg in section.charts)
    defaults |= {"script": script if zoomed else "", "digest": digest, "smoothing": SMOOTHING}
    defaults |= {
        "problems_title": "Missing or damaged",
        "lines": max((len(s.legend) for s in shown), default=0),
    }
    return environment.get_template("report.html").render(
        title=title, sections=shown, **(defaults | values)
    )


def _run_page(record: RunRecord) -> str:
    components = {
        k.removesuffix(".use"): str(v)
        for k, v in flat(record.resolved).items()
        if k.endswith(".use")
    }
    main = ("task", "process", "model", "loss", "sampler")
    rows = [
        (name, values[0], ", ".join(f"{key} {format_metric(value)}" for key, value in references))
        for name, values, references in metric_rows([record])
    ]
    head = ("metric", "last", "baselines")
    names = record.summary.get("headline")
    chosen = [row for row in rows if isinstance(names, list) and row[0] in names]
    results = (chosen or [row for row in rows if row[2]] or rows)[:HEADLINE]
    charts = charts_of([record], [""])
    legend = str(record.summary.get("legend", ""))
    texts = (
        ("resolved.toml, with every default", record.toml),
        ("experiment.toml, as given", record.given),
    )
    sections = [
        Section("Results", "" if rows else NO_METRICS, Table(results, head, {1}) if rows else None),
        Section("Samples", legend, galleries=[("", record.pictures)])
        if record.pictures
        else Section("Samples"),
        Section("Curves", "" if charts else NO_CURVES, charts=charts),
        Section("All metrics", table=Table(rows, head, {1}) if len(rows) > len(results) else None),
        Section("Run", table=Table(_facts(record))),
        Section("Components", table=Table(list(components.items())) if components else None),
        Section("Configuration", texts=texts),
    ]
    argv = record.manifest.get("argv")
    return render(
        record.name,
        sections,
        subtitle=", ".join(f"{key} {components[key]}" for key in main if key in components),
        highlights=_highlights(record),
        problems=record.problems,
        command=shlex.join(map(str, argv)) if isinstance(argv, list) else "",
    )


def _compare_page(records: Sequence[RunRecord]) -> str:
    names = names_of(records)
    changed = differences(records)
    charts = charts_of(records, names)
    options = (
        Table([[key, *texts] for key, texts in changed], ["option", *names], wide=True)
        if changed
        else None
    )
    rows = [[name, *texts] for name, texts, _ in metric_rows(records)]
    metrics = Table(rows, ["metric", *names], range(1, len(names) + 1), wide=True) if rows else None
    named = list(zip(names, records, strict=True))
    runs = [
        (name, str(record.path), str(record.manifest.get("started", ""))) for name, record in named
    ]
    sections = [
        Section("What differs", "" if changed else "All options are the same.", options),
        Section("Curves", "" if charts else NO_CURVES, legend=names, charts=charts),
        Section("Metrics", "" if metrics else NO_METRICS, metrics),
        Section("Samples", galleries=[(name, r.pictures[:2]) for name, r in named if r.pictures]),
        Section("Runs", table=Table(runs, ("run", "directory", "started"), wide=True)),
    ]
    problems = [f"{name}: {problem}" for name, record in named for problem in record.problems]
    return render(f"{len(records)} runs", sections, problems=problems)


def _list_page(records: Sequence[RunRecord]) -> str:
    """Return the page of many runs: a row for each, and curves of the best."""
    names = names_of(records)
    changed = differences(records)
    metrics = metric_rows(records)
    best = _table(records[0].resolved.get("evaluate")).get("best", "loss")
    metrics.sort(key=lambda row: row[0] != f"valid/{best}")
    columns = [*changed[:COLUMNS], *((name, texts) for name, texts, _ in metrics[:COLUMNS])]
    rows = [(str(record.path), name) for name, record in zip(names, records, strict=True)]
    cells = [(*row, *(texts[i] for _, texts in columns)) for i, row in enumerate(rows)]
    sign = -1 if _table(records[0].resolved.get("evaluate")).get("better") == "higher" else 1
    last = [record.last().get(f"valid/{best}", math.nan) * sign for record in records]
    order = sorted(range(len(records)), key=lambda i: (not math.isfinite(last[i]), last[i]))[
        :COLOURS
    ]
    shown = [read_run(records[i].path) for i in order]
    labels = [names[i] for i in order]
    head = ("directory", "run", *(name for name, _ in columns))
    numeric = range(len(head) - len(metrics[:COLUMNS]), len(head))
    note = f"{len(changed)} options differ; columns are the first {COLUMNS} of them and of {len(metrics)} metrics."
    charts = charts_of(shown, labels)
    sections = [
        Section("Runs", note, table=Table(cells, head, numeric, wide=True)),
        Section(
            "Curves", f"The best {len(shown)} runs by valid/{best}.", legend=labels, charts=charts
        ),
    ]
    problems = [
        f"{name}: {p}" for name, record in zip(names, records, strict=True) for p in record.problems
    ]
    more = [f"and {len(problems) - MANY} more"] if len(problems) > MANY else []
    return render(f"{len(records)} runs", sections, problems=[*problems[:MANY], *more])


def _sweep_page(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of a sweep, given the rows of its points, best first."""
    keys, metrics = columns_of(rows)
    search = sweep.facts.get("search") or {}
    metric = str(search.get("metric", "valid/loss"))
    records: dict[str, RunRecord] = {}
    for row in rows:
        if row["run"] is not None and len(records) < COLOURS:
            with suppress(Refused):  # its row has the reason
                record = read_run(sweep.path / row["name"] / row["run"])
                records |= {row["name"]: record} if record.curves else {}
    states = [row["state"] for row in rows]
    subtitle = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if search:
        subtitle += f"; {search.get('direction')} {metric} with {search.get('sampler')}"
    head = ("point", "state", "step", *keys, *metrics)
    table = Table(
        [_cells(row, keys, metrics) for row in rows],
        head,
        {2, *range(3 + len(keys), len(head))},
        wide=True,
    )
    charts = charts_of(list(records.values()), list(records)) if records else []
    plots = scatters(rows, keys, metric)
    sections = [
        Section("Points, best first", table=table),
        Section("Values", f"{metric} over each key." if plots else "", charts=plots),
        Section(
            "Curves",
            f"The best {len(records)} points." if charts else "",
            legend=list(records),
            charts=charts,
        ),
    ]
    return render(
        f"sweep {sweep.facts.get('name', sweep.path.name)}",
        sections,
        subtitle=subtitle,
        problems=[
            f"{row['name']}: {row['reason']}" for row in rows if row["state"] in ("failed", "lost")
        ],
        problems_title="Failed or lost",
        command=shlex.join(map(str, sweep.facts.get("argv") or [])),
    )


def _cells(row: dict[str, Any], keys: Sequence[str], metrics: Sequence[str]) -> list[str]:
    values = [format_value(row["values"][key]) if key in row["values"] else "" for key in keys]
    numbers = [format_metric(row["figures"].get(name)) for name in metrics]
    return [
        row["name"].partition("-")[0],
        row["state"],
        format_metric(row["step"]),
        *values,
        *numbers,
    ]


def _highlights(record: RunRecord) -> list[str]:
    """Return progress, best metric, speed and size."""
    train = _table(record.resolved.get("train"))
    evaluate = _table(record.resolved.get("evaluate"))
    step = record.summary.get("step", record.step)
    speed = record.summary.get("steps_per_second")
    total = _table(record.manifest.get("parameters")).get("total")
    texts = (
        [f"step {format_metric(step)} of {format_metric(train.get('steps', '?'))}"]
        if step is not None
        else []
    )
    metric = str(evaluate.get("best"))
    sign = -1 if evaluate.get("better") == "higher" else 1
    points = record.curves.get("valid", {}).get(metric, [])
    best = min(((sign * value, at) for at, value in points if math.isfinite(value)), default=None)
    if best is not None:
        texts.append(
            f"best valid/{metric} {format_metric(sign * best[0])} at step {format_metric(best[1])}"
        )
    texts += [f"{speed:.3g} steps per second"] if isinstance(speed, int | float) else []
    return [*texts, f"{total:,} parameters"] if isinstance(total, int) else texts


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    memory = {key: value for key, value in record.summary.items() if key.endswith("memory_bytes")}
    manifest = {key: value for key, value in record.manifest.items() if key not in HIDDEN}
    facts = {"directory": record.path, **flat(manifest), **memory}
    return [
        (key, format_metric(value)) for key, value in facts.items() if value not in (None, "", [])
    ]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


MetricRow = tuple[str, list[str], list[tuple[str, float]]]
"""kind/name, the last value in each run, and baselines."""
COMPONENT = re.compile(r"^.*/|@\d+$")
"""What a pinned name has besides the name of the component."""
MAX_KEYS = 3
"""Differing options that name a run."""
MAX_CHARTS = 60
"""Charts on a page; the table has the last value of every metric."""


def metric_rows(records: Sequence[RunRecord]) -> list[MetricRow]:
    """Return the last value of every metric in every run: validation first, training last."""
    lasts = [record.last() for record in records]
    names = dict.fromkeys(name for last in lasts for name in last)
    order = sorted(
        names, key=lambda name: (name.startswith("train/"), not name.startswith("valid/"))
    )
    rows = []
    for name in [name for name in order if not is_companion_metric(name, names)]:
        texts = [with_interval(name, last, 5) if name in last else "" for last in lasts]
        floor = [("floor", lasts[0][name + FLOOR])] if name + FLOOR in lasts[0] else []
        references = [*floor, *records[0].baselines(*name.split("/", 1)).items()]
        rows.append((name, texts, references if len(records) == 1 else []))
    return rows


def format_metric(value: Any) -> str:
    """Format a metric with five digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}"


def charts_of(records: Sequence[RunRecord], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, SVG) for every metric with at least two points in some run; names in the SVG are escaped."""
    keys = dict.fromkeys(
        f"{kind}/{name}" for record in records for kind, m in record.curves.items() for name in m
    )
    shown = sorted(
        (key for key in keys if not is_companion_metric(key, keys)),
        key=lambda key: (not key.endswith("/loss"), key.startswith("train/")),
    )
    charts = [(key, _chart(records, labels, *key.split("/", 1))) for key in shown]
    return [chart for chart in charts if chart[1]][:MAX_CHARTS]


def _chart(
    records: Sequence[RunRecord],
    labels: Sequence[str],
    kind: str,
    metric: str,
) -> str:
    points = [record.curves.get(kind, {}).get(metric, []) for record in records]
    single = len(records) == 1
    lines = [f"{kind}/{metric}" if single else f"{label} {kind}/{metric}" for label in labels]
    halves = (record.curves.get(kind, {}).get(metric + INTERVAL, []) for record in records)
    levels = records[0].baselines(kind, metric) if single else {}
    intervals = dict(zip(lines, halves, strict=True))
    if max(map(len, points), default=0) < 2:
        return ""
    return curve(dict(zip(lines, points, strict=True)), baselines=levels, intervals=intervals)


def differences(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Return every option that differs, with its value in each run, or an empty text where it is missing."""
    configs = [flat(record.resolved) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = ((key, [config.get(key) for config in configs]) for key in keys)
    changed = (
        (key, found) for key, found in values if any(value != found[0] for value in found[1:])
    )
    return [
        (key, ["" if value is None else format_value(value) or '""' for value in found])
        for key, found in changed
    ]


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Return unique names of runs: their own, or the options that differ, or their directories."""
    names = [record.name for record in records]
    changed = sorted(
        differences(records), key=lambda row: not row[0].endswith(".use")
    )  # components first, by name
    keys = short_keys([tuple(key.split(".")) for key, _ in changed])
    columns = [
        [
            COMPONENT.sub("", value) if key.endswith("use") else f"{key}={value or 'none'}"
            for value in values
        ]
        for key, (_, values) in zip(keys, changed, strict=True)
    ]
    by_options = [", ".join(words) for words in zip(*columns[:MAX_KEYS], strict=True)]
    by_folder = [
        f"{name} {record.path.resolve().name[-6:]}"
        for name, record in zip(names, records, strict=True)
    ]
    for candidates in (names, by_options, by_folder):
        if len(set(candidates)) == len(records):
            return candidates
    return [f"{number} {name}" for number, name in enumerate(by_folder, 1)]
