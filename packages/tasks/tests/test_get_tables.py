"""Tables in every format give the same arrays; every problem names line or row and column; no label becomes a motif."""

import gzip

import anndata
import numpy as np
import pandas
import pytest
from scipy import sparse

from dither.tasks.get_region.data_specs import RegionFile
from dither.tasks.get_region.formats.column_names import check_names, standard_names
from dither.tasks.get_region.formats.sources import (
    ReadOptions,
    find_regions,
    find_source,
)
from dither.tasks.get_region.specs import GetRegion

P, MOTIFS = 12, ["GATA1", "AP1/1"]
CHROMOSOME = np.repeat(["chr1", "chr2", "chr3"], 4)
START = np.tile(np.arange(4) * 1000, 3) + 500
END = START + 300
FEATURES = np.arange(P * 2).reshape(P, 2) / 4
NAMES = [f"{c}:{s}-{e}" for c, s, e in zip(CHROMOSOME, START, END, strict=True)]
OPEN, ATPM = (np.arange(P) % 2).astype(float), np.arange(P) / 8.0
HEADER = ["chromosome", "start", "end", "open:K562", *MOTIFS, "atpm:HepG2"]
PLACED = {"features": FEATURES, "chromosome": CHROMOSOME, "start": START, "end": END}
ARRAYS = {
    **PLACED,
    "motifs": np.array(MOTIFS),
    "cells": np.array(["K562", "HepG2"]),
    "open": np.stack([OPEN, ATPM > 0], 1),
    "atpm": np.stack([np.zeros(P), ATPM], 1),
    "unknown": np.array(["atpm:K562"]),
}


def rows():
    return [
        [c, s, e, o, *f, a]
        for c, s, e, o, f, a in zip(
            CHROMOSOME, START, END, OPEN, FEATURES, ATPM, strict=True
        )
    ]


def write(path, header, lines, by=","):
    text = "\n".join(by.join(map(str, line)) for line in [header, *lines]) + "\n"
    path.write_bytes(
        gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    )
    return path


def read(*paths):
    return find_regions(find_source(paths)).arrays


def messages_of(refusal, path):
    return [
        problem.message.removeprefix(f"{path}: ")
        for problem in refusal(read, path).problems
    ]


def frame(**changed):
    columns = {"chromosome": CHROMOSOME, "start": START, "end": END, "open:K562": OPEN}
    return pandas.DataFrame(
        {
            **columns,
            "GATA1": FEATURES[:, 0],
            "AP1/1": FEATURES[:, 1],
            "atpm:HepG2": ATPM,
            **changed,
        }
    )


def write_anndata(path, matrix=FEATURES, index=NAMES, **obs):
    var = pandas.DataFrame(index=MOTIFS)
    anndata.AnnData(matrix, obs=pandas.DataFrame(obs, index=index), var=var).write_h5ad(
        path
    )


@pytest.mark.filterwarnings("ignore")
def test_all_formats_give_the_same_arrays(tmp_path):
    paths = [
        write(tmp_path / f"{n}{form}", HEADER, rows())
        for n, form in enumerate((".csv", ".csv.gz"))
    ]
    paths += [
        write(tmp_path / f"x{form}", HEADER, rows(), "\t")
        for form in (".tsv", ".tsv.gz")
    ]
    paths += [
        write(
            tmp_path / "bool.csv",
            HEADER,
            [[*row[:3], str(bool(row[3])).upper(), *row[4:]] for row in rows()],
        )
    ]
    paths += [
        tmp_path / name for name in ("x.npz", "x.parquet", "x.h5ad", "sparse.h5ad")
    ]
    np.savez(tmp_path / "x.npz", **ARRAYS)
    frame().to_parquet(tmp_path / "x.parquet")
    values = {"open:K562": OPEN, "atpm:HepG2": ATPM}
    write_anndata(tmp_path / "x.h5ad", note=["a"] * P, **values)
    write_anndata(tmp_path / "sparse.h5ad", sparse.csr_matrix(FEATURES), **values)
    for path in paths:
        found = read(path)
        for name, expected in ARRAYS.items():
            np.testing.assert_array_equal(
                found[name], expected, err_msg=f"{path} {name}"
            )
        facts = RegionFile(path=str(path), test=[]).build().facts()
        assert (facts.motifs, facts.cells, facts.longest, facts.chromosomes) == (
            2,
            ("K562", "HepG2"),
            4,
            3,
        )


