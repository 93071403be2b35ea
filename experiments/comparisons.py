"""Run the comparisons of docs/results.md and write their table.

    python -m experiments.comparisons --runs compared        # what is missing, about half an hour, then write
    python -m experiments.comparisons --write                # write the table of what has been measured

Each comparison is one command, whose arms stand in docs/comparisons.json. One whose command has changed
counts as missing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .results import ROOT, processor

PAGE = ROOT / "docs" / "results.md"
STORED = ROOT / "docs" / "comparisons.json"
START = "<!-- comparisons: python -m experiments.comparisons --write -->"
END = "<!-- end of comparisons -->"
DITHER = [sys.executable, "-m", "dither.engine.cli"]
KEPT = ("arm", "seeds", "mean", "sd", "difference", "low", "high", "p", "verdict",
        "more_seeds", "steps", "cpu_seconds", "calls")  # fmt: skip
"""Facts of an arm that are stored."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of five seeds an arm.

    Attributes:
        title: Its row in the table.
        metric: What the arms are compared by.
        command: Everything after `dither compare`.
    """

    title: str
    metric: str
    command: str


SHAKESPEARE = (
    "language_model/shakespeare_quick --unset task.ngrams --set sampler=ancestral --set train.steps=200"
    " --set train.lr_schedule.warmup=20 --set evaluate.every=200 --set evaluate.samples=256 --set sample.count=0"
)
COMPARISONS = {
    "process": Comparison(
        "process, Shakespeare",
        "valid/nats_per_token",
        f"{SHAKESPEARE} --over process=absorbing,uniform,marginal --set loss=score-entropy",
    ),
    "loss": Comparison(
        "prediction x loss, absorbing, Shakespeare",
        "valid/nats_per_token",
        f"{SHAKESPEARE} --over process.predict=posterior,score --over loss=masked-ce,score-entropy",
    ),
    "samplers": Comparison(
        "samplers at equal calls, `zoo/bubble-small`",
        "sample/level_5",
        "zoo/bubble-small --metric sample/level_5 --over sampler=ancestral,euler,analytic,ordered"
        " --arm 'predictor-corrector: sampler=predictor-corrector sampler.steps=8' --set sampler.steps=16"
        " --set sample.count=200 --set evaluate.samples=20",
    ),
    "optimizer": Comparison(
        "optimizer, digits",
        "sample/accuracy",
        "images/digits --over train.optimizer=adamw,muon --over train.optimizer.lr=5e-3 --set train.steps=400"
        " --set evaluate.every=400",
    ),
}


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="only write the table")
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    options = parser.parse_args()
    if not options.write:
        if options.runs is None:
            parser.error("--runs FOLDER or --write")
        for name in COMPARISONS:
            _measure(name, options.runs.absolute())
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return docs/results.md with the table of what has been measured."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    return before + "\n".join([START, "", *_table(_stored()), "", END]) + after


def _measure(name: str, runs: Path) -> None:
    """Run a comparison and store its arms, unless they are there."""
    comparison = COMPARISONS[name]
    stored = _stored()
    # Arms of another command are not comparable: they are measured again.
    if stored.get(name, {}).get("command") == comparison.command:
        return

    words = shlex.split(comparison.command)
    folder = runs / name
    subprocess.run(
        [*DITHER, "compare", *words, "--runs", str(folder)], cwd=ROOT, check=True
    )
    newest = max(folder.glob("compare-*"))
    shown = subprocess.run(
        [*DITHER, "compare", str(newest), "--metric", comparison.metric, "--json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    arms = [
        {key: arm[key] for key in KEPT if arm.get(key) is not None}
        for arm in json.loads(shown.stdout)
    ]
    stored[name] = {"command": comparison.command, "cpu": processor(), "arms": arms}
    STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def _table(stored: dict[str, Any]) -> Iterator[str]:
    """Yield the arms of all comparisons."""
    measured = {name: COMPARISONS[name] for name in COMPARISONS if name in stored}
    yield "| arm | mean ± sd of seeds | difference [95 %] | verdict |"
    yield "|---|---|---|---|"
    for name, comparison in measured.items():
        yield f"| **{comparison.title}**: {comparison.metric}; {stored[name]['cpu']} | | | |"
        for arm in stored[name]["arms"]:
            difference = ""
            if "low" in arm:
                difference = (
                    f"{arm['difference']:+.3g} [{arm['low']:+.2g}, {arm['high']:+.2g}]"
                )
            value = f"{arm['mean']:.4g} ± {arm['sd']:.2g}"
            yield f"| {arm['arm']} | {value} | {difference} | {arm.get('verdict', '')} |"


if __name__ == "__main__":
    main()
