"""Regions on the command line: `prepare`, `predict`, `attribute` and `embed`; planted activities are recovered."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

import dither
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment

M, CELLS = 10, ("a", "b")
EXPERIMENT = f"""
extends = "{Path(__file__).parents[1]}/experiments/get_region/quick.toml"
[task]
regions = 20
stride = 10
cell_type = ["a", "b"]
accessibility = "quantitative"
standardise = true
rivals = false
data = {{ use = "region-file", path = "x.npz", valid = ["chr2"], test = ["chr1"] }}
[model]
width = 32
depth = 1
condition = {{ use = "sum", parts = ["level", {{ use = "label", of = "cell" }}] }}
block = {{ use = "adaln-zero", heads = 2, dropout = 0.0 }}
[train]
steps = 180
batch_size = 16
optimizer = {{ use = "adamw", lr = 3e-3 }}
[evaluate]
samples = 8
[sample]
count = 2
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A run on accessibility that is a linear function of the motifs, with other activities in each cell type."""
    folder = tmp_path_factory.mktemp("planted")
    g = np.random.default_rng(0)
    count = 900
    features, activity = g.random((count, M)), g.normal(size=(M, 2))
    np.savez(
        folder / "x.npz",
        features=features,
        motifs=np.array([f"m{k}" for k in range(M)]),
        chromosome=np.repeat(["chr1", "chr2", "chr3"], [100, 100, 700]),
        start=np.r_[np.arange(100), np.arange(100), np.arange(700)] * 1000,
        end=np.r_[np.arange(100), np.arange(100), np.arange(700)] * 1000 + 300,
        cells=np.array(CELLS),
        atpm=(features - 0.5) @ activity + 6 + 0.1 * g.normal(size=(count, 2)),
    )
    (folder / "x.toml").write_text(
        EXPERIMENT.replace("x.npz", (folder / "x.npz").as_posix())
    )
    assert main(["run", str(folder / "x.toml"), "--runs", str(folder / "runs")]) == 0
    (run,) = (path for path in (folder / "runs").glob("*-*"))
    return run, folder / "x.npz", features, activity


@pytest.mark.slow
def test_planted_activities_are_recovered(planted, tmp_path):
    run, _, _, activity = planted
    assert (
        main(["attribute", str(run), "--split", "test", "--out", str(tmp_path / "x")])
        == 0
    )
    with (tmp_path / "x/attributions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, cell in enumerate(CELLS):
        of_cell = [row for row in rows if row["cell"] == cell]
        for name, least in (("gradient_x_input", 0.6), ("knock_out", 0.65)):
            values = [float(row[name]) for row in of_cell]
            assert np.corrcoef(values, activity[:, number])[0, 1] >= least, (cell, name)


@pytest.mark.slow
def test_predictions_of_a_run(planted, tmp_path, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)  # slow
    run, data, features, activity = planted
    assert (
        main(
            [
                "predict",
                str(run),
                str(data),
                "--cell",
                "b",
                "--export",
                "npz",
                "--out",
                str(tmp_path / "p"),
            ]
        )
        == 0
    )
    found = dict(np.load(tmp_path / "p/predictions.npz", allow_pickle=False))
    assert found["prediction"].shape == (1, 900, 1)
    assert (
        np.corrcoef(found["prediction"][0, :, 0], features @ activity[:, 1])[0, 1] > 0.8
    )
    assert abs(found["prediction"].mean() - 6) < 0.5
    again = dither.load(run).predict(features[None, :20].astype(np.float32), cell="b")
    np.testing.assert_allclose(
        again[0, :, 0], found["prediction"][0, :20, 0], rtol=1e-4
    )
    kept = dict(np.load(run / "assets/columns.npz"))  # the units of the columns
    np.testing.assert_array_equal(
        kept["divisor"][:M], features[200:].max(0).astype(np.float32)
    )
    assert kept["cell"].tolist() == [*CELLS]
    assert main(["embed", str(run)]) == 0
    assert (run / "embed/valid/embeddings.npz").is_file()
    assert (
        'not trained on the cell type "c"'
        in cli("predict", str(run), "--cell", "c", code=2).err
    )
    assert not (run / "predict/valid-c").exists()


TABLE = ["chromosome,start,end,atpm:K562,atpm:HepG2,M1,M2"]
TABLE += [
    f"{c},{100 * i},{100 * i + 50},{i % 3 / 2},{i % 2},{i % 4},{i % 5}"
    for c in ("chr1", "chr2", "chr3")
    for i in range(12)
]
PREPARED = f"""
extends = "{Path(__file__).parents[1]}/experiments/get_region/quick.toml"
name = "prepared"
[task]
regions = 4
stride = 2
jitter = 1
cell_type = ["K562", "HepG2"]
accessibility = "quantitative"
data = {{ use = "get", paths = ["regions.csv"], out = "arrays" }}
[model]
width = 16
depth = 1
[train]
steps = 2
batch_size = 4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    (tmp_path / "regions.csv").write_text("\n".join(TABLE) + "\n")
    (tmp_path / "prepared.toml").write_text(PREPARED)
    return tmp_path