def bed(path, fourth=None):
    lines = [name.replace(":", "\t").replace("-", "\t") for name in NAMES]
    if fourth is not None:
        lines = [f"{line}\t{value}" for line, value in zip(lines, fourth, strict=True)]
    return write(path, ["track name=x"], [[line] for line in lines])


def test_matrices_with_bed_files(tmp_path, refusal):
    np.savez(tmp_path / "a.npz", features=FEATURES, motif_names=np.array(MOTIFS, "S"))
    np.savez(tmp_path / "b.npz", FEATURES)
    sparse.save_npz(tmp_path / "c.npz", sparse.csr_matrix(FEATURES))
    sparse.save_npz(tmp_path / "d.npz", sparse.csc_matrix(FEATURES))
    write(tmp_path / "e.csv.gz", MOTIFS, FEATURES)
    for name in ("a.npz", "b.npz", "c.npz", "d.npz", "e.csv.gz"):
        for place in (bed(tmp_path / "p.bed"), bed(tmp_path / "p.bed.gz")):
            found = read(tmp_path / name, place)
            assert found["motifs"][0] in ("GATA1", "motif-0001")
            for array, expected in PLACED.items():
                np.testing.assert_array_equal(found[array], expected, err_msg=name)
        assert refusal(read, tmp_path / name).codes == ["missing-array"]
    found = read(tmp_path / "a.npz", bed(tmp_path / "k562.atac.bed", ATPM))
    assert found["cells"].tolist() == ["k562"]
    np.testing.assert_allclose(found["atpm"][:, 0], ATPM)
    table = write(tmp_path / "x.csv", HEADER, rows())
    found = read(table, bed(tmp_path / "k562.atac.bed", ATPM))
    assert found["cells"].tolist() == ["K562", "HepG2", "k562"]
    assert found["unknown"].tolist() == ["atpm:K562"]
    np.testing.assert_array_equal(found["open"][:, 2], ATPM > 0)


def test_bed_files_that_do_not_match(tmp_path, refusal):
    np.savez(tmp_path / "a.npz", features=FEATURES)
    place = bed(tmp_path / "p.bed")
    table = write(
        tmp_path / "x.csv", HEADER, [[c, s + 1, *more] for c, s, *more in rows()]
    )
    assert refusal(read, table, place).codes == ["contradiction"]
    place.write_text("\n".join(place.read_text().splitlines()[:-1]))
    assert refusal(read, tmp_path / "a.npz", place).codes == ["wrong-shape"]
    assert {*refusal(read, tmp_path / "a.npz", bed(tmp_path / "k.atac.bed")).codes} == {
        "invalid-sample"
    }
    refused = refusal(
        read,
        tmp_path / "a.npz",
        bed(tmp_path / "k.atac.bed", ["", *["high"] * 9, 1, 2]),
    )
    assert (
        "line 2: expected chromosome, start, end and accessibility"
        in refused.problems[0].message
    )
    assert "... and 5 more like the last one" in refused.problems[5].message
    for line in ("chr1\t1", "chr1\tx\t9", f"chr1\t1\t{1 << 70}"):
        place.write_text(line)
        assert (
            "line 1: expected chromosome"
            in refusal(read, tmp_path / "a.npz", place).problems[0].message
        )


