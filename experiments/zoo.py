"""Train the models of packages/zoo and write them with their cards.

    python -m experiments.zoo --runs zoo-runs                # about 40 minutes of one core
    python -m experiments.zoo --runs zoo-runs --only dna

A finished run in the folder of runs is not trained again. Weights are stored as bfloat16; the
metrics of a card are those of the stored weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tomlkit
from safetensors.torch import load_file, save_file

import dither
from dither.engine.files.checksums import MANIFEST, write_manifest
from dither.engine.files.installed_models import EXPERIMENT, WEIGHTS
from dither.engine.files.metrics_file import (
    shown_baselines,
    with_interval,
)
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.exports import export_run
from dither.engine.sampling.samples import make_samples
from dither.registry.files.atomic import follow_umask

from .results import cpu_seconds_of_children, processor

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packages" / "zoo" / "dither" / "zoo"
SEED = 0
COST = "cpu_seconds"
"""File of a finished run with its CPU time, evaluations included."""
CARD = """# {name}

{summary}

```python
import dither

system = dither.load("zoo/{name}")
print(system.decode(system.sample(4, seed=0)))
```

Or `dither sample zoo/{name} --count 4`, and `train.start_from = "zoo/{name}"` to train from these weights.

## Training

{parameters:,} parameters, trained by experiments/{experiment}.toml with seed {seed} for {step:,} steps: {minutes:.0f}
CPU minutes of one core ({cpu}). Weights are stored as bfloat16.{fewer}

## Metrics

Of one seed, on the validation split{measured_on}; ± is half of a 95 % interval over its samples.

| | metric | model | baselines |
|---|---|---|---|
{metrics}

## Data

{data}
"""


@dataclass(frozen=True)
class Model:
    """A model of the zoo.

    Attributes:
        experiment: Its experiment file, without the ending.
        summary: First line of the card.
        data: Source and licence of the data.
        metrics: Those of the card.
        samples: Number of samples that are drawn for the card.
        checkpoint: Which one is stored.
        train: Number of training samples that a stored experiment makes, if its data are made: fewer
            than in training, so that sampling takes seconds.
    """

    experiment: str
    summary: str
    data: str
    metrics: tuple[str, ...]
    samples: int = 256
    checkpoint: Literal["newest", "best"] = "newest"
    train: int | None = None


MADE_HERE = "Made by a generator of dither, under the licence of dither (Apache-2.0)."
MODELS = {
    "bubble-small": Model(
        "bubble_diagram/small",
        "Floor plans as graphs: eight rooms and their relations, masked diffusion.",
        MADE_HERE,
        ("nats_per_graph", "level_5", "unique", "edge_js"),
        samples=1000,
        train=20_000,
    ),
    "dna": Model(
        "dna_sequence/quick",
        "DNA of 200 bases with planted motifs, by cell type.",
        MADE_HERE,
        ("nats_per_base", "kmer_js", "motif_r", "accuracy", "copied"),
    ),
    "regions": Model(
        "get_region/context",
        "Accessibility of genome regions in four cell types, from the motifs of the region and of its neighbours.",
        "Sites and accessibility of dnadiffusion (MIT, (c) 2022 Luca Pinello), motifs of JASPAR (CC BY 4.0).",
        ("accessibility_auc", "accessibility_mse", "accessibility_r2"),
        samples=0,
        checkpoint="best",
    ),
    "shakespeare": Model(
        "language_model/shakespeare",
        "Characters of Shakespeare, block diffusion in blocks of two.",
        "38 plays of Shakespeare (public domain).",
        ("bits_per_char", "repetition", "unique"),
    ),
    "digits": Model(
        "images/digits",
        "Digits of 8 x 8 pixels by class, flow matching.",
        "Digits of scikit-learn, from the UCI repository (CC BY 4.0).",
        ("accuracy", "frechet", "precision", "recall"),
        samples=360,
    ),
}


def main() -> None:
    """Train what is missing, and write the folders of the models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    for name in options.only:
        run = _trained(name, options.runs)
        _export(name, run)
        card = _card(name, run)
        (FOLDER / name / "README.md").write_text(card, encoding="utf-8")
        size = (FOLDER / name / WEIGHTS).stat().st_size
        sys.stdout.write(f"{name} {size / 1e6:.2f} MB\n")


