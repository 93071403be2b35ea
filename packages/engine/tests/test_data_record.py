"""A run goes on with the data that it learned from, or says that it is another."""

import pytest

from dither.engine.config import data_fingerprints as module
from dither.engine.config.data_fingerprints import changed_data, data_fingerprints
from dither.engine.config.load_experiment import load_experiment

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
ROWS = "\n".join(f"chr{c},{p},{p + 1},1,0.{p},0.5" for c in (1, 2, 3) for p in range(0, 40, 2))
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


def test_a_file_that_was_changed_is_told(experiment, table):
    before = data_fingerprints(experiment)
    assert before[PLACE] | {"sha256": ""} == {
        "first": "table.csv",
        "files": 1,
        "bytes": len(table.read_bytes()),
        "sha256": "",
    }
    assert changed_data(before, data_fingerprints(experiment)) == []
    data = bytearray(table.read_bytes())
    data[-20] ^= 1
    table.write_bytes(data)
    (told,) = changed_data(before, data_fingerprints(experiment))
    assert PLACE in told
    assert "table.csv, with other contents" in told
    table.write_bytes(data[:-30])
    (told,) = changed_data(before, data_fingerprints(experiment))
    assert f"{len(data) - 30:,} bytes, it was 1 files of {len(data):,} bytes" in told
    assert changed_data({}, data_fingerprints(experiment)) == [], "a run of before there was a record"


def test_a_file_may_be_moved_and_renamed(experiment, table, tmp_path):
    before = data_fingerprints(experiment)
    table.rename(tmp_path / "other.csv")
    experiment.task.data.__dict__["path"] = str(tmp_path / "other.csv")
    assert changed_data(before, data_fingerprints(experiment)) == []


def test_folders_and_patterns_are_what_lies_in_them(experiment, tmp_path):
    folder = tmp_path / "store"
    (folder / "inner").mkdir(parents=True)
    (folder / "a").write_text("one")
    (folder / "inner" / "b").write_text("two")
    experiment.task.data.__dict__["path"] = str(folder)
    before = data_fingerprints(experiment)
    assert (before[PLACE]["files"], before[PLACE]["bytes"]) == (2, 6)
    experiment.task.data.__dict__["path"] = str(tmp_path / "st*")
    assert data_fingerprints(experiment) == before
    (folder / "inner" / "b").rename(folder / "inner" / "c")
    assert changed_data(before, data_fingerprints(experiment))
    experiment.task.data.__dict__["path"] = str(tmp_path / "nowhere")
    assert data_fingerprints(experiment) == {}


def test_of_large_files_blocks_are_read_all_over_them(experiment, tmp_path, monkeypatch):
    """Every block that is read is found to be changed, at whatever file it lies, and not more is read than that."""
    monkeypatch.setattr(module, "WHOLE", 100)
    monkeypatch.setattr(module, "BLOCKS", 10)
    monkeypatch.setattr(module, "BLOCK", 4)
    folder = tmp_path / "store"
    folder.mkdir()
    sizes = {"a": 130, "b": 7, "c": 263}
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    experiment.task.data.__dict__["path"] = str(folder)
    before, found, at = data_fingerprints(experiment), [], 0
    for name, size in sizes.items():
        for place in range(size):
            (folder / name).write_bytes(b"x" * place + b"y" + b"x" * (size - place - 1))
            found += [at + place] if changed_data(before, data_fingerprints(experiment)) else []
        (folder / name).write_bytes(b"x" * size)
        at += size
    assert found == [start + more for start in range(0, 400, 40) for more in range(4)]


def test_hidden_files_of_a_folder_are_no_data_but_those_of_a_store(experiment, tmp_path):
    folder = tmp_path / ".cache" / "store"
    (folder / "inner" / ".git").mkdir(parents=True)
    for name in ("a", ".zarray", "inner/.DS_Store", "inner/.git/b"):
        (folder / name).write_text("one")
    experiment.task.data.__dict__["path"] = str(folder)
    assert data_fingerprints(experiment)[PLACE]["files"] == 2
    experiment.task.data.__dict__["path"] = "~nobody-is-called-so/a"
    assert data_fingerprints(experiment) == {}


def test_only_files_that_a_block_falls_into_are_opened(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WHOLE", 100)
    monkeypatch.setattr(module, "BLOCKS", 10)
    folder = tmp_path / "store"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number:03}").write_text("xy")
    experiment.task.data.__dict__["path"] = str(folder)
    opened, usual = [], type(folder).open
    monkeypatch.setattr(type(folder), "open", lambda path, *how: opened.append(path.name) or usual(path, *how))
    assert data_fingerprints(experiment)[PLACE]["files"] == 200
    assert opened == [f"{number:03}" for number in range(0, 200, 20)]
