"""The store of prepared data: round trips, damage, ownership of folders, rejected rows, the Spec's base class."""

import errno
import json
import shutil
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data.human_dhs import PACKAGED, read_human
from dither.tasks.prepared import arrays, store
from dither.tasks.prepared.manifest import (
    MANIFEST,
    Kind,
    changed_options,
    describe_sources,
    read_manifest,
)
from dither.tasks.prepared.rejected import Rejected, RejectedRows
from dither.tasks.prepared.spec import PrepareSpec
from dither.tasks.prepared.store import (
    check_owned,
    find_existing,
    open_arrays,
    verify,
    write_folder,
)

KIND = Kind("boxes", 2, "dither prepare boxes", files=("names.txt",))
MADE = {"size": 3, "source": {"files": 1}}
ARRAYS = {
    "x": np.arange(12, dtype="<f4").reshape(4, 3),
    "names": np.array(["a", "bc"]),
    "none": np.zeros((0, 3), bool),
    "half": np.linspace(0, 1, 7).astype(np.float16),
}


@pytest.fixture
def folder(tmp_path, cache):
    with write_folder(tmp_path / "boxes", KIND, MADE) as writer:
        for name, array in ARRAYS.items():
            writer.add(name, array, largest=len(array))
        writer.info["cells"] = ("k562",)
        (writer.folder / "names.txt").write_text("a")
    return tmp_path / "boxes"


def opened(folder):
    manifest = read_manifest(folder, KIND)
    verify(folder, manifest, KIND)
    return open_arrays(folder, manifest, KIND)


def test_round_trip(folder):
    found = opened(folder)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert isinstance(found[name], np.memmap)
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), array)
    manifest = read_manifest(folder, KIND)
    assert (manifest.made, manifest.info) == (MADE, {"cells": ["k562"]})
    assert manifest.arrays["x"].info == {"largest": 4}
    assert changed_options(manifest, {"size": 4, "source": {"files": 1}}) == ["size"]
    assert open_arrays(folder, manifest, KIND, ["x"]).keys() == {"x"}


def edit(name, change):
    return lambda folder: (folder / name).write_bytes(
        change((folder / name).read_bytes())
    )


def manifest_edit(**changes):
    return edit(
        MANIFEST,
        lambda content: json.dumps({**json.loads(content), **changes}).encode(),
    )


def record_edit(**changes):
    def change(content):
        manifest = json.loads(content)
        manifest["arrays"]["x"] |= changes
        return json.dumps(manifest).encode()

    return edit(MANIFEST, change)


DAMAGE = {
    "array cut short": (edit("x.npy", lambda content: content[:-1]), "damaged-file", "x.npy"),
    "array missing": (lambda folder: (folder / "x.npy").unlink(), "file-not-found", "x.npy"),
    "flipped bit": (edit("x.npy", lambda c: c[:-1] + bytes([c[-1] ^ 1])), "damaged-file", "x.npy"),
    "other order": (edit("x.npy", lambda c: c.replace(b"False, ", b"True,  ")), "damaged-file", "x.npy"),
    "other dtype": (edit("x.npy", lambda c: c.replace(b"<f4", b"<i4")), "damaged-file", "x.npy"),
    "declared dtype": (record_edit(dtype="<i4"), "damaged-file", "x.npy"),
    "declared shape": (record_edit(shape=[3, 4]), "damaged-file", "x.npy"),
    "path outside": (record_edit(file="../x.npy"), "damaged-file", MANIFEST),
    "no JSON": (edit(MANIFEST, lambda content: b"{"), "damaged-file", MANIFEST),
    "no arrays": (manifest_edit(arrays=None), "damaged-file", MANIFEST),
    "later version": (manifest_edit(version=3), "other-version", "boxes"),
    "other kind": (manifest_edit(kind="tokens"), "unknown-format", "boxes"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "not-prepared", "boxes"),
    "no folder": (shutil.rmtree, "not-prepared", "boxes"),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.write_text("")), "not-prepared", "boxes"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_replaced(folder, name, refusal):
    damage, code, file = DAMAGE[name]
    damage(folder)
    refused = refusal(opened, folder)
    assert refused.codes == [code]
    assert file in refused.problems[0].message
    if name not in ("a file", "other kind"):
        assert KIND.command in refused.problems[0].help
    if name in ("no JSON", "no arrays", "other kind"):
        assert refusal(find_existing, folder, KIND, MADE).codes == ["file-exists"]
    elif name not in ("a file", "no manifest"):
        assert find_existing(folder, KIND, MADE) is None


def test_verified_once(folder, monkeypatch):
    manifest, read = read_manifest(folder, KIND), []
    monkeypatch.setattr(
        store, "_sha256", lambda path, record: read.append(path) or record.sha256
    )
    for _ in range(2):
        verify(folder, manifest, KIND, once=True)
    assert len(read) == len(ARRAYS)
    (folder / "x.npy").touch()
    verify(folder, manifest, KIND, once=True)
    assert len(read) == 2 * len(ARRAYS)


