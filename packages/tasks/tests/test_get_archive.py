"""Archives with checksums: round trip, damage, and the packaged tables."""

import json

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data.human_dhs import PACKAGED, read_human
from dither.tasks.prepared import arrays as archive

ARRAYS = {"features": np.arange(600, dtype=np.uint8).reshape(30, 20), "motifs": np.array(["A", "BC"])}


@pytest.fixture
def path(tmp_path):
    archive.write_archive(tmp_path / "x.npz", ARRAYS, {"source": "a test"})
    return tmp_path / "x.npz"


def test_round_trip(path):
    read = archive.read_archive(path, "")
    assert {name: array.tolist() for name, array in read.items()} == {n: a.tolist() for n, a in ARRAYS.items()}
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["source"] == "a test"
    assert about["arrays"]["features"] == {"dtype": "|u1", "shape": [30, 20]}
    assert sorted(file.name for file in path.parent.iterdir()) == ["x.json", "x.npz"]


def test_every_flipped_bit_is_found(path):
    content = path.read_bytes()
    for offset in range(0, len(content), 41):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :])
        with pytest.raises(Refused, match=r"x\.npz") as info:
            archive.read_archive(path, "")
        assert info.value.codes == ["damaged-file"]


@pytest.mark.parametrize("name", ["x.npz", "x.json"])
@pytest.mark.parametrize("damage", ["empty", "cut", "gone"])
def test_missing_and_cut_files_are_named(path, refusal, name, damage):
    file = path.with_name(name)
    content = file.read_bytes()
    file.unlink() if damage == "gone" else file.write_bytes(content[: 0 if damage == "empty" else len(content) // 2])
    (problem,) = refusal(archive.read_archive, path, "do this").problems
    assert name in problem.message
    assert problem.help == "do this"


@pytest.mark.parametrize("sidecar", ["[]", '{"arrays": {"features": 1}, "sha256": "x"}', "other shapes"])
def test_an_invalid_sidecar_is_named(path, refusal, sidecar):
    file = path.with_suffix(".json")
    file.write_text(file.read_text().replace("20", "21") if sidecar == "other shapes" else sidecar)
    assert refusal(archive.read_archive, path, "").codes == ["damaged-file"]


def test_a_large_file_and_objects_are_refused(path, tmp_path, monkeypatch, refusal):
    np.savez(tmp_path / "y.npz", features=np.array([{"a": 1}], dtype=object))
    assert refusal(archive.load_npz, tmp_path / "y.npz", tmp_path / "y.npz").codes == ["wrong-shape"]
    monkeypatch.setattr(archive, "LIMIT", 500)
    assert refusal(archive.load_npz, path, path).codes == ["too-large"]


@pytest.mark.parametrize("subset", ["whole", "chr21-22"])
def test_the_packaged_tables_are_intact_and_name_their_sources(subset):
    about = json.loads((PACKAGED / f"{subset}.json").read_text())
    assert [source["wheel"] for source in about["source"]] == ["dnadiffusion==0.0.0.dev0", "pyjaspar==4.0.0"]
    assert all(len(source["sha256"]) == 64 and source["licence"] for source in about["source"])
    matrix = read_human(subset)
    assert matrix.features.shape == (47_872 if subset == "whole" else 1_426, 282)
    features = np.asarray(matrix.features)
    assert features.dtype == np.float32
    assert (features.min(), features.max()) == (0, 1)


def test_a_missing_built_matrix_names_the_command(cache, refusal):
    refused = refusal(read_human, "built")
    assert (refused.codes, refused.problems[0].help) == (["file-not-found"], "run: dither prepare dhs")
