"""Measure the quick runs over five seeds, and write the tables of README and docs/results.md.

    python -m experiments.results            # resumable; runs what experiments/results.json lacks
    python -m experiments.results --tables   # only write the tables again

Every run is a row of experiments/results.json: file, seed, arithmetic, CPU model, metrics. A row is
measured again when its experiment file changes. The seeds vary the data order, the noise and the
initial weights; the data stay.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments/results.json"
SEEDS = range(5)

ARITHMETIC = {
    "1 thread": {"OMP_NUM_THREADS": "1"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "avx2": {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"},
}
"""Environments that round differently: a result must hold in all of them."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a metric of an experiment, and the baselines printed beside it."""

    file: str
    label: str
    metric: str
    digits: int
    baselines: tuple[str, ...]


QUICK = (
    Row(
        "bubble_diagram/quick",
        "floor plans, nats per graph",
        "valid/nats_per_graph",
        2,
        ("unigram", "uniform"),
    ),
    Row(
        "bubble_diagram/quick",
        "floor plans, buildable samples (level 5)",
        "sample/level_5",
        3,
        ("shuffled", "unigram"),
    ),
    Row(
        "get_region/quick",
        "regions, AUC of accessibility",
        "valid/accessibility_auc",
        4,
        ("boosting", "logistic"),
    ),
    Row(
        "language_model/quick",
        "language, bits per character",
        "valid/bits_per_char",
        2,
        ("unigram", "uniform"),
    ),
    Row(
        "dna_sequence/quick",
        "DNA, nats per base",
        "valid/nats_per_base",
        3,
        ("markov", "uniform"),
    ),
)


def main() -> None:
    """Run the missing measurements, then write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tables", action="store_true", help="only write the tables")
    parser.add_argument(
        "--arithmetic", nargs="*", default=list(ARITHMETIC), choices=list(ARITHMETIC)
    )
    parser.add_argument("--only", help="only experiment files whose name contains this")
    options = parser.parse_args()

    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else []
    if not options.tables:
        for file in dict.fromkeys(row.file for row in QUICK):
            if options.only and options.only not in file:
                continue
            for arithmetic in options.arithmetic:
                for seed in SEEDS:
                    measure_once(records, file, seed, arithmetic)

    for page, prefix in ((ROOT / "README.md", ""), (ROOT / "docs/results.md", "../")):
        write_table(page, quick_table(records, prefix))


def measure_once(
    records: list[dict[str, Any]], file: str, seed: int, arithmetic: str
) -> None:
    """Run an experiment unless it was measured, and save the record at once."""
    key = {
        "file": file,
        "seed": seed,
        "arithmetic": arithmetic,
        "content": content_of(file),
    }
    if any(key.items() <= record.items() for record in records):
        return

    # Records of the former content of this file are replaced.
    same = {"file": file, "seed": seed, "arithmetic": arithmetic}
    records[:] = [record for record in records if not same.items() <= record.items()]
    records.append(key | run(file, seed, ARITHMETIC[arithmetic]))
    records.sort(
        key=lambda record: (record["file"], record["arithmetic"], record["seed"])
    )
    RECORDS.write_text(json.dumps(records, indent=1) + "\n")
    sys.stdout.write(
        f"{file} seed {seed}, {arithmetic}: {records[-1]['seconds']:.0f} CPU s\n"
    )
    sys.stdout.flush()


def content_of(file: str) -> str:
    """Return a hash of the settings of an experiment file, without its comments."""
    lines = (ROOT / f"experiments/{file}.toml").read_text().splitlines()
    settings = "\n".join(
        line.partition("  #")[0] for line in lines if not line.startswith("#")
    )
    return hashlib.sha256(settings.encode()).hexdigest()[:12]


def run(file: str, seed: int, environment: dict[str, str]) -> dict[str, Any]:
    """Train, evaluate and sample in a process of its own; return its metrics, CPU seconds and the CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "experiments.run",
            f"experiments/{file}.toml",
            "--runs",
            folder,
        ]
        command += [f"seed={seed}", f"sample.seed={seed}"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        (summary,) = Path(folder).glob("*-*/summary.json")
        content = json.loads(summary.read_text())

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    metrics: dict[str, float] = {}
    for split, values in content["figures"].items():
        metrics |= {f"{split}/{name}": value for name, value in values.items()}
    return {
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "seconds": round(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
        ),
        "metrics": metrics,
        "baselines": content["baselines"],
    }


def cpu_model() -> str:
    """Return the model of the CPU and the best instructions for bfloat16 that it has."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.+)", text)
    instructions = [
        name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in text
    ]
    return f"{model[1] if model else platform.machine()} ({instructions[0] if instructions else 'no avx2'})"


def quick_table(records: list[dict[str, Any]], prefix: str) -> str:
    """Return the table of the quick runs: mean, smallest and largest over seeds and arithmetic."""
    lines = [
        "| | mean | smallest to largest | runs | baselines | CPU s |",
        "|---|---|---|---|---|---|",
    ]
    for row in QUICK:
        found = [record for record in records if record["file"] == row.file]
        if not found:
            continue
        values = [record["metrics"][row.metric] for record in found]
        baselines = []
        name = row.metric.partition("/")[2]
        for baseline in row.baselines:
            value = found[0]["baselines"][f"{name}/{baseline}"]
            baselines.append(f"{baseline} {value:.{row.digits}f}")
        seconds = mean(record["seconds"] for record in found)
        cells = [
            f"[{row.label}]({prefix}experiments/{row.file}.toml)",
            f"**{mean(values):.{row.digits}f}**",
            f"{min(values):.{row.digits}f} to {max(values):.{row.digits}f}",
            str(len(values)),
            ", ".join(baselines),
            f"{seconds:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table(page: Path, table: str) -> None:
    """Replace the table between the markers of a page."""
    text = page.read_text()
    start, end = "<!-- quick runs -->\n", "\n<!-- end -->"
    head, _, rest = text.partition(start)
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{start}\n{table}\n{end}{tail}")


if __name__ == "__main__":
    main()
