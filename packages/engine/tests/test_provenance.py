"""Fingerprints of data files."""

import pytest

from dither.engine.config import provenance as module
from dither.engine.config.load_experiment import load_experiment
from dither.engine.config.provenance import changed_data, data_record

TEXT = """
name = "region"
loss = "mse"
sampler = { use = "ancestral", steps = 1 }
task = { use = "get-region", regions = 2, stride = 1, data = { use = "region-file", path = "PATH" } }
process = { use = "masked-region", mask = "element", ratio = 0.5 }
[model]
use = "denoiser"
width = 8
depth = 1
embedding = { use = "regions", elements = true }
condition = { use = "level" }
block = { use = "adaln-zero", heads = 2 }
head = "features"
"""
ROWS = "\n".join(
    f"chr{c},{p},{p + 1},1,0.{p},0.5" for c in (1, 2, 3) for p in range(0, 40, 2)
)
PLACE = "task.data.path"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f"chromosome,start,end,open:K562,A,B\n{ROWS}\n")
    return path


@pytest.fixture
def experiment(tmp_path, table):
    (tmp_path / "e.toml").write_text(TEXT.replace("PATH", str(table)))
    return load_experiment(tmp_path / "e.toml").experiment


def changed(before, experiment):
    return list(changed_data(before, data_record(experiment)))


def test_changed_contents_are_found(experiment, table, tmp_path):
    before = data_record(experiment)
    sizes = {"first": "table.csv", "files": 1, "bytes": len(table.read_bytes())}
    assert {
        key: value for key, value in before[PLACE].items() if key != "sha256"
    } == sizes
    assert changed(before, experiment) == []
    assert changed({}, experiment) == []
    experiment.task.data.__dict__["path"] = str(table.rename(tmp_path / "other.csv"))
    assert changed(before, experiment) == [], "a file may be moved and renamed"
    table = tmp_path / "other.csv"
    data = bytearray(table.read_bytes())
    data[-20] ^= 1
    table.write_bytes(data)
    (message,) = changed(before, experiment)
    assert PLACE in message
    table.write_bytes(data[:-30])
    (message,) = changed(before, experiment)
    assert f"1 files of {len(data) - 30:,} bytes" in message


def test_folders_and_patterns_mean_the_files_in_them(experiment, tmp_path):
    folder = tmp_path / "store"
    (folder / "inner").mkdir(parents=True)
    (folder / "a").write_text("one")
    (folder / "inner" / "b").write_text("two")
    experiment.task.data.__dict__["path"] = str(folder)
    before = data_record(experiment)
    assert (before[PLACE]["files"], before[PLACE]["bytes"]) == (2, 6)
    experiment.task.data.__dict__["path"] = str(tmp_path / "st*")
    assert data_record(experiment) == before
    (folder / "inner" / "b").rename(folder / "inner" / "c")
    assert changed(before, experiment)
    experiment.task.data.__dict__["path"] = str(tmp_path / "nowhere")
    assert data_record(experiment) == {}


@pytest.mark.slow
def test_large_files_are_sampled_evenly(experiment, tmp_path, monkeypatch):
    for name, value in {"FULL_HASH_LIMIT": 100, "BLOCKS": 10, "BLOCK": 4}.items():
        monkeypatch.setattr(module, name, value)
    folder = tmp_path / "store"
    folder.mkdir()
    sizes = {"a": 130, "b": 7, "c": 263}
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    experiment.task.data.__dict__["path"] = str(folder)
    before, found, at = data_record(experiment), [], 0
    for name, size in sizes.items():
        for place in range(size):
            (folder / name).write_bytes(b"x" * place + b"y" + b"x" * (size - place - 1))
            found += [at + place] if changed(before, experiment) else []
        (folder / name).write_bytes(b"x" * size)
        at += size
    assert found == [start + more for start in range(0, 400, 40) for more in range(4)]


def test_hidden_files_are_ignored_except_those_of_zarr(experiment, tmp_path):
    folder = tmp_path / ".cache" / "store"
    (folder / "inner" / ".git").mkdir(parents=True)
    for name in ("a", ".zarray", "inner/.DS_Store", "inner/.git/b"):
        (folder / name).write_text("one")
    experiment.task.data.__dict__["path"] = str(folder)
    assert data_record(experiment)[PLACE]["files"] == 2
    experiment.task.data.__dict__["path"] = "~nobody-is-called-so/a"
    assert data_record(experiment) == {}
