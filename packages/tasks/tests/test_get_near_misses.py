"""Tables that are almost right: only what is wrong is named, and no column is taken for another."""

import anndata
import numpy as np
import pandas
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data_specs import PreparedRegions
from dither.tasks.get_region.formats.column_names import parse_columns
from dither.tasks.get_region.formats.peaks import texts_of
from dither.tasks.get_region.formats.region_checks import check_order
from dither.tasks.get_region.formats.sources import find_regions, find_source
from dither.tasks.get_region.formats.tables import read_facts, read_region_file

P, MOTIFS = 12, ["GATA1", "AP1/1"]
CHROMOSOME = np.repeat(["chr1", "chr2", "chr3"], 4)
START = np.tile(np.arange(4) * 1000, 3) + 500
END = START + 300
FEATURES = np.arange(P * 2).reshape(P, 2) + 1.0


def rows():
    return [[c, s, e, *f] for c, s, e, f in zip(CHROMOSOME, START, END, FEATURES, strict=True)]


def write(path, header, lines, by=","):
    path.write_text("\n".join(by.join(map(str, line)) for line in [header, *lines]) + "\n")
    return path


HEADER = ["chromosome", "start", "end", *MOTIFS]


def read(path):
    return find_regions(find_source([path])).arrays


def refusal(path, look=read):
    with pytest.raises(Refused) as refused:
        look(path)
    return [problem.message.removeprefix(f"{path}: ") for problem in refused.value.problems], refused.value.problems


@pytest.mark.parametrize("text", ["", "NA", "1,5"])
def test_only_the_invalid_value_is_reported(tmp_path, text):
    lines = rows()
    lines[4][4] = f'"{text}"' if "," in text else text
    messages, _ = refusal(write(tmp_path / "x.csv", HEADER, lines))
    assert messages == [f'line 6, column "AP1/1": "{text}" is not a number']
    lines[2][1], lines[7][3] = "soon", -1
    messages, _ = refusal(write(tmp_path / "x.csv", HEADER, lines))
    assert messages[:2] == [
        'line 4, column "start": "soon" is not a number',
        f'line 6, column "AP1/1": "{text}" is not a number',
    ]
    assert messages[2:] == ['line 9, column "GATA1": -1.0 is negative']


def test_the_other_values_of_a_row_are_checked(tmp_path):
    lines = rows()
    lines[4][4], lines[4][3], lines[6][1] = "", "inf", 1
    messages, _ = refusal(write(tmp_path / "x.csv", HEADER, lines))
    assert messages == [
        'line 6, column "AP1/1": "" is not a number',
        'line 6, column "GATA1": inf is not finite',
        "line 8: regions are not sorted: chr2:1 after chr2:1500; sort by chromosome and start",
    ]


def test_a_column_of_text_is_reported_once(tmp_path):
    lines = [[*row, "late", "enhancer"] for row in rows()]
    lines[5][3] = "?"
    messages, _ = refusal(write(tmp_path / "x.csv", [*HEADER, "when", "what"], lines))
    assert messages == [
        'the column "when" holds no numbers: "late" in line 2, and so on',
        'the column "what" holds no numbers: "enhancer" in line 2, and so on',
        'line 7, column "GATA1": "?" is not a number',
    ]


def test_semicolons_are_reported(tmp_path):
    path = write(tmp_path / "x.csv", HEADER, rows(), ";")
    for look in (read, lambda path: read_facts(path, valid=(), test=())):
        messages, problems = refusal(path, look)
        assert messages == ['line 1: columns are separated by ";"']
        assert problems[0].code == "syntax-error"


@pytest.mark.parametrize("name", ["", "peak", "name"])
def test_rows_may_have_names(tmp_path, name):
    path = write(tmp_path / "x.csv", [name, *HEADER], [[f"p{i}", *row] for i, row in enumerate(rows())])
    found = read(path)
    assert found["motifs"].tolist() == MOTIFS
    np.testing.assert_array_equal(found["features"], FEATURES)
    assert read_facts(path, valid=(), test=()).motifs == 2
    assert read_region_file(path, valid=("chr2",), test=(), scale=False).motifs == tuple(MOTIFS)


