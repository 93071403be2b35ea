"""Region files: every format gives the same table, and every problem names line and column."""

import gzip

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data_specs import RegionFile
from dither.tasks.get_region.formats.column_names import standard_names
from dither.tasks.get_region.formats.tables import read_facts, read_region_file
from dither.tasks.get_region.specs import GetRegion

HEADER = "chromosome,start,end,open:K562,GATA1,open:HepG2,AP1/1"
ROWS = ["chr1,0,10,1,0.5,0,2", "chr1,5,20,0,0,1,8", "chr2,3,9,0,0.25,0,0", "chr3,1,2,1,1,1,4", "chr3,1,7,0,0.5,0,1"]
TEXT = "\n".join([HEADER, *ROWS]) + "\n"


def read(path, scale=False):
    return read_region_file(path, valid=("chr2",), test=("chr1",), scale=scale)


def write(path, text=TEXT):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def arrays():
    return {
        "features": np.array([[0.5, 2], [0, 8], [0.25, 0], [1, 4], [0.5, 1]]),
        "motifs": np.array(["GATA1", "AP1/1"]),
        "chromosome": np.array(["chr1", "chr1", "chr2", "chr3", "chr3"]),
        "start": np.array([0, 5, 3, 1, 1]),
        "end": np.array([10, 20, 9, 2, 7]),
        "open": np.array([[1, 0], [0, 1], [0, 0], [1, 1], [0, 0]]),
        "cells": np.array(["K562", "HepG2"]),
    }


def test_all_formats_give_the_same_table(tmp_path):
    np.savez(tmp_path / "x.npz", **arrays())
    paths = [tmp_path / "x.npz", write(tmp_path / "x.csv"), write(tmp_path / "x.csv.gz")]
    paths += [write(tmp_path / f"x{form}", TEXT.replace(",", "\t")) for form in (".tsv", ".tsv.gz")]
    for path in paths:
        table = read(path)
        for name, expected in arrays().items():
            np.testing.assert_array_equal(np.array(getattr(table, name)), expected, err_msg=f"{path} {name}")
        facts = read_facts(path, valid=("chr2",), test=())
        assert (facts.motifs, facts.cells) == (2, ("K562", "HepG2"))
        assert (facts.longest, facts.rows, facts.chromosomes) == (2, 5, 3)


@pytest.mark.parametrize("places", ["Chromosome,Start,End", "chrom,chromStart,chromEnd", "chr,start,end"])
def test_synonyms_of_places(tmp_path, places):
    table = read(write(tmp_path / "x.csv", TEXT.replace("chromosome,start,end", places)))
    assert table.motifs == ("GATA1", "AP1/1")
    np.testing.assert_array_equal(table.start, arrays()["start"])
    assert standard_names(["chrom", "chromosome", "start", "x"]) == ["chrom", "chromosome", "start", "x"]


def test_scaling_divides_by_the_largest_of_the_training_regions(tmp_path):
    table = read(write(tmp_path / "x.csv"), scale=True)
    np.testing.assert_allclose(table.features, [[0.5, 0.5], [0, 1], [0.25, 0], [1, 1], [0.5, 0.25]])


def test_accessibility_may_be_missing(tmp_path):
    kept = {name: array for name, array in arrays().items() if name not in ("open", "cells")}
    np.savez(tmp_path / "x.npz", **kept)
    assert read(tmp_path / "x.npz").cells == ()
    path = write(tmp_path / "x.csv", "\n".join(["chromosome,start,end,M", "chr1,0,1,1", "chr2,0,1,1", "chr3,0,1,1"]))
    assert read(path).open.shape == (3, 0)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_values_known_of_one_cell_type_only_are_found_by_check(tmp_path, split):
    header = "chromosome,start,end,M,open:A,open:B,expression_positive:A,expression_negative:A"
    rows = [f"chr{n // 4},{n % 4},{n + 9},1,{n % 2},{n % 2},1,2" for n in range(12)]
    data = RegionFile(path=str(write(tmp_path / "x.csv", "\n".join([header, *rows]))), valid=["chr1"], test=["chr2"])
    assert data.facts() == data.build().facts()
    cells = {"cell_type": ["A", "B"]} if split == "train" else {"cell_type": "A", f"{split}_cells": ["B"]}
    option = "cell_type" if split == "train" else f"{split}_cells"
    task, what = GetRegion(data=data, regions=2, expression=True, **cells), 'no expression of "B"'
    (misfit,) = task.check()
    assert what in misfit.message
    assert misfit.path == (option,)
    with pytest.raises(Refused, match=what) as refused:
        task.build()
    assert [problem.path for problem in refused.value.problems] == [("task", option)]


