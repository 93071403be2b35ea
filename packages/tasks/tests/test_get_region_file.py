"""Files of the user: every form gives the same table, and every mistake is named with its place."""

import gzip

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data_specs import RegionFile
from dither.tasks.get_region.formats.column_names import placed_names
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


def test_all_forms_give_the_same_table(tmp_path):
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
def test_places_may_be_called_as_others_do(tmp_path, places):
    table = read(write(tmp_path / "x.csv", TEXT.replace("chromosome,start,end", places)))
    assert table.motifs == ("GATA1", "AP1/1")
    np.testing.assert_array_equal(table.start, arrays()["start"])
    assert placed_names(["chrom", "chromosome", "start", "x"]) == ["chrom", "chromosome", "start", "x"]


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
def test_what_is_known_of_one_cell_type_only_is_told_before_the_start(tmp_path, split):
    header = "chromosome,start,end,M,open:A,open:B,expression_positive:A,expression_negative:A"
    rows = [f"chr{n // 4},{n % 4},{n + 9},1,{n % 2},{n % 2},1,2" for n in range(12)]
    data = RegionFile(path=str(write(tmp_path / "x.csv", "\n".join([header, *rows]))), valid=["chr1"], test=["chr2"])
    assert data.facts() == data.build().facts()
    cells = {"cell_type": ["A", "B"]} if split == "train" else {"cell_type": "A", f"{split}_cells": ["B"]}
    option = "cell_type" if split == "train" else f"{split}_cells"
    task, what = GetRegion(data=data, regions=2, expression=True, **cells), 'do not know expression of "B"'
    (misfit,) = task.check()
    assert what in misfit.message
    assert misfit.path == (option,)
    with pytest.raises(Refused, match=what) as refused:
        task.build()
    assert [problem.path for problem in refused.value.problems] == [("task", option)]


MISTAKES = {
    "no number": ("chr2,3,9,0,0.25,0,0", "chr2,3,9,0,much,0,0", 'line 4, column "GATA1": "much" is no number'),
    "nan": ("chr2,3,9,0,0.25,0,0", "chr2,3,9,0,nan,0,0", r'line 4, column "GATA1": nan is not finite'),
    "inf": ("chr3,1,2,1,1,1,4", "chr3,1,2,1,1,1,inf", r'line 5, column "AP1/1": inf is not finite'),
    "negative": ("chr3,1,2,1,1,1,4", "chr3,1,2,1,1,1,-4", r'line 5, column "AP1/1": -4.0 is negative'),
    "negative start": ("chr2,3,9", "chr2,-3,9", r'line 4, column "start": -3.0 is no base number'),
    "half a base": ("chr2,3,9", "chr2,3,9.5", r'line 4, column "end": 9.5 is no base number'),
    "label": ("chr2,3,9,0,", "chr2,3,9,2,", r'line 4, column "open:K562": 2.0 is neither 0 nor 1'),
    "ends before it starts": ("chr2,3,9", "chr2,9,9", "line 4: the region ends at 9, not behind its start 9"),
    "unsorted": ("chr1,5,20", "chr1,5,20,0,0,1,8\nchr1,4,20", "line 4: chr1:4 stands behind chr1:5; sort"),
    "chromosome twice": ("chr3,1,7", "chr1,1,7", "line 6: chr1 comes a second time"),
    "cut short": ("chr3,1,7,0,0.5,0,1\n", "chr3,1,7,0", "line 6: has 4 columns, the header has 7"),
    "no start": ("chromosome,start", "chromosome,begin", "line 1: the header has no start"),
    "one name twice": ("AP1/1", "GATA1", '"GATA1" is the name of more than one of the motifs'),
    "no motifs": (TEXT, "chromosome,start,end\nchr1,0,1\nchr2,0,1\nchr3,0,1\n", "holds no motif columns"),
    "no rows": ("\n".join(ROWS) + "\n", "", "holds no regions"),
    "blank line": ("chr2,3,9,0,0.25,0,0", "", "line 4: has 0 columns"),
    "nothing": (TEXT, "", "line 1: the header has no chromosome, start, end; it begins empty"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_table_are_named(tmp_path, mistake):
    before, after, message = MISTAKES[mistake]
    assert before in TEXT
    path = write(
        tmp_path / "x.csv",
        TEXT.replace(before, after, 1) if mistake != "one name twice" else TEXT.replace(before, after),
    )
    with pytest.raises(Refused) as refused:
        read(path)
    assert f"{path}: " in str(refused.value)
    assert message in str(refused.value)


WRONG_ARRAYS = {
    "missing": ({"start": None}, 'has no array "start"; it has chromosome, cells'),
    "no cells": ({"cells": None}, 'has no array "cells"'),
    "kind": ({"chromosome": np.arange(5)}, '"chromosome" holds int64, expected text'),
    "shape": ({"features": np.ones((4, 2))}, '"features" has the shape (4, 2); 5 regions and 2 motifs ask for (5, 2)'),
    "flat": ({"features": np.ones(10)}, '"features" has the shape (10,)'),
    "nan": ({"features": np.where(np.eye(5, 2) > 0, np.nan, 1)}, 'row 1 (from 0), column "AP1/1": nan is not finite'),
    "unsorted": ({"start": np.array([6, 5, 3, 1, 1])}, "row 1 (from 0): chr1:5 stands behind chr1:6"),
}


@pytest.mark.parametrize("mistake", WRONG_ARRAYS)
def test_mistakes_in_arrays_are_named(tmp_path, mistake):
    change, message = WRONG_ARRAYS[mistake]
    changed = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    np.savez(tmp_path / "x.npz", **changed)
    with pytest.raises(Refused) as refused:
        read(tmp_path / "x.npz")
    words = str(refused.value)
    assert all(part in words for part in message.split("; it has ")[:1])
    assert "x.npz: " in words


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.npz", "x.tsv"])
def test_a_missing_file_is_named(tmp_path, name):
    for look in (read, lambda path: read_facts(path, valid=(), test=())):
        with pytest.raises(Refused, match=f"{name}: No such file or directory"):
            look(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(Refused, match=f"{name}: is no plain file"):
        read(tmp_path / name)


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
    with pytest.raises(Refused, match=r"x\.csv: is no text table"):
        read(path)


def test_endings_and_chromosomes_that_are_not_known(tmp_path):
    with pytest.raises(Refused, match=r"a region file ends in \.npz, \.csv"):
        read(tmp_path / "x.bed")
    path = write(tmp_path / "x.csv")
    with pytest.raises(Refused, match=r'has no chromosome "chr02" to hold out for valid') as refused:
        read_region_file(path, valid=("chr02",), test=("chr1", "Y"), scale=True)
    assert len(refused.value.problems) == 2
    assert 'did you mean "chr2"?' in str(refused.value.problems[0].help)
    with pytest.raises(Refused, match="none is left to train on"):
        read_region_file(path, valid=("chr1", "chr2"), test=("chr3",), scale=True)


def test_a_table_too_large_for_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dither.tasks.get_region.formats.tables.LIMIT", 150)
    with pytest.raises(Refused, match="line 5: more than 150 bytes"):
        read(write(tmp_path / "x.csv"))