NEAR = {
    "open_K562": ['"open:K562"'],
    "Open.K562": ['"open:K562"'],
    "ATPM k562": ['"atpm:k562"'],
    "open": ['"open:CELL"'],
    "K562_open": ['"open:K562"'],
    "expression_positive_K562": ['"expression_positive:K562"'],
    "expression_K562": ['"expression_positive:K562"', '"expression_negative:K562"'],
    "tss-K562": ['"tss_positive:K562"', '"tss_negative:K562"'],
}


@pytest.mark.parametrize("name", NEAR)
def test_a_label_is_not_taken_for_a_motif(tmp_path, name):
    path = write(tmp_path / "x.csv", [*HEADER, name], [[*row, 1] for row in rows()])
    for look in (read, lambda path: read_facts(path, valid=(), test=())):
        messages, problems = refusal(path, look)
        assert messages[0].startswith(f'the column "{name}"')
        assert [problem.code for problem in problems] == ["unknown-key"]
        assert f"did you mean {' and '.join(NEAR[name])}?" in problems[0].help


def test_columns_of_bed_are_not_motifs(tmp_path):
    path = write(tmp_path / "x.csv", [*HEADER, "Name", "score", "strand"], [[*row, "a", 5, "+"] for row in rows()])
    messages, problems = refusal(path)
    assert [line.split('"')[1] for line in messages] == ["Name", "score", "strand"]
    assert "leave it out" in problems[0].help


def test_motifs_with_similar_names_are_accepted(tmp_path):
    names = ["OPENER", "TSS1", "TSS::X", "AP1/1", "HD/10", "atp", "ZNF-reopen", "gc_content", "expressions"]
    assert parse_columns([*names, "open:K562"], tmp_path).motifs == (*range(len(names)),)


def test_names_that_are_empty_are_refused(tmp_path):
    messages, _ = refusal(write(tmp_path / "x.csv", [*HEADER, " "], [[*row, 1] for row in rows()]))
    assert messages == ["number 3 of the motifs has no name"]
    messages, _ = refusal(write(tmp_path / "x.csv", [*HEADER, "open:"], [[*row, 1] for row in rows()]))
    assert messages == ["number 1 of the cells has no name"]


def placed(**more):
    return {"features": FEATURES, "chromosome": CHROMOSOME, "start": START, "end": END, **more}


def test_bytes_are_counts_like_other_numbers(tmp_path):
    path, counts = tmp_path / "x.npz", FEATURES.astype(np.uint8)
    np.savez(path, **placed(features=counts, motifs=np.array(MOTIFS)))
    split = {"valid": ["chr2"], "test": ["chr1"], "scale": False}
    way = PreparedRegions(paths=[str(path)], out=str(tmp_path / "out"), **split)
    way.prepare()
    np.testing.assert_array_equal(np.asarray(way.build().features), FEATURES)
    assert way.build().features.dtype == np.float32


