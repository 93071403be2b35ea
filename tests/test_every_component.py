"""Conformance of all components of this repository, recommended checks included."""

import atexit
import json
import os
import shutil
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image

from dither.registry import default_catalog
from dither.registry.kinds import KINDS
from dither.registry.plugins.discovery import BUILT_IN
from dither.tasks.bubble_diagram.specs import PlanFiles
from dither.tasks.get_region.data_specs import PreparedRegions, ScannedRegions
from dither.tasks.language_model.data.specs import ConvertedText
from dither.testing import conformance
from dither.testing.checks import CHECKS
from dither.testing.fake_slurm import write_fake_slurm

ROOMS = ("Kitchen", "Bathroom", "Balcony", "Storage", "StudyRoom")
FILES = Path(tempfile.mkdtemp(prefix="dither-parts-"))
atexit.register(shutil.rmtree, FILES, ignore_errors=True)


def write_files() -> None:
    """Write third-party data for the components that read files."""
    rows = ["chromosome,start,end,open:K562,GATA1,CTCF,SP1"]
    for n in range(4):
        for i in range(12):
            values = f"{i % 3 == 0:d},{(i + n) % 5 * 0.25},{i % 2},{(i * i + n) % 7}"
            rows.append(f"chr{n + 1},{1000 * i},{1000 * i + 500},{values}")
    (FILES / "regions.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    with (FILES / "plans.jsonl").open("w", encoding="utf-8") as file:
        for i in range(40):
            boxes = [
                [20, 20, 100 + i, 120],
                [100 + i, 20, 200, 80],
                [100 + i, 80, 200, 120],
            ][: 2 + i % 2]
            types = ["LivingRoom", ROOMS[i % 5], ROOMS[i % 3]][: 2 + i % 2]
            file.write(json.dumps({"types": types, "boxes": boxes}) + "\n")
    for i in range(12):
        (FILES / f"text{i}.txt").write_text(
            f"The {i}th letter says little, and says it {'very ' * i}well.\n" * 8
        )
    store = zarr.create_group(str(FILES / "regions.zarr"), zarr_format=2)
    peaks = [
        f"chr{n}:{1000 * i}-{1000 * i + 500}" for n in (1, 2, 3) for i in range(12)
    ]
    for name, values in (
        ("peak_names", peaks),
        ("motif_names", ["GATA1"]),
        ("data", np.eye(36, 1, dtype=np.float32)),
    ):
        store.create_array(name, data=np.array(values))

    (FILES / "genome.fa").write_text(
        "".join(f">chr{n}\n{'ACGGATAAGTCAGTTTACG' * 40}\n" for n in (1, 2, 3))
    )
    peaks = [f"chr{n}\t{20 * i}\t{20 * i + 20}\n" for n in (1, 2, 3) for i in range(12)]
    (FILES / "peaks.bed").write_text("".join(peaks))
    sequences = [
        f"{'ACGGATAAGT'[i % 7 :]:T<12},{'ab'[i % 2]},{i / 4}" for i in range(60)
    ]
    table = "\n".join(["sequence,label,activity", *sequences])
    (FILES / "sequences.csv").write_text(f"{table}\n")
    (FILES / "motifs.jaspar").write_text(
        ">MA0035 GATA1\n0 9 0 9\n0 0 0 0\n9 0 0 0\n0 0 9 0\n"
    )

    for name in ("cat", "dog"):
        (FILES / "images" / name).mkdir(parents=True)
        for n in range(8):
            colour = (30 * n, 90, 200)
            Image.new("RGB", (6, 5), colour).save(FILES / f"images/{name}/{n}.png")
    rng = np.random.default_rng(0)
    np.savez(
        FILES / "images.npz",
        images=rng.random((40, 4, 4), np.float32),
        labels=np.arange(40) % 2,
    )


os.environ.update(
    TRACKIO_DIR=str(FILES / "trackio"),
    WANDB_MODE="offline",
    MLFLOW_TRACKING_URI=f"sqlite:///{FILES}/mlflow.db",
    _MLFLOW_SERVER_ARTIFACT_ROOT=str(FILES / "artifacts"),
)
SLURM = write_fake_slurm(FILES / "slurm")
write_files()


@pytest.fixture(autouse=True)
def commands_of_slurm(monkeypatch):
    """Let executor `slurm` find its commands, in these tests only."""
    monkeypatch.setenv("PATH", f"{SLURM}:{os.environ['PATH']}")


PREPARED = {
    "source": str(FILES / "plans.jsonl"),
    "destination": str(FILES / "prepared"),
}
PlanFiles(**PREPARED).prepare()
REGIONS = {"use": "region-file", "path": str(FILES / "regions.csv")}
ARRAYS = {"paths": [REGIONS["path"]], "out": str(FILES / "regions")}
PreparedRegions(**ARRAYS).prepare()
SCANNED = {
    "paths": [
        str(FILES / name) for name in ("peaks.bed", "genome.fa", "motifs.jaspar")
    ],
    "p_value": 0.01,
}
SCANNED["out"] = str(FILES / "scanned")
ScannedRegions(**SCANNED).prepare()
PLANTED = {"use": "planted-motifs", "length": 24, "width": 6, "train": 200, "held": 60}
SEQUENCES = {"path": str(FILES / "sequences.csv"), "numbers": ["activity"]}
MAPPED = {"use": "region-arrays", "path": ARRAYS["out"]}
PLANS = {"use": "plans-jsonl", "path": str(FILES / "plans.jsonl"), "most": 4}
TEXTS = {"use": "text-files", "paths": [str(FILES / "*.txt")]}
CONVERTED = {"paths": TEXTS["paths"], "to": str(FILES / "shards"), "tokenizer": "chars"}
ConvertedText(**CONVERTED).prepare()
FOLDER = {"use": "image-folder", "path": str(FILES / "images"), "size": 4}
PIXELS = {"use": "image-arrays", "path": str(FILES / "images.npz")}
SHARDS = {"use": "token-shards", "path": CONVERTED["to"]}
EXAMPLES = {
    "data:image-folder": [{"path": FOLDER["path"], "size": 4}],
    "data:image-arrays": [{"path": PIXELS["path"]}],
    "data:region-file": [{"path": REGIONS["path"]}],
    "data:region-arrays": [{"path": ARRAYS["out"]}],
    "data:region-store": [{"path": str(FILES / "regions.zarr")}],
    "data:get": [ARRAYS],
    "data:plans-jsonl": [{"path": PLANS["path"]}],
    "data:plans": [PREPARED],
    "data:text-files": [{"paths": TEXTS["paths"]}],
    "data:text": [CONVERTED],
    "data:token-shards": [{"path": SHARDS["path"]}],
    "data:markov-chain": [{"length": 3000, "held": 500}],
    "data:mixture": [
        {
            "of": [
                {"use": "markov-chain", "length": 3000, "held": 500},
                {"use": "text-files", "paths": TEXTS["paths"]},
            ],
            "weights": [3, 1],
        }
    ],
    "data:procedural-plans": [{"train": 50, "valid": 20, "test": 20}],
    "data:motifs": [SCANNED],
    "data:planted-motifs": [PLANTED],
    "data:sequence-file": [SEQUENCES],
    "data:human-dhs": [{"subset": "chr21-22"}],
    "task:get-region": [
        {
            "data": REGIONS,
            "regions": 5,
            "stride": 2,
            "standardise": True,
            "accessibility": False,
        },
        {
            "data": MAPPED,
            "regions": 4,
            "stride": 3,
            "jitter": 1,
            "accessibility": "constant",
        },
    ],
    "task:bubble-diagram": [
        {"data": {"use": "procedural-plans", "train": 300, "valid": 50, "test": 50}},
        {"data": PLANS},
        {"data": PLANS, "boxes": True},
    ],
    "task:dna-sequence": [
        {"data": PLANTED},
        {
            "data": PLANTED | {"cells": 1},
            "kmer": 2,
            "reverse_complement": True,
            "motifs": SCANNED["paths"][2],
        },
        {"data": {"use": "sequence-file", **SEQUENCES}, "reverse_complement": True},
    ],
    "task:images": [
        {"data": PIXELS},
        {"data": FOLDER, "scale": "range", "flip": True, "features": "pixels"},
    ],
    "task:language-model": [
        {},
        {
            "data": TEXTS,
            "length": 48,
            "tokenizer": "chars",
            "prompt": "The ",
            "ngrams": 3,
        },
        {"data": TEXTS, "length": 64, "documents": "separate", "end_of_text": True},
        {"data": SHARDS, "length": 32},
    ],
}
ROOT = Path(__file__).parent.parent
FAILURES = {
    (
        "loss:poisson",
        "truth_is_best",
    ): "samples of the kit may be negative, which counts are not",
    ("loss:bce", "truth_is_best"): "samples of the kit are not from 0 to 1",
    (
        "loss:hybrid",
        "gradcheck",
    ): "its bound trains the variances alone, with a detached mean",
}


@conformance.parametrize("core-blocks", strict=True)
def test_core_blocks(case):
    case.run()


@conformance.parametrize("embeddings", strict=True)
def test_embeddings(case):
    case.run()


@conformance.parametrize("losses", strict=True, expected_failures=FAILURES)
def test_losses(case):
    case.run()


@conformance.parametrize("processes", strict=True)
def test_processes(case):
    case.run()


# submitit leaves the process of a job to the system.
@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@conformance.parametrize("engine", strict=True)
def test_engine(case):
    if case.name == "tracker:trackio":
        pytest.importorskip("trackio")
    case.run()


@conformance.parametrize("tasks", examples=EXAMPLES, strict=True)
def test_tasks(case):
    case.run()


def test_every_plugin_runs_the_kit():
    """No plugin is missing, and every kind except data, which its task checks, has checks."""
    parts = default_catalog().parts()
    metadata = [
        tomllib.loads(path.read_text("utf-8"))
        for path in ROOT.glob("packages/*/pyproject.toml")
    ]
    offering = {
        name
        for meta in metadata
        for name in meta["project"].get("entry-points", {}).get("dither.plugins", {})
    }
    assert offering == BUILT_IN
    kinds = {part.spec.kind for part in parts if part.plugin in BUILT_IN}
    assert kinds | {"metric"} == set(KINDS), "only metrics have no built-in component"
    assert {check.kind for check in CHECKS} | {"data"} == {"any", *KINDS}
