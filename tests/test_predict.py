"""`dither predict`, `explain` and `embed` of a trained run: planted motif activities are recovered."""

import csv

import numpy as np
import pytest

import dither
from dither.engine.cli import main

M, CELLS = 10, ("a", "b")
EXPERIMENT = """
loss = "mse"
sampler = "ancestral"
process = {{ use = "masked-region", mask = "group", group = "accessibility", ratio = 1.0 }}
[task]
use = "get-region"
regions = 20
stride = 10
cell_type = ["a", "b"]
given = "motifs"
fill = 1.0
accessibility = "quantitative"
standardise = true
rivals = false
data = {{ use = "region-file", path = "{path}", valid = ["chr2"], test = ["chr1"] }}
[model]
use = "denoiser"
width = 32
depth = 1
embedding = {{ use = "regions", elements = true }}
condition = {{ use = "sum", parts = ["level", {{ use = "label", of = "cell" }}] }}
block = {{ use = "adaln-zero", heads = 2 }}
head = "features"
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
    (folder / "x.toml").write_text(EXPERIMENT.format(path=(folder / "x.npz").as_posix()))
    assert main(["run", str(folder / "x.toml"), "--runs", str(folder / "runs")]) == 0
    (run,) = (path for path in (folder / "runs").iterdir() if path.is_dir())
    return run, folder / "x.npz", features, activity


def test_planted_activities_are_recovered(planted, tmp_path):
    run, _, _, activity = planted
    assert main(["explain", str(run), "--split", "test", "--out", str(tmp_path / "x")]) == 0
    with (tmp_path / "x/explain.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, cell in enumerate(CELLS):
        of_cell = [row for row in rows if row["cell"] == cell]
        for name, least in (("gradient_x_input", 0.6), ("knock_out", 0.65)):
            values = [float(row[name]) for row in of_cell]
            assert np.corrcoef(values, activity[:, number])[0, 1] >= least, (cell, name)


def test_predictions_of_a_run(planted, tmp_path, capsys):
    run, data, features, activity = planted
    assert main(["predict", str(run), str(data), "--cell", "b", "--export", "npz", "--out", str(tmp_path / "p")]) == 0
    found = dict(np.load(tmp_path / "p/predictions.npz", allow_pickle=False))
    assert found["prediction"].shape == (1, 900, 1)
    assert np.corrcoef(found["prediction"][0, :, 0], features @ activity[:, 1])[0, 1] > 0.8
    assert abs(found["prediction"].mean() - 6) < 0.5
    again = dither.load(run).predict(features[None, :20].astype(np.float32), cell="b")
    np.testing.assert_allclose(again[0, :, 0], found["prediction"][0, :20, 0], rtol=1e-4)
    kept = dict(np.load(run / "assets/columns.npz"))  # the units of the columns
    np.testing.assert_array_equal(kept["divisor"][:M], features[200:].max(0).astype(np.float32))
    assert kept["cell"].tolist() == [*CELLS]
    assert main(["embed", str(run)]) == 0
    assert (run / "embed/valid/embeddings.npz").is_file()
    assert main(["predict", str(run), "--cell", "c"]) == 2
    assert 'not trained on the cell type "c"' in capsys.readouterr().err
    assert not (run / "predict/valid-c").exists()
