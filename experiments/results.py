"""Measure the quick runs over seeds and kinds of arithmetic; write their tables.

    python -m experiments.results                       # run what is missing, about an hour, then write
    python -m experiments.results --seeds 1 --only dna_sequence/quick
    python -m experiments.results --write               # write the tables from what has been measured

Each run is one line of docs/quick_runs.jsonl. A run whose experiment file has changed since counts
as missing, so that the command can be stopped and repeated. The tables stand in README.md, in
docs/results.md and in the head of each experiment file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

import dither
from dither.engine import load_experiment
from dither.engine.sampling.samples import make_samples

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "quick_runs.jsonl"
START = "<!-- quick runs: python -m experiments.results --write -->"
END = "<!-- end of quick runs -->"

ARITHMETIC = {
    "1 thread": ({"OMP_NUM_THREADS": "1"}, 1),
    "2 threads": ({"OMP_NUM_THREADS": "2"}, 2),
    "AVX2": ({"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"}, 1),
}
"""Environment and threads of each kind: rounding differs between them."""

ORDERED = 'sampler={ use = "ordered", by = "entropy", temperature = 0.8 }'
DRAWN = 256


@dataclass(frozen=True)
class Metric:
    """A metric of a quick run, and the baselines that its table names.

    Attributes:
        split: "valid" or "sample".
        name: Key in summary.json.
        label: Words for it in a table.
        baselines: Their keys in summary.json, after `name/`.
        percent: Whether the value is a share.
        sampler: A sampler other than that of the file, with which `DRAWN` samples are drawn.
    """

    split: str
    name: str
    label: str
    baselines: tuple[str, ...]
    percent: bool = False
    sampler: str | None = None

    @property
    def key(self) -> str:
        """Its key in a row of the file of results."""
        return self.name if self.sampler is None else f"{self.name} {self.sampler}"


QUICK = {
    "bubble_diagram/quick": (
        Metric("valid", "nats_per_graph", "nats per graph", ("unigram", "uniform")),
        Metric("sample", "level_5", "samples at level 5", ("shuffled",), percent=True),
        Metric(
            "sample",
            "level_5",
            f"the same with `{ORDERED}`",
            ("shuffled",),
            percent=True,
            sampler=ORDERED,
        ),
    ),
    "get_region/quick": (
        Metric(
            "valid",
            "accessibility_auc",
            "AUC of masked accessibility",
            ("boosting", "logistic"),
        ),
        Metric(
            "valid",
            "accessibility_auprc",
            "average precision",
            ("boosting", "logistic"),
        ),
        Metric(
            "valid", "accessibility_mse", "mean squared error", ("boosting", "ridge")
        ),
        Metric("valid", "accessibility_r2", "R2", ("boosting", "ridge")),
    ),
    "language_model/quick": (
        Metric(
            "valid",
            "bits_per_char",
            "bits per character",
            ("unigram", "2-gram", "3-gram", "4-gram", "5-gram"),
        ),
    ),
    "language_model/autoregressive": (
        Metric("valid", "bits_per_char", "bits per character", ("unigram", "uniform")),
    ),
    "language_model/attention": (
        Metric("valid", "bits_per_char", "bits per character", ("unigram", "uniform")),
    ),
    "images/digits": (
        Metric("sample", "frechet", "Frechet distance", ("floor",)),
        Metric(
            "sample", "accuracy", "accuracy of a classifier", ("floor",), percent=True
        ),
    ),
    "dna_sequence/quick": (
        Metric(
            "valid", "nats_per_base", "nats per base", ("markov", "uniform", "truth")
        ),
    ),
}

FURTHER = {
    "bubble_diagram/small": (
        Metric("valid", "nats_per_graph", "nats per graph", ("unigram", "uniform")),
        Metric("sample", "level_5", "samples at level 5", ("shuffled",), percent=True),
        Metric("sample", "level_2", "samples at level 2", (), percent=True),
        Metric("sample", "unique", "unique samples", (), percent=True),
    ),
    "bubble_diagram/outline": (
        Metric("valid", "nats_per_graph", "nats per graph", ("unigram", "uniform")),
        Metric("sample", "level_5", "samples at level 5", ("shuffled",), percent=True),
        Metric("sample", "outline_iou", "IoU of drawn plans with their outline", ()),
    ),
}
"""Experiments that are no quick runs, which run only if `--only` names them; README omits them."""

MEASURED = QUICK | FURTHER


def main() -> None:
    """Run what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="only write the tables")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=MEASURED, default=list(QUICK))
    parser.add_argument(
        "--arithmetic", nargs="+", choices=ARITHMETIC, default=list(ARITHMETIC)
    )
    options = parser.parse_args()
    if not options.write:
        for file in options.only:
            for kind in options.arithmetic:
                for seed in range(options.seeds):
                    _measure(file, kind, seed)
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


def documents() -> dict[Path, str]:
    """Return the text of each file with a table, with what has been measured."""
    recipes = {file: _recipe(file) for file in MEASURED}
    rows = [row for row in _rows() if row["recipe"] == recipes[row["file"]]]
    texts = {}
    for name, links, files in (
        ("README.md", "", QUICK),
        ("docs/results.md", "../", MEASURED),
    ):
        path = ROOT / name
        before, _, rest = path.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        table = "\n".join([START, "", *_table(rows, files, links), "", END])
        texts[path] = before + table + after
    for file in MEASURED:
        path = _path(file)
        measured = [row for row in rows if row["file"] == file]
        texts[path] = _with_head(path.read_text(encoding="utf-8"), file, measured)
    return texts