MISTAKES = {
    "not a number": ("chr2,3,9,0,0.25,0,0", "chr2,3,9,0,much,0,0", "invalid-sample", 'line 4, column "GATA1"'),
    "nan": ("chr2,3,9,0,0.25,0,0", "chr2,3,9,0,nan,0,0", "invalid-sample", 'line 4, column "GATA1"'),
    "inf": ("chr3,1,2,1,1,1,4", "chr3,1,2,1,1,1,inf", "invalid-sample", 'line 5, column "AP1/1"'),
    "negative": ("chr3,1,2,1,1,1,4", "chr3,1,2,1,1,1,-4", "invalid-sample", 'line 5, column "AP1/1"'),
    "negative start": ("chr2,3,9", "chr2,-3,9", "invalid-sample", 'line 4, column "start"'),
    "half a base": ("chr2,3,9", "chr2,3,9.5", "invalid-sample", 'line 4, column "end"'),
    "label": ("chr2,3,9,0,", "chr2,3,9,2,", "invalid-sample", 'line 4, column "open:K562"'),
    "ends before it starts": ("chr2,3,9", "chr2,9,9", "invalid-sample", "line 4: the region ends at 9"),
    "unsorted": ("chr1,5,20", "chr1,5,20,0,0,1,8\nchr1,4,20", "unsorted", "line 4: "),
    "chromosome twice": ("chr3,1,7", "chr1,1,7", "unsorted", "line 6: chr1"),
    "cut short": ("chr3,1,7,0,0.5,0,1\n", "chr3,1,7,0", "invalid-sample", "line 6: has 4 columns"),
    "no start": ("chromosome,start", "chromosome,begin", "missing-array", "line 1: no column start"),
    "one name twice": ("AP1/1", "GATA1", "duplicate", '"GATA1"'),
    "no motifs": (TEXT, "chromosome,start,end\nchr1,0,1\nchr2,0,1\nchr3,0,1\n", "wrong-shape", "motif columns"),
    "no rows": ("\n".join(ROWS) + "\n", "", "wrong-shape", "no regions"),
    "blank line": ("chr2,3,9,0,0.25,0,0", "", "invalid-sample", "line 4: has 0 columns"),
    "nothing": (TEXT, "", "missing-array", "line 1: no column chromosome, start, end"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_table_are_named(tmp_path, refusal, mistake):
    before, after, code, place = MISTAKES[mistake]
    assert before in TEXT
    path = write(tmp_path / "x.csv", TEXT.replace(before, after, -1 if mistake == "one name twice" else 1))
    refused = refusal(read, path)
    assert any(problem.code == code and f"{path}: " in problem.message and place in problem.message
               for problem in refused.problems), refused  # fmt: skip


WRONG_ARRAYS = {
    "missing": ({"start": None}, "missing-array", '"start"; it has cells, chromosome'),
    "no cells": ({"cells": None}, "missing-array", '"cells"'),
    "kind": ({"chromosome": np.arange(5)}, "wrong-shape", '"chromosome" holds int64, expected text'),
    "shape": ({"features": np.ones((4, 2))}, "wrong-shape", '"features" has the shape (4, 2), expected (5, 2)'),
    "flat": ({"features": np.ones(10)}, "wrong-shape", '"features" has the shape (10,)'),
    "nan": ({"features": np.where(np.eye(5, 2) > 0, np.nan, 1)}, "invalid-sample", 'row 1 (from 0), column "AP1/1"'),
    "unsorted": ({"start": np.array([6, 5, 3, 1, 1])}, "unsorted", "row 1 (from 0): "),
}


@pytest.mark.parametrize("mistake", WRONG_ARRAYS)
def test_mistakes_in_arrays_are_named(tmp_path, refusal, mistake):
    change, code, place = WRONG_ARRAYS[mistake]
    changed = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    np.savez(tmp_path / "x.npz", **changed)
    refused = refusal(read, tmp_path / "x.npz")
    assert any(code == problem.code and place in problem.message for problem in refused.problems), refused
    assert all("x.npz: " in problem.message for problem in refused.problems)


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.npz", "x.tsv"])
def test_a_missing_file_is_named(tmp_path, name):
    for look in (read, lambda path: read_facts(path, valid=(), test=())):
        with pytest.raises(Refused, match=name) as info:
            look(tmp_path / name)
        assert info.value.codes == ["file-not-found"]
    (tmp_path / name).mkdir()
    with pytest.raises(Refused, match=name) as info:
        read(tmp_path / name)
    assert info.value.codes == ["unreadable-file"]


def flipped(content, near, behind):
    at = content.index(near) + behind
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_damaged_files_are_named(tmp_path):
    np.savez(tmp_path / "x.npz", **arrays())
    for path in (tmp_path / "x.npz", write(tmp_path / "x.csv.gz", TEXT * 20)):
        content = path.read_bytes()
        for damaged in (
            content[: len(content) // 2],
            content[:-9],
            b"",
            b"no such form",
            flipped(content, arrays()["features"].tobytes() if path.suffix == ".npz" else b"", 30),
        ):
            path.write_bytes(damaged)
            with pytest.raises(Refused, match=path.name):
                read(path)
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfe\x00chromosome")
    with pytest.raises(Refused) as info:
        read(path)
    assert info.value.codes == ["damaged-file"]


def test_unknown_extensions_and_chromosomes(tmp_path, refusal):
    assert refusal(read, tmp_path / "x.bed").codes == ["unknown-format"]
    path = write(tmp_path / "x.csv")
    refused = refusal(read_region_file, path, valid=("chr02",), test=("chr1", "Y"), scale=True)
    assert refused.codes == ["unknown-value"] * 2
    assert '"chr02"' in refused.problems[0].message
    assert 'did you mean "chr2"?' in refused.problems[0].help
    refused = refusal(read_region_file, path, valid=("chr1", "chr2"), test=("chr3",), scale=True)
    assert refused.codes == ["no-samples"]


def test_a_table_too_large_for_memory_is_refused(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("dither.tasks.get_region.formats.tables.LIMIT", 150)
    refused = refusal(read, write(tmp_path / "x.csv"))
    assert refused.codes == ["too-large"]
    assert "line 5: " in refused.problems[0].message