@pytest.mark.filterwarnings("ignore")
def test_files_that_are_no_tables(tmp_path, refusal):
    np.savez(tmp_path / "b.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    assert refusal(read, tmp_path / "b.npz").codes == ["missing-array"]
    assert refusal(
        read, tmp_path / "b.npz", write(tmp_path / "x.csv", HEADER, rows())
    ).codes == ["usage"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.zarr.tar").touch()
    for name, code in (
        ("none.zarr", "file-not-found"),
        ("empty", "unknown-format"),
        ("x.zarr.tar", "unknown-format"),
    ):
        assert refusal(read, tmp_path / name).codes == [code]
    frame().to_parquet(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-20])
    (tmp_path / "x.h5ad").write_bytes(b"nothing")
    for name in ("y.parquet", "x.h5ad"):
        assert refusal(read, tmp_path / name).codes == ["damaged-file"]
    for name in ("x.csv", "x.csv.gz", "x.npz", "x.tsv"):
        spec = RegionFile(path=str(tmp_path / "none" / name))
        assert refusal(spec.build).codes == ["file-not-found"]


def flipped(content, near, behind):
    at = content.index(near) + behind
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_damaged_files_are_named(tmp_path, refusal):
    np.savez(tmp_path / "x.npz", **PLACED)
    for path in (tmp_path / "x.npz", write(tmp_path / "x.csv.gz", HEADER, rows() * 20)):
        content = path.read_bytes()
        near = FEATURES.tobytes() if path.suffix == ".npz" else b""
        for damaged in (
            content[: len(content) // 2],
            content[:-9],
            b"",
            b"no such form",
            flipped(content, near, 30),
        ):
            path.write_bytes(damaged)
            assert path.name in str(refusal(read, path))
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfe\x00chromosome")
    assert refusal(read, path).codes == ["damaged-file"]


def test_a_table_too_large_for_memory_is_refused(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("dither.tasks.get_region.formats.tables.LIMIT", 250)
    large, cut = "too-large", "damaged-file"
    for name, most, code in (
        ("x.csv", 350, large),
        ("x.csv", 500, large),
        ("x.csv.gz", 350, cut),
    ):  # bytes, numbers
        monkeypatch.setattr("dither.tasks.get_region.formats.tables.LIMIT", most)
        assert refusal(read, write(tmp_path / name, HEADER, rows())).codes == [code]
    assert (tmp_path / "x.csv").stat().st_size < 500


def test_overlapping_regions_of_a_table_are_refused_as_those_of_a_store(
    tmp_path, refusal
):
    lines = [[c, s, e + 800, *more] for c, s, e, *more in rows()]
    path = write(tmp_path / "x.csv", HEADER, lines)
    data = RegionFile(path=str(path), test=[])
    assert set(refusal(data.build).codes) == {"invalid-sample"}
    allowed = data.model_copy(update={"overlaps": True})
    assert len(allowed.build().start) == P


def test_synonyms_of_places_and_names_of_rows(tmp_path):
    for places in (
        "Chromosome,Start,End",
        "chrom,chromStart,chromEnd",
        "#chr,start,end",
    ):
        found = read(
            write(tmp_path / "x.csv", [*places.split(","), *HEADER[3:]], rows())
        )
        assert found["motifs"].tolist() == MOTIFS
        np.testing.assert_array_equal(found["start"], START)
    assert standard_names(["chrom", "chromosome", "start", "x"]) == [
        "chrom",
        "chromosome",
        "start",
        "x",
    ]
    for name in ("", "peak", "name"):
        path = write(
            tmp_path / "x.csv",
            [name, *HEADER],
            [[f"p{i}", *row] for i, row in enumerate(rows())],
        )
        assert [*read(path)["motifs"]] == MOTIFS
    path = write(
        tmp_path / "y.csv",
        ["peak", *MOTIFS],
        np.column_stack([[f" {name}\t" for name in NAMES], FEATURES]),
    )
    np.testing.assert_array_equal(read(path)["start"], START)


MISTAKES = [
    ((4, 4, "NA"), "invalid-sample", 'line 6, column "GATA1": "NA" is not a number'),
    ((5, 5, -4), "invalid-sample", 'line 7, column "AP1/1": -4.0 is negative'),
    ((4, 1, -3), "invalid-sample", 'line 6, column "start"'),
    ((4, 2, 900.5), "invalid-sample", 'line 6, column "end"'),
    ((4, 3, 2), "invalid-sample", 'line 6, column "open:K562": 2.0 is neither 0 nor 1'),
    (
        (4, 2, 5),
        "invalid-sample",
        "line 6: the region ends at 5, not after its start 500",
    ),
    ((8, 0, "chr1"), "unsorted", "line 10: chr1"),
    ((8, 0, "None"), "invalid-sample", 'line 10: "None"'),
]


def test_mistakes_in_a_table_are_named(tmp_path, refusal):
    for (row, column, value), code, message in MISTAKES:
        lines = rows()
        lines[row][column] = value
        path = write(tmp_path / "{x}.csv", HEADER, lines)
        problems = refusal(read, path).problems
        assert any(
            problem.code == code and problem.message.startswith(f"{path}: {message}")
            for problem in problems
        )


HEADERS = {
    "one name twice": (lambda header: [*header[:-1], "GATA1"], "duplicate"),
    "no motifs": (
        lambda header: header[:4] + [f"open:{n}" for n in range(3)],
        "wrong-shape",
    ),
    "empty motif": (lambda header: [*header[:-1], " "], "invalid-sample"),
    "empty cell": (lambda header: [*header[:-1], "open:"], "invalid-sample"),
    "no start": (lambda header: [header[0], "begin", *header[2:]], "missing-array"),
    "nothing": (lambda header: [], "missing-array"),
}


def test_mistakes_in_a_header(tmp_path, refusal):
    for mistake, (change, code) in HEADERS.items():
        path = write(
            tmp_path / "x.csv", change(HEADER), rows() if mistake != "nothing" else []
        )
        assert code in refusal(read, path).codes, mistake
    path = write(tmp_path / "x.csv", HEADER, rows(), ";")
    assert refusal(read, path).codes == ["syntax-error"]
    assert refusal(read, write(tmp_path / "x.csv", HEADER, [])).codes == ["wrong-shape"]


NEAR = {
    "open_K562": ['"open:K562"'],
    "ATPM k562": ['"atpm:k562"'],
    "open": ['"open:CELL"'],
    "K562_open": ['"open:K562"'],
    "expression:K562": ['"expression_positive:K562"', '"expression_negative:K562"'],
    "score": ["leave it out"],
    "K562": ['"open:K562"'],
}


def test_a_label_is_not_taken_for_a_motif(tmp_path, refusal):
    for name, help_texts in NEAR.items():
        path = write(tmp_path / "x.csv", [*HEADER, name], [[*row, 1] for row in rows()])
        (problem,) = refusal(read, path).problems
        assert (problem.code, problem.message.split('"')[1]) == ("unknown-key", name)
        assert all(meant in problem.help for meant in help_texts)
    np.savez(tmp_path / "x.npz", **ARRAYS | {"motifs": np.array(["GATA1", "K562"])})
    write_anndata(tmp_path / "x.h5ad", index=NAMES, **{"atpm:gata1": ATPM})
    table = write(tmp_path / "x.csv", ["GATA1", "k562"], FEATURES)
    for paths in (
        [tmp_path / "x.npz"],
        [tmp_path / "x.h5ad"],
        [table, bed(tmp_path / "k562.atac.bed", ATPM)],
    ):
        (problem,) = refusal(read, *paths).problems
        assert (problem.code, bool(problem.help)) == ("unknown-key", True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("binary", [True, False])
def test_anndata_of_cell_types_by_regions(tmp_path, refusal, binary):
    values = np.stack([OPEN, 1 - OPEN] if binary else [ATPM, ATPM[::-1]])
    obs, var = pandas.DataFrame(index=["K562", "HepG2"]), pandas.DataFrame(index=NAMES)
    motifs = pandas.DataFrame(FEATURES, index=NAMES, columns=["GATA1", "CTCF"])
    for number, table in enumerate((motifs, FEATURES)):
        path = tmp_path / f"{number}.h5ad"
        anndata.AnnData(
            sparse.csr_matrix(values), obs=obs, var=var, varm={"motifs": table}
        ).write_h5ad(path)
        found = read(path)
        np.testing.assert_array_equal(found["features"], FEATURES)
        np.testing.assert_array_equal(found["open" if binary else "atpm"], values.T)
        np.testing.assert_array_equal(found["start"], START)
        assert found["cells"].tolist() == ["K562", "HepG2"]
        assert (
            found["motifs"].tolist()
            == [["GATA1", "CTCF"], ["motif-0001", "motif-0002"]][number]
        )
    anndata.AnnData(values, obs=obs, var=var).write_h5ad(path)
    assert refusal(read, path).codes == ["wrong-shape"]


@pytest.mark.filterwarnings("ignore")
def test_single_cells_are_averaged_or_refused(tmp_path, refusal):
    """Forty cells are no forty cell types: a column of obs says which cells are of one type."""
    g = np.random.default_rng(0)
    values = (g.random((40, P)) < 0.3).astype(np.float32)
    types = np.array(["B", "T", "T", None] * 10, object)
    var = pandas.DataFrame(index=NAMES)
    motifs = pandas.DataFrame(FEATURES, index=NAMES, columns=["GATA1", "CTCF"])
    path = tmp_path / "cells.h5ad"

    def write_cells(matrix, names):
        obs = pandas.DataFrame({"type": types[: len(names)]}, index=names)
        anndata.AnnData(matrix, obs=obs, var=var, varm={"motifs": motifs}).write_h5ad(
            path
        )

    def grouped(column):
        return find_regions(find_source([path]), ReadOptions(group_by=column))

    names = [f"cell{number}" for number in range(40)]
    for matrix in (sparse.csr_matrix(values), values):
        write_cells(matrix, names)
        found = grouped("type")
        assert found.arrays["cells"].tolist() == ["B", "T"]
        means = [values[types == name].mean(0) for name in ("B", "T")]
        np.testing.assert_allclose(found.arrays["atpm"], np.stack(means, 1), rtol=1e-6)
        assert found.notes == (
            "30 cells averaged into 2 types by type",
            "10 cells without type are left out",
        )
    assert grouped("obs_names").arrays["cells"].tolist() == names
    assert refusal(read, path).codes == ["wrong-shape"]
    assert refusal(grouped, "typ").codes == ["unknown-value"]

    write_cells(values[:2], ["AAACGAAAGAGTTTGA-1", "AAACGAAAGCGAGCTA-1"])
    assert refusal(read, path).codes == ["wrong-shape"]
    write_anndata(path)
    assert refusal(grouped, "type").codes == ["no-effect"]


def test_the_cause_of_a_file_that_cannot_be_read(tmp_path, refusal, write_store):
    """Comments before a header, gzip under any name, pointers of Git LFS, AnnData in zarr, names of chromosomes."""
    expected = read(write(tmp_path / "x.csv", HEADER, rows()))
    text = (tmp_path / "x.csv").read_text()
    path = tmp_path / "y.csv"
    for content in (
        ("# made, today\n## a second line\n" + text).encode(),
        gzip.compress(text.encode()),
        text.replace("chromosome,", "#chrom,").encode(),
    ):
        path.write_bytes(content)
        for name, array in read(path).items():
            np.testing.assert_array_equal(array, expected[name])
    path.write_text("# one\n" + text.replace("chr1,500,800", "chr1,500,eight"))
    assert "line 3, " in messages_of(refusal, path)[0]

    for name in ("x.h5ad", "x.npz", "x.parquet", "x.csv", "x.csv.gz"):
        (tmp_path / name).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        )
        refused = refusal(read, tmp_path / name)
        assert refused.codes == ["unreadable-file"]
        assert "Git LFS" in str(refused)

    store = tmp_path / "cells.zarr"
    store.mkdir()
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    (store / ".zattrs").write_text('{"encoding-type": "anndata"}')
    refused = refusal(read, store)
    assert refused.codes == ["unknown-format"]
    assert "read_zarr" in refused.problems[0].help

    data = RegionFile(
        path=str(write(tmp_path / "z.csv", HEADER, rows())), valid=["2"], test=[]
    )
    (problem,) = refusal(data.build).problems
    assert '"chr2"' in problem.help


def test_arrays_that_are_not_read_are_noted(tmp_path):
    np.savez(tmp_path / "x.npz", **ARRAYS, atmp=OPEN)
    raw = find_regions(find_source([tmp_path / "x.npz"]))
    assert raw.notes == ("arrays that are not read: atmp",)


def test_accessibility_that_no_array_has_is_refused(tmp_path, refusal):
    names = [name for name in HEADER if not name.startswith(("open", "atpm"))]
    header = [
        *names,
        *(f"expression_{strand}:K562" for strand in ("positive", "negative")),
    ]
    path = write(
        tmp_path / "x.csv",
        header,
        [[c, s, e, *f, 1, 2] for c, s, e, _, *f, _ in rows()],
    )
    data = RegionFile(path=str(path), valid=["chr2"], test=[])
    for options in (
        {},
        {"accessibility": "quantitative"},
        {"accessibility": "constant", "drop_closed": True},
    ):
        task = GetRegion(data=data, regions=4, **options)
        assert "missing-array" in {misfit.code for misfit in task.check()}
        assert refusal(task.build).codes == ["missing-array"]
    assert not [
        *GetRegion(data=data, regions=4, accessibility=False, expression=True).check()
    ]


def test_motifs_with_similar_names_are_accepted(tmp_path):
    names = [
        "OPENER",
        "TSS1",
        "TSS::X",
        "AP1/1",
        "HD/10",
        "atp",
        "ZNF-reopen",
        "gc_content",
        "expressions",
    ]
    check_names([*names, "open:K562"], tmp_path)


WRONG_ARRAYS = [
    ({"start": None}, "missing-array", '"start"; it has atpm, cells, chromosome'),
    (
        {"features": np.ones((4, 2))},
        "wrong-shape",
        '"features" has the shape (4, 2), expected (12, 2)',
    ),
    (
        {"motifs": None, "motif_names": np.array(["a"])},
        "wrong-shape",
        "12 regions and 1 motifs",
    ),
    (
        {"features": np.where(np.eye(P, 2) > 0, np.nan, 1)},
        "invalid-sample",
        'row 1 (from 0), column "AP1/1"',
    ),
    (
        {"start": None, "chromStart": START + 0.5},
        "invalid-sample",
        "chromStart, row 0 (from 0)",
    ),
    ({"start": START[::-1]}, "unsorted", "row 1 (from 0): "),
    (
        {"chromosome": CHROMOSOME.astype(object)},
        "wrong-shape",
        '"chromosome" holds objects',
    ),
    ({"motifs": np.array([b"a", b"\xff"])}, "invalid-sample", '"motifs", row 1'),
]


def test_mistakes_in_arrays_are_named(tmp_path, refusal):
    for change, code, place in WRONG_ARRAYS:
        changed = {
            name: array
            for name, array in {**ARRAYS, **change}.items()
            if array is not None
        }
        np.savez(tmp_path / "x.npz", **changed)
        refused = refusal(read, tmp_path / "x.npz")
        assert any(
            code == problem.code and place in problem.message
            for problem in refused.problems
        ), refused
        assert all("x.npz: " in problem.message for problem in refused.problems)


def test_places_and_mistakes_in_parquet(tmp_path, refusal):
    path = tmp_path / "x.parquet"
    for index in (
        np.arange(P) + 7,
        [f"p{i}" for i in range(P)],
        np.linspace(0, 1, P),
    ):  # not a motif
        for name in (None, "idx"):
            frame().set_index(pandas.Index(index, name=name)).to_parquet(path)
            assert read(path)["motifs"].tolist() == MOTIFS
    frame()[MOTIFS].set_index(pandas.Index(NAMES, name="idx")).to_parquet(path)
    assert read(path)["end"].tolist() == END.tolist()
    frame().assign(x=NAMES).set_index("x").reset_index(names="peak").set_index(
        pandas.Index(NAMES)
    ).to_parquet(path)
    assert read(path)["motifs"].tolist() == MOTIFS
    frame().set_index(["chromosome", "start", "end"]).to_parquet(path)
    assert read(path)["motifs"].tolist() == MOTIFS
    frame(chromosome=[int(name[3:]) for name in CHROMOSOME]).to_parquet(path)
    assert read(path)["chromosome"].tolist() == [name[3:] for name in CHROMOSOME]
    wrong = frame(chromosome=[*CHROMOSOME[:-1], None], GATA1=-FEATURES[:, 1])
    wrong.rename(columns={"chromosome": "chrom"}).to_parquet(path)
    messages = messages_of(refusal, path)
    assert messages[0] == 'row 11 (from 0), column "chrom": nan is not text'
    assert messages[1].startswith('row 0 (from 0), column "GATA1": -')
    frame(open_K562=1, note="x").to_parquet(path)
    assert refusal(read, path).codes == ["unknown-key"]
    frame(GATA1="x").to_parquet(path)
    assert refusal(read, path).codes == ["wrong-shape"]


@pytest.mark.filterwarnings("ignore")
def test_places_and_mistakes_in_anndata(tmp_path, refusal):
    path, index = tmp_path / "x.h5ad", [f"p{i}" for i in range(P)]
    obs = {
        "chrom": CHROMOSOME.astype(object),
        "chromStart": START,
        "chromEnd": END,
        "score": 1.0,
    }
    write_anndata(path, index=index, **obs)
    found = read(path)
    assert found["chromosome"].tolist() == CHROMOSOME.tolist()
    assert found["motifs"].tolist() == MOTIFS
    write_anndata(path, FEATURES > 1, index, **{**obs, "chromStart": START + 0.5})
    messages = messages_of(refusal, path)
    assert messages[0] == '"X" holds bool, expected numbers'
    assert messages[1].startswith(
        'obs, row 0 (from 0), column "chromStart": 500.5 is not a base number'
    )
    write_anndata(path, index=index, **{**obs, "chrom": [*CHROMOSOME[:-1], None]})
    assert messages_of(refusal, path) == [
        'obs, row 11 (from 0), column "chrom": nan is not text'
    ]
    write_anndata(path, **{"open:k562": pandas.Categorical(["yes"] * P)})
    refused = refusal(read, path)
    assert refused.codes == ["wrong-shape"]
    assert 'column "open:k562"' in refused.problems[0].message
    anndata.AnnData(
        FEATURES.T, pandas.DataFrame(index=MOTIFS), pandas.DataFrame(index=NAMES)
    ).write_h5ad(path)
    assert refusal(read, path).codes == ["wrong-shape"]