@pytest.mark.slow
def test_regions_are_prepared_and_run(folder, capsys, cli):
    assert (
        "run: dither prepare get regions.csv --out arrays"
        in cli("validate", "prepared.toml", code=2).err
    )
    assert main(["prepare", "get", "regions.csv", "--out", "arrays"]) == 0
    assert "36 regions x 2 motifs, 2 cell types with atpm" in capsys.readouterr().out
    assert main(["validate", "prepared.toml"]) == 0
    assert main(["run", "prepared.toml"]) == 0
    assert (folder / "runs").is_dir()
    task = load_experiment(folder / "prepared.toml").experiment.task.build()
    assert task.batch("train", [0]).cond.keys() == {"chromosome", "centre", "cell"}
    assert task.size("train") == 2 * (
        5 * 3 - 2
    )  # neither the first window nor the last is shifted over its end


def test_all_problems_are_printed_and_nothing_is_written(folder, cli):
    lines = [*TABLE]
    lines[3], lines[5] = "chr1,0,50,-1,0,nan,1", "chr1,400,90,0,0,1,-1"
    (folder / "regions.csv").write_text("\n".join(lines) + "\n")
    messages = cli("prepare", "get", "regions.csv", "--out", "arrays", code=2).err
    for message in (
        "regions are not sorted: chr1:0 after chr1:100",
        "the region ends at 90, not after its start 400",
    ):
        assert message in messages
    assert messages.count(" is negative") == 2
    assert "Traceback" not in messages
    assert not (folder / "arrays").exists()


CELL_NAMES = ["a/../../../x", "T/NK", "T_NK"]


@pytest.mark.slow
def test_names_of_cell_types_are_never_paths(folder, cli, monkeypatch):
    """`T/NK` and `T_NK` are two files, and no name leaves the folder."""
    monkeypatch.setitem(sys.modules, "umap", None)  # slow
    lines = [
        TABLE[0].replace(
            "atpm:K562,atpm:HepG2", ",".join(f"atpm:{c}" for c in CELL_NAMES)
        )
    ]
    for line in TABLE[1:]:
        place, values = line.split(",")[:3], line.split(",")[3:]
        lines.append(",".join([*place, "1", *values]))
    (folder / "regions.csv").write_text("\n".join(lines) + "\n")
    text = PREPARED.replace('["K562", "HepG2"]', str(CELL_NAMES).replace("'", '"'))
    (folder / "prepared.toml").write_text(text)
    cli("prepare", "get", "regions.csv", "--out", "arrays")
    cli("run", "prepared.toml", "--runs", "deep/runs")
    (run,) = folder.glob("deep/runs/*-*")
    before = {path for path in folder.rglob("*") if not path.is_relative_to(run)}

    printed = cli("predict", str(run), "--export", "bedgraph", "--split", "all").out
    files = [Path(line) for line in printed.splitlines()]
    assert len({file.name for file in files}) == len(files) == 3
    for verb in ("predict", "attribute", "embed"):
        folders = set()
        for cell in CELL_NAMES:
            words = [verb, str(run), "--split", "all", "--cell", cell]
            written = [Path(line) for line in cli(*words).out.splitlines()]
            files += written
            folders |= {file.parent for file in written}
        assert len(folders) == 3, verb
    for file in files:
        assert file.is_file()
        assert file.resolve().is_relative_to(run.resolve()), file
    assert {
        path for path in folder.rglob("*") if not path.is_relative_to(run)
    } == before
