"""`dither prepare get` and `prepare dhs` on the command line, and a run on the prepared data."""

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment

TABLE = ["chromosome,start,end,atpm:K562,atpm:HepG2,M1,M2"]
TABLE += [
    f"{c},{100 * i},{100 * i + 50},{i % 3 / 2},{i % 2},{i % 4},{i % 5}"
    for c in ("chr1", "chr2", "chr3")
    for i in range(12)
]
EXPERIMENT = """
name = "prepared"
loss = "mse"
sampler = "ancestral"
[task]
use = "get-region"
regions = 4
stride = 2
jitter = 1
cell_type = ["K562", "HepG2"]
accessibility = "quantitative"
data = { use = "get", paths = ["regions.csv"], out = "arrays" }
[process]
use = "masked-region"
ratio = 0.5
[model]
use = "denoiser"
width = 16
depth = 1
embedding = "regions"
block = { use = "adaln-zero", heads = 2 }
head = "features"
[train]
steps = 2
batch_size = 4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    (tmp_path / "regions.csv").write_text("\n".join(TABLE) + "\n")
    (tmp_path / "prepared.toml").write_text(EXPERIMENT)
    return tmp_path


def test_regions_are_prepared_and_run(folder, capsys):
    assert main(["validate", "prepared.toml"]) == 2
    assert "run: dither prepare get regions.csv --out arrays" in capsys.readouterr().err
    assert main(["prepare", "get", "regions.csv", "--out", "arrays"]) == 0
    assert "36 regions x 2 motifs, 2 cell types with atpm" in capsys.readouterr().out
    assert main(["validate", "prepared.toml"]) == 0
    assert main(["run", "prepared.toml"]) == 0
    assert (folder / "runs").is_dir()
    task = load_experiment(folder / "prepared.toml").experiment.task.build()
    assert task.batch("train", [0]).cond.keys() == {"chromosome", "centre", "cell"}
    assert task.size("train") == 2 * (5 * 3 - 2)  # neither the first window nor the last is shifted over its end


def test_all_problems_are_printed_and_nothing_is_written(folder, capsys):
    lines = [*TABLE]
    lines[3], lines[5] = "chr1,0,50,-1,0,nan,1", "chr1,400,90,0,0,1,-1"
    (folder / "regions.csv").write_text("\n".join(lines) + "\n")
    assert main(["prepare", "get", "regions.csv", "--out", "arrays"]) == 2
    messages = capsys.readouterr().err
    for message in (
        'line 4, column "M1": nan is not finite',
        'line 4, column "atpm:K562": -1.0 is negative',
        "line 4: regions are not sorted: chr1:0 after chr1:100",
        'line 6, column "M2": -1.0 is negative',
        "line 6: the region ends at 90, not after its start 400",
    ):
        assert message in messages
    assert "Traceback" not in messages
    assert not (folder / "arrays").exists()