def test_existing_data_are_left_alone_or_replaced_with_force(folder, refusal):
    assert find_existing(folder, KIND, MADE) == read_manifest(folder, KIND)
    assert find_existing(folder, KIND, MADE, force=True) is None
    refused = refusal(find_existing, folder, KIND, {"size": 4, "source": {"files": 2}})
    assert refused.codes == ["changed-options"]
    assert "size was 3; the source changed" in refused.problems[0].message
    assert find_existing(folder, KIND, {"size": 4}, force=True) is None
    assert find_existing(folder / "new", KIND, MADE) is None


def test_folders_with_other_files_stay(folder, tmp_path, refusal):
    (tmp_path / "other").mkdir()
    for place, name in product(
        (folder, tmp_path / "other"), ("thesis.tex", "x.npy", "manifest.json.bak")
    ):
        (place / name).touch()
        if (place, name) == (folder, "x.npy"):
            check_owned(place, KIND)
            continue
        assert refusal(find_existing, place, KIND, MADE, force=True).codes == [
            "file-exists"
        ]
        assert name in refusal(check_owned, place, KIND).problems[0].message
        (place / name).unlink()


FOREIGN = [
    {MANIFEST: '{"kind": "tokens", "version": 2, "made": {}, "arrays": {"mine": {}}}'},
    {MANIFEST: '{"my": "data"}'},
    {MANIFEST: "[1]"},
    {MANIFEST: "{"},
    {MANIFEST: "\ud800"},
    {MANIFEST: '{"kind": "boxes", "version": 1, "arrays": {"x": {}}}'},
]


@pytest.mark.parametrize("files", FOREIGN, ids=str)
def test_data_of_another_kind_and_files_of_others_stay(tmp_path, refusal, files):
    kind = Kind("boxes", 2, "dither prepare boxes")
    for file, content in {**files, "mine.npy": "", "labels.jsonl": ""}.items():
        (tmp_path / file).write_text(content, "utf-8", "surrogatepass")
    assert refusal(find_existing, tmp_path, kind, MADE, force=True).codes == [
        "file-exists"
    ]


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left"), ValueError("x")],
)
def test_a_stop_in_the_middle_leaves_the_folder_as_it_was(folder, error):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(Refused if isinstance(error, OSError) else type(error)) as info:  # noqa: SIM117, PT012
        with write_folder(folder, KIND, {}) as writer:
            writer.stream("x", "f4").append(np.zeros(3))
            raise error
    if isinstance(error, OSError):
        assert info.value.codes == ["disk-full"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["boxes"]


def test_a_file_outside_the_folder_is_named(tmp_path, refused):
    codes = {
        errno.ENOENT: "file-not-found",
        errno.EACCES: "unreadable-file",
        errno.ENOSPC: "disk-full",
    }
    source = tmp_path / "source.json"
    for number, code in codes.items():
        with (
            refused(code, match=f"{source}.*: text"),
            write_folder(tmp_path / "boxes", KIND, {}),
        ):
            raise OSError(number, "text", str(source))
    with (
        refused("unwritable-file", match="boxes cannot be written"),
        write_folder(tmp_path / "boxes", KIND, {}) as to,
    ):
        (to.folder / "none" / "x").touch()
    assert not list(tmp_path.iterdir())


def test_rejected_rows_are_counted_shown_and_saved(tmp_path):
    with RejectedRows() as rows, write_folder(tmp_path / "boxes", KIND, {}) as writer:
        for number in range(5):
            rows.add(Rejected(f"a.txt, line {number}", "empty", "no text"))
        rows.add(Rejected("b.txt", "binary", "b.txt: \ud800 is binary"))
        writer.reject(rows)
        lines = list(rows.lines("left out", {"empty": "without text"}))
    assert lines[:3] == [
        "6 left out:",
        "  5 without text",
        "    a.txt, line 0: no text",
    ]
    assert lines[-3:] == [
        "    ... and 2 more",
        "  1 binary",
        "    b.txt: \ud800 is binary",
    ]
    assert read_manifest(tmp_path / "boxes", KIND).rejected == {"empty": 5, "binary": 1}
    saved = [
        json.loads(line)
        for line in (tmp_path / "boxes" / "rejected.jsonl").read_text().splitlines()
    ]
    assert [row["sort"] for row in saved] == ["empty"] * 5 + ["binary"]
    with RejectedRows() as rows:
        assert not list(rows.lines())


def test_digest_of_sources(tmp_path):
    files = [tmp_path / "b.txt", tmp_path / "a.txt"]
    for file in files:
        file.write_text(file.name)
    one = describe_sources(files, tmp_path)
    assert (one["files"], one["bytes"]) == (2, 10)
    assert describe_sources(files[::-1], tmp_path) == one
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    moved = [copy / file.name for file in files]
    assert describe_sources(moved, copy) == one  # copytree keeps times
    (copy / "a.txt").touch()
    assert describe_sources(moved, copy) != one


class Boxes(PrepareSpec):
    """Boxes."""

    name = "boxes"
    gives: ClassVar[str] = "boxes"
    stored: ClassVar[Kind] = KIND
    read_options: ClassVar[frozenset[str]] = frozenset({"valid"})
    paths: list[str]
    out: str = ""
    size: int = 3
    deep: bool = False
    valid: list[str] = ["chr2"]
    force: bool = False

    def build(self): ...


def test_spec_of_prepared_data(folder, tmp_path, refusal):
    spec = Boxes(
        paths=["a b.txt"],
        out=str(folder),
        size=4,
        deep=True,
        valid=["chr3"],
        force=True,
    )
    assert (
        spec.command()
        == f"dither prepare boxes 'a b.txt' --out {folder} --size 4 --deep"
    )
    assert list(spec.check()) == []
    assert spec.options() == {"size": 4, "deep": True}
    refused = refusal(spec.manifest)
    assert refused.codes == ["changed-options"]
    assert refused.problems[0].help == f"run: {spec.command()} --force"
    with write_folder(folder, KIND, {**spec.options(), "source": 1}) as writer:
        writer.add("x", ARRAYS["x"])
    assert spec.manifest().arrays.keys() == {"x"}

    cached = [
        Boxes(paths=["a"]),
        Boxes(paths=["a"], valid=["chr3"]),
        Boxes(paths=["b"]),
        Boxes(paths=["a"], size=4),
    ]
    places = [spec.folder() for spec in cached]
    assert places[0] == places[1]
    assert len(set(places)) == 3
    assert places[0].parent == tmp_path / "cache" / "boxes"
    (misfit,) = cached[0].check()
    assert (misfit.code, misfit.path, misfit.help) == (
        "not-prepared",
        ("paths",),
        "run: dither prepare boxes a",
    )
    assert refusal(cached[0].manifest).codes == ["not-prepared"]


PACKED = {
    "features": np.arange(600, dtype=np.uint8).reshape(30, 20),
    "motifs": np.array(["A", "BC"]),
}


@pytest.fixture
def path(tmp_path):
    arrays.write_archive(tmp_path / "x.npz", PACKED, {"source": "a test"})
    return tmp_path / "x.npz"


def test_archives(path):
    read = arrays.read_archive(path, "")
    assert {name: array.tolist() for name, array in read.items()} == {
        n: a.tolist() for n, a in PACKED.items()
    }
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["source"] == "a test"
    assert about["arrays"]["features"] == {"dtype": "|u1", "shape": [30, 20]}
    assert sorted(file.name for file in path.parent.iterdir()) == ["x.json", "x.npz"]


def test_every_flipped_bit_of_an_archive_is_found(path, refusal):
    content = path.read_bytes()
    for offset in range(0, len(content), 41):
        path.write_bytes(
            content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :]
        )
        refused = refusal(arrays.read_archive, path, "")
        assert (refused.codes, "x.npz" in str(refused)) == (["damaged-file"], True)