def _measure(file: str, kind: str, seed: int) -> None:
    """Run an experiment and append its row, unless it is there."""
    key = {"file": file, "recipe": _recipe(file), "arithmetic": kind, "seed": seed}
    if any(key.items() <= row.items() for row in _rows()):
        return

    environment, threads = ARITHMETIC[kind]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.run", str(_path(file))]
        command += [f"seed={seed}", f"train.threads={threads}", "--runs", folder]
        started = time.monotonic()
        before = cpu_seconds_of_children()
        subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        cpu_seconds = cpu_seconds_of_children() - before
        (summary,) = Path(folder).glob("*-*/summary.json")
        results = json.loads(summary.read_text(encoding="utf-8"))
        others = {
            metric.key: _drawn(summary.parent, metric)
            for metric in MEASURED[file]
            if metric.sampler is not None
        }

    row: dict[str, Any] = key | {
        "cpu": processor(),
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "values": others,
        "baselines": {},
    }
    for metric in MEASURED[file]:
        if metric.sampler is None:
            row["values"][metric.key] = results["metrics"][metric.split][metric.name]
        for baseline in metric.baselines:
            name = f"{metric.name}/{baseline}"
            # Noise floors of samples are stored with their kind.
            stored = name if name in results["baselines"] else f"sample {name}"
            row["baselines"][name] = results["baselines"][stored]
    with ROWS.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    sys.stdout.write(f"{file}, {kind}, seed {seed}: {row['values']}\n")
    sys.stdout.flush()


def _drawn(run: Path, metric: Metric) -> float:
    """Return a metric of samples that are drawn from a finished run with another sampler."""
    assert metric.sampler is not None
    system = dither.load(run, overrides=[metric.sampler])
    samples = make_samples(system, DRAWN, seed=0, pictures=False)
    assert samples is not None
    return samples.metrics[metric.name]


def _rows() -> list[dict[str, Any]]:
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def _path(file: str) -> Path:
    return ROOT / "experiments" / f"{file}.toml"


def _recipe(file: str) -> str:
    """Return a hash of all options of an experiment, defaults included."""
    experiment = load_experiment(_path(file)).experiment
    return sha256(experiment.model_dump_json(exclude={"name"}).encode()).hexdigest()[
        :12
    ]


def cpu_seconds_of_children() -> float:
    """Return the CPU time of all processes that this one has started and that have ended."""
    # Only POSIX has this module.
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor() -> str:
    """Return the model of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text(encoding="utf-8"))
        if found is not None:
            return found[1]
    return platform.processor() or platform.machine()


def _table(
    rows: list[dict[str, Any]], files: dict[str, tuple[Metric, ...]], links: str
) -> Iterator[str]:
    """Yield the lines of the table over these files."""
    # Most runs are of one processor, which the heading then states once.
    cpus = ", ".join(_unique(row["cpu"] for row in rows))
    yield f"| | model: mean (smallest to largest) | baselines | runs ({cpus}) |"
    yield "|---|---|---|---|"
    for file, metrics in files.items():
        measured = [row for row in rows if row["file"] == file]
        if not measured:
            continue
        for metric in metrics:
            title = f"[{file}]({links}experiments/{file}.toml), {metric.label}"
            cells = (title, _spread(metric, measured), _baselines(metric, measured))
            yield f"| {' | '.join(cells)} | {_runs(measured)} |"


def _with_head(text: str, file: str, rows: list[dict[str, Any]]) -> str:
    """Return an experiment file with its results as a comment, before the first key."""
    head = ["# Results: not measured since this file was changed."]
    if rows:
        cpus = ", ".join(_unique(row["cpu"] for row in rows))
        head = [f"# Results, mean (smallest to largest) of {_runs(rows)}; {cpus}:"]
        for metric in MEASURED[file]:
            result = f"{metric.label} {_spread(metric, rows)}"
            if metric.baselines:
                result += f"; {_baselines(metric, rows)}"
            head.append(f"# {result}.")
    # From the first line of the results to the last line of the comment.
    written = re.compile(r"^# Result.*\n(#.*\n)*", re.MULTILINE)
    comment = "\n".join(head) + "\n"
    return written.sub(lambda _: comment, text, count=1)


def _spread(metric: Metric, rows: list[dict[str, Any]]) -> str:
    values = [row["values"][metric.key] for row in rows]
    low = _number(min(values), metric)
    high = _number(max(values), metric)
    return f"{_number(mean(values), metric)} ({low} to {high})"


def _baselines(metric: Metric, rows: list[dict[str, Any]]) -> str:
    parts = []
    for name in metric.baselines:
        values = [row["baselines"][f"{metric.name}/{name}"] for row in rows]
        parts.append(f"{name} {_number(mean(values), metric)}")
    return ", ".join(parts)


def _runs(rows: list[dict[str, Any]]) -> str:
    """Return how many runs a result is of, and of which arithmetic, in words."""
    seeds = _unique(row["seed"] for row in rows)
    kinds = _unique(row["arithmetic"] for row in rows)
    return f"{len(seeds)} seeds; {', '.join(kinds)}"


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _number(value: float, metric: Metric) -> str:
    if metric.percent:
        return f"{100 * value:.0f} %"
    return f"{value:.4g}"


if __name__ == "__main__":
    main()
