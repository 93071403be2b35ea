"""Pages from records: one run, or several beside each other."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dither.registry.problems import Refused
from dither.registry.storage import write_aside

from ..sweep.points import short, short_keys
from .curves import curve
from .gather import PictureFile, RunRecord, gather

__all__ = ["charts_of", "compare_page", "differences", "flat", "render", "run_page", "write_page", "write_report"]

FIRST = ("valid/loss", "train/loss")
"""Curves that come first."""
LAST = ("train/lr", "train/grad_norm", "train/steps_per_second")
"""Curves that come last."""
MOST_KEYS = 3
"""Keys that name a run."""
MOST_CURVES = 60
"""Curves on a page; further figures have their last value in the table."""


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run, or the page that compares several; return where it is.

    Args:
        runs: Run directories.
        out: The file; by default report.html in the run, or comparison.html in the working directory.

    Raises:
        Refused: One is no run directory, or the page cannot be written.
    """
    records = [gather(path) for path in dict.fromkeys(runs)]
    one = len(records) == 1
    target = out or (records[0].path / "report.html" if one else Path("comparison.html"))
    return write_page(target, run_page(records[0]) if one else compare_page(records))


def write_page(path: Path, page: str) -> Path:
    """Write a page whole or not at all.

    Raises:
        Refused: It cannot be written.
    """
    if path.is_dir():
        raise Refused(f"{path} is a folder; give a file for the page")
    try:
        with write_aside(path) as beside:
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
        facts=_facts(record),
        parts=flat_parts(record.resolved),
        figures=_figures([record]),
        baselines=_baselines(record),
        charts=charts_of([record]),
        pictures=[_picture(file) for file in record.pictures],
    )


def compare_page(records: Sequence[RunRecord]) -> str:
    """Return the page that compares runs as HTML."""
    return render(
        "compare.html",
        title=f"{len(records)} runs",
        records=records,
        names=_names(records),
        figures=_figures(records),
        changed=differences(records),
        problems=[
            f"{name}: {text}" for name, record in zip(_names(records), records, strict=True) for text in record.problems
        ],
        charts=charts_of(records),
        pictures=[[_picture(file) for file in record.pictures[:2]] for record in records],
    )


def differences(records: Sequence[RunRecord]) -> list[tuple[str, list[Any]]]:
    """Return every key that runs have otherwise, with its value in each, or None where a run has none."""
    configs = [flat(record.resolved) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = ((key, [config.get(key) for config in configs]) for key in keys)
    return [(key, found) for key, found in values if any(value != found[0] for value in found[1:])]


def render(template: str, **values: Any) -> str:
    """Fill a template in; every text is escaped."""
    environment = Environment(
        loader=PackageLoader("dither.engine.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["figure"] = _number
    environment.filters["short"] = short
    environment.filters["exact"] = lambda value: f"{value:.12g}" if isinstance(value, float) else str(value)
    return environment.get_template(template).render(**values)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return tables inside each other as key -> value."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values


def flat_parts(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return every part of an experiment: key -> pinned name."""
    return {key.removesuffix(".use"): str(value) for key, value in flat(tree).items() if key.endswith(".use")}


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
    facts["peak memory"] = f"{memory / 2**20:,.0f} MiB" if isinstance(memory, int | float) else None
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


def _figures(records: Sequence[RunRecord]) -> list[tuple[str, list[float | None]]]:
    """Return the last value of every figure in every run: evaluations first, training last."""
    lasts = [record.last() for record in records]
    names = dict.fromkeys(name for last in lasts for name in last)
    order = sorted(names, key=lambda name: (name.startswith("train/"), name.partition("/")[0] != "valid"))
    return [(name, [last.get(name) for last in lasts]) for name in order]


def _baselines(record: RunRecord) -> dict[str, dict[str, float]]:
    """Return figure -> name of a baseline -> value."""
    found: dict[str, dict[str, float]] = {}
    for key, value in _table(record.summary.get("baselines")).items():
        figure, _, name = key.partition("/")
        if isinstance(value, int | float):
            found.setdefault(figure, {})[name or figure] = value
    return found


def charts_of(records: Sequence[RunRecord], names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Return name and SVG, in which every name is escaped, of every curve with at least two points in some run."""
    labels = _names(records) if names is None else names
    found = dict.fromkeys((kind, name) for record in records for kind, f in record.curves.items() for name in f)

    def rank(key: tuple[str, str]) -> tuple[int, int]:
        name = "/".join(key)
        if name in FIRST:
            return 0, FIRST.index(name)
        return (2, LAST.index(name)) if name in LAST else (1, name.startswith("train/"))

    charts = []
    for kind, figure in sorted(found, key=rank):
        name = f"{kind}/{figure}"
        all_points = [record.curves.get(kind, {}).get(figure, []) for record in records]
        series = {f"{label} {name}": points for label, points in zip(labels, all_points, strict=True)}
        if len(records) == 1:
            series = {name: all_points[0]}
        if max(map(len, all_points)) < 2:
            continue
        levels = _baselines(records[0]).get(figure, {}) if kind != "train" and len(records) == 1 else {}
        charts.append((name, curve(series, baselines=levels)))
    return [chart for chart in charts[:MOST_CURVES] if chart[1]]


def _names(records: Sequence[RunRecord]) -> list[str]:
    """Return a name for each run: its own; where two have the same, by what differs, or by their directories."""
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return names
    changed = differences(records)
    if 0 < len(changed) <= MOST_KEYS:
        keys = short_keys([tuple(key.split(".")) for key, _ in changed])
        columns = [[f"{key}={_short(v)}" for v in values] for key, (_, values) in zip(keys, changed, strict=True)]
        names = [", ".join(words) for words in zip(*columns, strict=True)]
        if len(set(names)) == len(names):
            return names
    ends = [record.path.resolve().name for record in records]
    return [f"{record.name} {end[-6:]}" for record, end in zip(records, ends, strict=True)]


def _short(value: Any) -> str:
    return "none" if value is None else short(value)


def _picture(file: PictureFile) -> dict[str, Any]:
    """Return what a template shows: an image as a data address, in which nothing can run; or a text."""
    text = file.content.decode("utf-8", "replace") if file.form == "text/plain" else None
    data = f"data:{file.form};base64,{base64.b64encode(file.content).decode()}"
    return {"name": f"{file.folder}/{file.name}", "text": text, "data": None if text is not None else data}


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}"


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
