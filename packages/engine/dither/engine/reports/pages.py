"""HTML pages of a run, of several runs, and of a sweep: tables, charts, pictures and texts.

In the order of reading: `write_report` chooses one of four pages, each page is a list of sections,
and `render` fills the template with them.
"""

from __future__ import annotations

import math
import re
import shlex
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write, output_file
from dither.registry.files.lookup import is_file
from dither.registry.files.write_errors import unwritable

from ..files.metrics_file import (
    FLOOR,
    INTERVAL,
    decimals,
    is_companion_metric,
    with_interval,
)
from ..runs.progress import HEADLINE
from ..runs.run_directory import flat
from ..sweeps.directory import (
    MARK,
    PointFolder,
    SweepDirectory,
    columns_of,
    count_states,
    rows_of,
)
from ..sweeps.points import differing_keys, format_value, short_keys
from .run_record import PictureFile, RunRecord, read_run
from .svg import COLOURS, SMOOTHING, curve, line_classes, scatters

__all__ = [
    "Page",
    "Section",
    "Table",
    "format_metric",
    "of_sweep",
    "write_page",
    "write_report",
    "write_sweep_page",
]

NO_CURVES = "No metric was measured twice."
NO_METRICS = "Nothing has been measured yet."
MANY = 50
"""Most runs that are compared in full: with a column each, all curves and pictures."""
COLUMNS = 8
"""Options and metrics in the table of more runs."""
HIDDEN = ("argv", "parts", "resumed", "sha256")
"""Keys of the manifest that are shown elsewhere, or not at all."""
MAIN = ("task", "process", "model", "loss", "sampler")
"""Components in the subtitle of a run."""
COMPONENT = re.compile(r"^.*/|@\d+$")
"""Provider and revision of a pinned name, which are left out."""
MAX_KEYS = 3
"""Differing options that name a run."""
MAX_CHARTS = 60
"""Charts on a page; the table has the last value of every metric."""


@dataclass
class Table:
    """Rows of texts, the first of which is a heading; `numeric` are the columns of numbers."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    numeric: Collection[int] = ()
    wide: bool = False


@dataclass
class Section:
    """A section of a page: a paragraph, a table, charts, pictures and texts, each if there is one.

    Attributes:
        legend: Names of the lines of all charts.
        charts: Name and SVG of each chart.
        galleries: Pictures by heading.
        texts: Summary and text; collapsible, the first one open.
        otherwise: The paragraph if there is nothing else; without one, the section is left out.
    """

    title: str
    note: str = ""
    table: Table | None = None
    legend: Sequence[str] = ()
    charts: Sequence[tuple[str, str]] = ()
    galleries: Sequence[tuple[str, list[PictureFile]]] = ()
    texts: Sequence[tuple[str, str]] = ()
    otherwise: str = ""

    @property
    def id(self) -> str:
        return self.title.lower().replace(" ", "-").replace(",", "")

    @property
    def filled(self) -> bool:
        has_pictures = any(pictures for _, pictures in self.galleries)
        has_rows = self.table is not None and len(self.table.rows) > 0
        return has_rows or has_pictures or bool(self.charts or self.texts)


@dataclass
class Page:
    """A page; `command` is the command line that made the run or sweep."""

    title: str
    sections: Sequence[Section]
    subtitle: str = ""
    highlights: Sequence[str] = ()
    problems: Sequence[str] = ()
    problems_title: str = "Missing or damaged"
    command: str = ""


def write_report(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of a run or sweep, or one that compares several runs; return its path.

    A sweep among several paths is replaced by the runs of its points, a point by its run. `out` is by
    default report.html in the run or sweep, or comparison.html in the working directory.

    Raises:
        Refused: A path is not a run directory.
    """
    # A run that is given twice is one column.
    folders = list(dict.fromkeys(map(Path, paths)))
    target = Path(out) if out else None
    if len(folders) == 1 and is_file(folders[0] / MARK):
        sweep = SweepDirectory.open(folders[0])
        return write_sweep_page(sweep, rows_of(sweep), target)

    runs: dict[Path, None] = {}
    for folder in folders:
        runs |= dict.fromkeys(_run_directories(folder))
    # The page of many runs shows curves of the best only.
    records = [read_run(run, brief=len(runs) > MANY) for run in runs]
    if not records:
        raise Refused("no point of these sweeps has started", code="not-a-run")

    if len(records) == 1:
        return write_page(
            target or records[0].path / "report.html", run_page(records[0])
        )
    page = compare_page(records) if len(records) <= MANY else list_page(records)
    return write_page(target or Path("comparison.html"), page)