def test_damaged_archives_are_named(path, refusal):
    for name in ("x.npz", "x.json"):
        file = path.with_name(name)
        content = file.read_bytes()
        for damaged in (b"", content[: len(content) // 2], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            (problem,) = refusal(arrays.read_archive, path, "do this").problems
            assert (name in problem.message, problem.help) == (True, "do this")
        file.write_bytes(content)
    sidecar = path.with_suffix(".json")
    for text in (
        "[]",
        '{"arrays": {"features": 1}, "sha256": "x"}',
        sidecar.read_text().replace("20", "21"),
    ):
        sidecar.write_text(text)
        assert refusal(arrays.read_archive, path, "").codes == ["damaged-file"]


def test_files_that_expand_are_refused(tmp_path, monkeypatch, refusal):
    np.savez_compressed(tmp_path / "z.npz", a=np.zeros(1 << 20, np.uint8))
    for name, value in (("max_expanded", lambda packed: 100 * packed), ("LIMIT", 500)):
        with monkeypatch.context() as patched:
            patched.setattr(arrays, name, value)
            assert refusal(arrays.load_npz, tmp_path / "z.npz").codes == ["too-large"]


@pytest.mark.parametrize(
    ("subset", "regions"), [("whole", 47_872), ("chr21-22", 1_426)]
)
def test_the_packaged_tables_are_intact_and_name_their_sources(subset, regions):
    about = json.loads((PACKAGED / f"{subset}.json").read_text())
    assert [source["wheel"] for source in about["source"]] == [
        "dnadiffusion==0.0.0.dev0",
        "pyjaspar==4.0.0",
    ]
    assert all(
        len(source["sha256"]) == 64 and source["licence"] for source in about["source"]
    )
    features = np.asarray(read_human(subset).features)
    assert (features.dtype, features.shape, features.min(), features.max()) == (
        np.float32,
        (regions, 282),
        0,
        1,
    )


def test_a_missing_built_matrix_names_the_command(cache, refusal):
    refused = refusal(read_human, "built")
    assert (refused.codes, refused.problems[0].help) == (
        ["file-not-found"],
        "run: dither prepare dhs",
    )