def test_synonyms_of_places_in_an_npz_file(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {"features": FEATURES, "motifs": np.array(MOTIFS), "chrom": CHROMOSOME, "chromStart": START, "End": END}
    np.savez(path, **arrays)
    np.testing.assert_array_equal(read(path)["start"], START)
    np.testing.assert_array_equal(read_region_file(path, valid=("chr2",), test=(), scale=False).end, END)
    assert read_facts(path, valid=(), test=()).chromosomes == 3
    np.savez(path, **{**arrays, "chromStart": START + 0.5, "features": FEATURES > 1})
    for look in (read, lambda path: read_region_file(path, valid=(), test=(), scale=False)):
        messages, _ = refusal(path, look)
        assert messages[0] == '"features" holds bool, expected numbers'
        assert messages[1].startswith("chromStart, row 0 (from 0)")


def test_messages_name_arrays_as_in_the_file(tmp_path):
    np.savez(tmp_path / "x.npz", **placed(features=FEATURES), data=FEATURES[0])
    assert "features" in read(tmp_path / "x.npz")
    given = placed()
    np.savez(tmp_path / "y.npz", data=given.pop("features") > 1, **given)
    assert refusal(tmp_path / "y.npz")[0] == ['"data" holds bool, expected numbers']
    np.savez(tmp_path / "z.npz", **placed(motif_names=np.array(["a"])))
    (messages,), _ = refusal(tmp_path / "z.npz")
    assert messages == '"features" has the shape (12, 2), expected (12, 1) for 12 regions and 1 motifs'


def test_an_array_of_objects_is_named(tmp_path):
    np.savez(tmp_path / "x.npz", **placed(chromosome=CHROMOSOME.astype(object)))
    messages, problems = refusal(tmp_path / "x.npz")
    assert messages == ['"chromosome" holds objects']
    assert '.astype("str")' in problems[0].help


def test_missing_names_of_chromosomes():
    for missing in (None, np.nan, 7, b"chr1"):
        values = np.array(["chr1", missing, "chr2"], object)
        with pytest.raises(Refused, match=r"row 1: .*invalid-sample"):
            texts_of(values, lambda row: f"row {row}")
    assert texts_of(np.array([1, 22]), str).tolist() == ["1", "22"]
    assert texts_of(np.array(["chr1", "X"], object), str).dtype.kind == "U"
    for name in ("nan", "None", "NA", "<NA>"):
        arrays = {"chromosome": np.array(["chr1", name]), "start": np.array([1, 1]), "end": np.array([2, 2])}
        (problem,) = check_order(lambda array, row, column: f"row {row}", arrays, overlaps=False)
        assert problem.message.startswith(f'row 1: "{name}"')


@pytest.fixture
def frame():
    return pandas.DataFrame(FEATURES, columns=MOTIFS).assign(chrom=CHROMOSOME, start=START, end=END)


@pytest.mark.parametrize("index", [np.arange(P) + 7, [f"p{i}" for i in range(P)], np.linspace(0, 1, P)])
@pytest.mark.parametrize("name", [None, "idx"])
def test_an_index_of_pandas_is_not_a_motif(tmp_path, frame, index, name):
    path = tmp_path / "x.parquet"
    frame.set_index(pandas.Index(index, name=name)).to_parquet(path)
    found = read(path)
    assert found["motifs"].tolist() == MOTIFS
    np.testing.assert_array_equal(found["features"], FEATURES)
    np.testing.assert_array_equal(found["start"], START)


def test_an_index_of_pandas_with_places(tmp_path, frame):
    path = tmp_path / "x.parquet"
    names = [f"{c}:{s}-{e}" for c, s, e in zip(CHROMOSOME, START, END, strict=True)]
    frame[MOTIFS].set_index(pandas.Index(names, name="idx")).to_parquet(path)
    assert read(path)["end"].tolist() == END.tolist()
    frame.set_index(["chrom", "start", "end"]).to_parquet(path)
    assert read(path)["motifs"].tolist() == MOTIFS
    frame.assign(chrom=[int(name[3:]) for name in CHROMOSOME]).to_parquet(path)
    assert read(path)["chromosome"].tolist() == [name[3:] for name in CHROMOSOME]


def test_chromosomes_that_are_missing_in_parquet(tmp_path, frame):
    path = tmp_path / "x.parquet"
    frame["chrom"] = frame["chrom"].astype(object)
    frame.loc[P - 1, "chrom"] = None
    frame.loc[0, "GATA1"] = -1
    frame.to_parquet(path)
    messages, _ = refusal(path)
    assert messages == [
        'row 11 (from 0), column "chrom": None is not text',
        'row 0 (from 0), column "GATA1": -1.0 is negative',
    ]
    frame.assign(chrom=CHROMOSOME, GATA1=1.0, open_K562=1, note="x").to_parquet(path)
    assert [problem.code for problem in refusal(path)[1]] == ["unknown-key"]


@pytest.mark.filterwarnings("ignore")
def test_places_in_anndata(tmp_path):
    path, var = tmp_path / "x.h5ad", pandas.DataFrame(index=MOTIFS)
    obs = pandas.DataFrame(
        {"chrom": CHROMOSOME.astype(object), "chromStart": START, "chromEnd": END, "score": 1.0, "tss_distance": 5},
        index=[f"p{i}" for i in range(P)],
    )

    def put(**changed):
        anndata.AnnData(changed.pop("X", FEATURES), obs=obs.assign(**changed), var=var).write_h5ad(path)

    put()
    found = read(path)
    assert found["chromosome"].tolist() == CHROMOSOME.tolist()
    assert found["motifs"].tolist() == MOTIFS
    put(chromStart=START + 0.5, X=FEATURES > 1)
    messages, _ = refusal(path)
    assert messages[:2] == [
        '"X" holds bool, expected numbers',
        'obs, row 0 (from 0), column "chromStart": 500.5 is not a base number (a whole number of at least 0)',
    ]
    put(chrom=[*CHROMOSOME[:-1], None])
    assert refusal(path)[0] == ['obs, row 11 (from 0), column "chrom": nan is not text']