def write_sweep_page(
    sweep: SweepDirectory, rows: Sequence[dict[str, Any]], path: Path | None = None
) -> Path:
    """Write the page of a sweep, by default report.html in it, and return its path."""
    return write_page(path or sweep.path / "report.html", sweep_page(sweep, rows))


def _run_directories(folder: Path) -> Iterable[Path]:
    if is_file(folder / MARK):
        points = SweepDirectory.open(folder).folders()
        return filter(None, (point.run_directory() for point in points))
    run = None
    # A point of a sweep contains its runs.
    if is_file(folder / "point.lock"):
        run = PointFolder(folder, {}).run_directory()
    return [run or folder]


def write_page(path: Path, page: Page) -> Path:
    """Write a page atomically; Refused if that is impossible."""
    try:
        with atomic_write(output_file(path)) as temporary:
            temporary.write_text(render(page), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None
    return path


def render(page: Page) -> str:
    """Return the HTML of a page, without empty sections."""
    environment = Environment(
        loader=PackageLoader("dither.engine.reports"),
        # Names and texts of runs are data.
        autoescape=True,
        # A misspelled name in a template is an error, not an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["classes"] = line_classes
    sections = [
        section for section in page.sections if section.filled or section.otherwise
    ]

    # Only curves can be smoothed and zoomed; the policy of the page allows this script alone.
    script = environment.get_template("charts.js").render()
    digest = b64encode(sha256(script.encode()).digest()).decode()
    charts = chain.from_iterable(section.charts for section in sections)
    if not any("data-x" in svg for _, svg in charts):
        script = ""

    return environment.get_template("report.html").render(
        page=page,
        sections=sections,
        script=script,
        digest=digest,
        smoothing=SMOOTHING,
        lines=max((len(section.legend) for section in sections), default=0),
    )


def run_page(record: RunRecord) -> Page:
    """Return the page of one run: results, samples, curves, and everything that made it."""
    head = ("metric", "last", "baselines")
    rows = []
    for name, values, references in metric_rows([record]):
        places = decimals([value for _, value in references], 5)
        texts = [f"{key} {value:,.{places}f}" for key, value in references]
        rows.append((name, values[0], ", ".join(texts)))
    results = _headline(record, rows)
    # Of few metrics all are results.
    others = rows if len(rows) > len(results) else []
    legend = str(record.summary.get("legend", ""))

    components: dict[str, str] = {}
    for key, value in flat(record.resolved).items():
        if key.endswith(".use"):
            components[key.removesuffix(".use")] = str(value)

    files = [
        ("resolved.toml, with every default", record.toml),
        ("experiment.toml, as given", record.given),
    ]
    sections = [
        Section("Results", table=Table(results, head, {1}), otherwise=NO_METRICS),
        Section("Samples", legend, galleries=[("", record.pictures)]),
        Section("Curves", charts=charts_of([record], [""]), otherwise=NO_CURVES),
        Section("All metrics", table=Table(others, head, {1})),
        Section("Run", table=Table(_facts(record))),
        Section("Components", table=Table(list(components.items()))),
        Section("Configuration", texts=files),
    ]

    argv = record.manifest.get("argv")
    named = [f"{key} {components[key]}" for key in MAIN if key in components]
    return Page(
        record.name,
        sections,
        subtitle=", ".join(named),
        highlights=_highlights(record),
        problems=record.problems,
        command=shlex.join(map(str, argv)) if isinstance(argv, list) else "",
    )


def _headline(
    record: RunRecord, rows: Sequence[tuple[str, str, str]]
) -> Sequence[tuple[str, ...]]:
    """Return the metrics that the task names; else those with baselines; else the first ones."""
    names = record.summary.get("headline")
    named = [row for row in rows if isinstance(names, list) and row[0] in names]
    compared = [row for row in rows if row[2]]
    return (named or compared or rows)[:HEADLINE]


def _highlights(record: RunRecord) -> list[str]:
    """Return progress, best metric, speed and size."""
    texts = []
    step = record.summary.get("step", record.step)
    if step is not None:
        steps = _table(record.resolved.get("train")).get("steps", "?")
        texts.append(f"step {format_metric(step)} of {format_metric(steps)}")

    metric, sign = _best_metric(record)
    points = record.curves.get("valid", {}).get(metric, [])
    finite = [(sign * value, step) for step, value in points if math.isfinite(value)]
    if finite:
        value, best_step = min(finite)
        best = f"best valid/{metric} {format_metric(sign * value)}"
        texts.append(f"{best} at step {format_metric(best_step)}")

    speed = record.summary.get("steps_per_second")
    if isinstance(speed, int | float):
        texts.append(f"{speed:.3g} steps per second")
    parameters = _table(record.manifest.get("parameters")).get("total")
    if isinstance(parameters, int):
        texts.append(f"{parameters:,} parameters")
    return texts


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    facts: dict[str, Any] = {"directory": record.path}
    facts |= flat(
        {key: value for key, value in record.manifest.items() if key not in HIDDEN}
    )
    for key, value in record.summary.items():
        if key.endswith("memory_bytes"):
            facts[key] = value
    return [
        (key, format_metric(value))
        for key, value in facts.items()
        if value not in (None, "", [])
    ]


def compare_page(records: Sequence[RunRecord]) -> Page:
    """Return the page of several runs: differing options, and metrics in a column for each run."""
    names = names_of(records)
    named = list(zip(names, records, strict=True))
    options = [[key, *texts] for key, texts in differences(records)]
    metrics = [[name, *texts] for name, texts, _ in metric_rows(records)]
    numeric = range(1, len(names) + 1)
    runs = []
    galleries = []
    problems = []
    for name, record in named:
        runs.append((name, str(record.path), str(record.manifest.get("started", ""))))
        problems += [f"{name}: {problem}" for problem in record.problems]
        if record.pictures:
            galleries.append((name, record.pictures[:2]))

    sections = [
        Section(
            "What differs",
            table=Table(options, ["option", *names], wide=True),
            otherwise="All options are the same.",
        ),
        Section(
            "Curves",
            legend=names,
            charts=charts_of(records, names),
            otherwise=NO_CURVES,
        ),
        Section(
            "Metrics",
            table=Table(metrics, ["metric", *names], numeric, wide=True),
            otherwise=NO_METRICS,
        ),
        Section("Samples", galleries=galleries),
        Section("Runs", table=Table(runs, ("run", "directory", "started"), wide=True)),
    ]
    return Page(f"{len(records)} runs", sections, problems=problems)


def list_page(records: Sequence[RunRecord]) -> Page:
    """Return the page of many runs: a row for each, and curves of the best."""
    names = names_of(records)
    named = list(zip(names, records, strict=True))
    metric, sign = _best_metric(records[0])
    best = f"valid/{metric}"

    # The metric that chooses checkpoints is the first column of metrics.
    changed = differences(records)
    metrics = [(name, texts) for name, texts, _ in metric_rows(records)]
    metrics.sort(key=lambda column: column[0] != best)
    columns = [*changed[:COLUMNS], *metrics[:COLUMNS]]
    head = ("directory", "run", *(name for name, _ in columns))
    numeric = range(len(head) - len(metrics[:COLUMNS]), len(head))
    cells = []
    for index, (name, record) in enumerate(named):
        cells.append((str(record.path), name, *(texts[index] for _, texts in columns)))

    # Records are brief: those with curves are read again.
    last = [sign * record.last().get(best, math.nan) for record in records]
    order = sorted(range(len(records)), key=lambda index: _finite_first(last[index]))
    order = order[:COLOURS]
    labels = [names[index] for index in order]
    charts = charts_of([read_run(records[index].path) for index in order], labels)

    note = f"{len(changed)} options differ; columns are the first {COLUMNS} of them"
    note += f" and of {len(metrics)} metrics."
    shown = f"The best {len(order)} runs by {best}."
    sections = [
        Section("Runs", note, table=Table(cells, head, numeric, wide=True)),
        Section("Curves", shown, legend=labels, charts=charts, otherwise=NO_CURVES),
    ]
    problems: list[str] = []
    for name, record in named:
        problems += [f"{name}: {problem}" for problem in record.problems]
    if len(problems) > MANY:
        problems[MANY:] = [f"and {len(problems) - MANY} more"]
    return Page(f"{len(records)} runs", sections, problems=problems)


def _best_metric(record: RunRecord) -> tuple[str, int]:
    """Return the metric that chooses checkpoints, and -1 if larger values are better, else 1."""
    evaluate = _table(record.resolved.get("evaluate"))
    sign = -1 if evaluate.get("better") == "higher" else 1
    return str(evaluate.get("best", "loss")), sign


def _finite_first(value: float) -> tuple[bool, float]:
    return not math.isfinite(value), value


def sweep_page(sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> Page:
    """Return the page of a sweep, given the rows of its points, best first."""
    keys, metrics = columns_of(rows)
    search = sweep.facts.get("search") or {}
    metric = str(search.get("metric", "valid/loss"))
    head = ("point", "state", "step", *keys, *metrics)
    cells = [_cells(row, keys, metrics) for row in rows]
    numeric = {2, *range(3 + len(keys), len(head))}
    plots = scatters(rows, keys, metric)

    records: dict[str, RunRecord] = {}
    for row in rows:
        if row["run"] is not None and len(records) < COLOURS:
            # A run that cannot be read has its reason in the table.
            with suppress(Refused):
                record = read_run(sweep.path / row["name"] / row["run"])
                if record.curves:
                    records[row["name"]] = record
    charts = charts_of(list(records.values()), list(records))

    sections = [
        Section("Points, best first", table=Table(cells, head, numeric, wide=True)),
        Section("Values", f"{metric} over each key.", charts=plots),
        Section(
            "Curves",
            f"The best {len(records)} points.",
            legend=list(records),
            charts=charts,
        ),
    ]
    subtitle = count_states(rows)
    if search:
        subtitle += f"; {search.get('direction')} {metric} with {search.get('sampler')}"
    title = f"sweep {sweep.facts.get('name', sweep.path.name)}"
    return of_sweep(Page(title, sections, subtitle=subtitle), sweep, rows)


def of_sweep(page: Page, sweep: SweepDirectory, rows: Sequence[dict[str, Any]]) -> Page:
    """Return a page with the command of a sweep, and the points that failed."""
    failed = [row for row in rows if row["state"] in ("failed", "lost")]
    return replace(
        page,
        problems=[f"{row['name']}: {row['reason']}" for row in failed],
        problems_title="Failed or lost",
        command=shlex.join(map(str, sweep.facts.get("argv") or [])),
    )


def _cells(
    row: dict[str, Any], keys: Sequence[str], metrics: Sequence[str]
) -> list[str]:
    cells = [row["name"].partition("-")[0], row["state"], format_metric(row["step"])]
    for key in keys:
        cells.append(format_value(row["values"][key]) if key in row["values"] else "")
    return cells + [format_metric(row["metrics"].get(name)) for name in metrics]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


MetricRow = tuple[str, list[str], list[tuple[str, float]]]
"""kind/name, the last value in each run, and baselines."""


def metric_rows(records: Sequence[RunRecord]) -> list[MetricRow]:
    """Return the last value of every metric in every run: validation first, training last."""
    lasts = [record.last() for record in records]
    names = list(dict.fromkeys(chain.from_iterable(lasts)))
    names.sort(
        key=lambda name: (name.startswith("train/"), not name.startswith("valid/"))
    )
    rows: list[MetricRow] = []
    for name in names:
        if is_companion_metric(name, names):
            continue
        texts = [with_interval(name, last, 5) if name in last else "" for last in lasts]
        references: list[tuple[str, float]] = []
        # Runs that are compared may have other data, and so other baselines.
        if len(records) == 1:
            if name + FLOOR in lasts[0]:
                references.append(("floor", lasts[0][name + FLOOR]))
            kind, _, metric = name.partition("/")
            references += records[0].baselines(kind, metric).items()
        rows.append((name, texts, references))
    return rows


def format_metric(value: Any) -> str:
    """Format a metric with five digits."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}"


def charts_of(
    records: Sequence[RunRecord], labels: Sequence[str]
) -> list[tuple[str, str]]:
    """Return name and SVG for every metric with two points or more in some run."""
    keys: dict[str, None] = {}
    for record in records:
        for kind, curves in record.curves.items():
            keys |= dict.fromkeys(f"{kind}/{name}" for name in curves)
    names = [key for key in keys if not is_companion_metric(key, keys)]
    names.sort(key=lambda key: (not key.endswith("/loss"), key.startswith("train/")))

    charts = ((name, _chart(records, labels, name)) for name in names)
    return [(name, svg) for name, svg in charts if svg][:MAX_CHARTS]


def _chart(records: Sequence[RunRecord], labels: Sequence[str], name: str) -> str:
    kind, _, metric = name.partition("/")
    lines = {}
    intervals = {}
    baselines: Mapping[str, float] = {}
    for label, record in zip(labels, records, strict=True):
        line = f"{label} {name}".lstrip()
        curves = record.curves.get(kind, {})
        lines[line] = curves.get(metric, [])
        intervals[line] = curves.get(metric + INTERVAL, [])
        if len(records) == 1:
            baselines = record.baselines(kind, metric)
    if max(map(len, lines.values())) < 2:
        return ""
    return curve(lines, baselines=baselines, intervals=intervals)


def differences(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Return every option that differs, with its value in each run; empty where it is missing."""
    configs = [flat(record.resolved) for record in records]
    return [
        (key, [_option(config.get(key)) for config in configs])
        for key in differing_keys(configs)
    ]


def _option(value: Any) -> str:
    if value is None:
        return ""
    return format_value(value) or '""'


def names_of(records: Sequence[RunRecord]) -> list[str]:
    """Return unique names of runs: their own, or the options that differ, or their directories."""
    names = [record.name for record in records]
    if len(set(names)) == len(records):
        return names

    # Components first, by name: they say more than numbers.
    changed = sorted(differences(records), key=lambda row: not row[0].endswith(".use"))
    keys = short_keys([tuple(key.split(".")) for key, _ in changed])
    words: list[list[str]] = [[] for _ in records]
    for key, (_, values) in list(zip(keys, changed, strict=True))[:MAX_KEYS]:
        for run_words, value in zip(words, values, strict=True):
            if key.endswith("use"):
                run_words.append(COMPONENT.sub("", value))
            else:
                run_words.append(f"{key}={value or 'none'}")
    by_options = [", ".join(run_words) for run_words in words]
    # Runs of equal options differ by their directories only.
    if len(set(by_options)) == len(records):
        return by_options

    by_folder = []
    # The random part of the name of a directory.
    for name, record in zip(names, records, strict=True):
        by_folder.append(f"{name} {record.path.resolve().name[-6:]}")
    if len(set(by_folder)) == len(records):
        return by_folder
    return [f"{number} {name}" for number, name in enumerate(by_folder, 1)]