def _trained(name: str, runs: Path) -> Path:
    """Return the newest finished run of a model; train it if there is none."""
    finished = list(runs.glob(f"{name}-*/{COST}"))
    if finished:
        return max(finished).parent

    file = f"experiments/{MODELS[name].experiment}.toml"
    command = [sys.executable, "-m", "experiments.run", file]
    # One thread, since the card states the time of one core.
    command += [f"name={name}", f"seed={SEED}", "train.threads=1"]
    command += ["--runs", str(runs.absolute())]
    before = cpu_seconds_of_children()
    subprocess.run(command, cwd=ROOT, check=True)
    seconds = cpu_seconds_of_children() - before

    run = max(runs.glob(f"{name}-*/summary.json")).parent
    (run / COST).write_text(f"{seconds:.0f}\n", encoding="utf-8")
    return run


def _export(name: str, run: Path) -> None:
    """Replace the folder of a model by an export of a run, in bfloat16."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    files = export_run(run, folder, MODELS[name].checkpoint)

    weights = load_file(folder / WEIGHTS)
    # Half the size, at a precision that metrics do not show.
    half = {key: weight.bfloat16() for key, weight in weights.items()}
    save_file(half, folder / WEIGHTS)
    follow_umask(folder / WEIGHTS)

    train = MODELS[name].train
    if train is not None:
        file = folder / EXPERIMENT
        experiment = tomlkit.parse(file.read_text(encoding="utf-8"))
        experiment["task"]["data"]["train"] = train
        file.write_text(tomlkit.dumps(experiment), encoding="utf-8")

    # The checksums are those of the changed files.
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    listed = [file for file in files if file.name != MANIFEST]
    facts = {key: manifest[key] for key in ("step", "data", "space")}
    write_manifest(folder, listed, **facts)


def _card(name: str, run: Path) -> str:
    """Return the card of a model: its metrics are measured with the stored weights."""
    model = MODELS[name]
    folder = FOLDER / name
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    metrics, baselines = evaluate_run(folder)
    system = dither.load(folder)
    parameters = sum(weight.numel() for weight in system.model.parameters())

    rows = list(_rows("valid", model.metrics, metrics, baselines))
    measured_on = ""
    if model.checkpoint == "best":
        measured_on = ", on which the step was chosen"
    if model.samples:
        measured_on += f", and of {model.samples:,} samples"
        drawn = make_samples(system, model.samples, SEED, pictures=False)
        assert drawn is not None
        real = system.task.baselines("valid")
        rows += _rows("sample", model.metrics, drawn.metrics, real)

    fewer = ""
    if model.train is not None:
        fewer = (
            f"\n`experiment.toml` makes {model.train:,} training samples only, with which"
            " new ones are compared."
        )
    return CARD.format(
        name=name,
        summary=model.summary,
        experiment=model.experiment,
        fewer=fewer,
        parameters=parameters,
        seed=SEED,
        step=manifest["step"],
        minutes=int((run / COST).read_text()) / 60,
        cpu=processor(),
        measured_on=measured_on,
        metrics="\n".join(rows),
        data=model.data,
    )


def _rows(
    kind: str,
    names: Sequence[str],
    metrics: Mapping[str, float],
    baselines: Mapping[str, float],
) -> Iterator[str]:
    """Yield the lines of a table of metrics with their baselines."""
    for name in names:
        if name in metrics:
            value = with_interval(name, metrics)
            yield f"| {kind} | {name} | {value} | {shown_baselines(kind, name, baselines)} |"


if __name__ == "__main__":
    main()
