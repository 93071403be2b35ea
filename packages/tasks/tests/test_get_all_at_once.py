"""In every format all problems are reported at once, each with file, array and row."""

import gzip

import numpy as np
import pytest
from scipy import sparse

from dither.registry.config.errors import Refused
from dither.tasks.get_region.formats.sources import find_regions, find_source
from dither.tasks.get_region.formats.zarr_store import write_array, write_group

P, M = 30, 4
CHROMOSOME = np.repeat(["chr1", "chr2", "chr3"], 10)
START = np.tile(np.arange(10) * 1000, 3) + 500
MOTIFS = np.array(["GATA1", "AP1/1", "CTCF", "SOX2"])
NAMES = np.array([f"{c}:{s}-{s + 800}" for c, s in zip(CHROMOSOME, START, strict=True)])
NAMES[20], NAMES[3] = "nonsense", "chr1:1-2"
DATA, ATPM = np.ones((P, M), np.float32), np.full(P, 0.5, np.float32)
DATA[4, 2], DATA[9, 1], ATPM[7] = np.nan, -2, -1
BED = [name.replace(":", "\t").replace("-", "\t") for name in NAMES]


def refusal(*paths):
    with pytest.raises(Refused) as refused:
        find_regions(find_source(paths))
    return [str(problem.message) for problem in refused.value.problems]


def store(folder, version, names):
    write_group(folder / "x.zarr", version)
    arrays = {"data": DATA, "motif_names": MOTIFS, "atpm/k562": ATPM}
    for name, values in arrays.items():
        write_array(folder / "x.zarr" / name, values, None, version)
    write_array(folder / "x.zarr" / "peak_names", names, None, version)
    return (folder / "x.zarr",)


def npz(folder):
    np.savez(
        folder / "x.npz", counts=DATA, motifs=MOTIFS, peak_names=NAMES, cells=np.array(["k562"]), atpm=ATPM[:, None]
    )
    return (folder / "x.npz",)


def csv(folder):
    header = ["peak", *MOTIFS, "atpm:k562"]
    rows = [[name, *values, atpm] for name, values, atpm in zip(NAMES, DATA, ATPM, strict=True)]
    rows[12][2], rows[14] = "", rows[14][:-1]
    text = "\n".join(",".join(map(str, row)) for row in [header, *rows])
    (folder / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    return (folder / "x.csv.gz",)


def beds(folder, lines=BED, fourth=ATPM):
    np.savez(folder / "y.npz", DATA)
    (folder / "k562.atac.bed").write_text(
        "# peaks\n" + "\n".join(f"{a}\t{b}" for a, b in zip(lines, fourth, strict=True))
    )
    return folder / "y.npz", folder / "k562.atac.bed"


def legacy(folder):
    (folder / "old" / "a").mkdir(parents=True)
    for number in range(2):
        sparse.save_npz(folder / "old/a" / f"{number}.watac.npz", sparse.csr_matrix(np.c_[DATA, ATPM]))
        rows = [name.replace(":", ",").replace("-", ",") for name in NAMES]
        rows[20] = "chr3,9,8"
        (folder / "old/a" / f"{number}.csv").write_text("Chromosome,Start,End\n" + "\n".join(rows))
    np.save(folder / "old/a/1.exp.npy", np.where(np.arange(P)[:, None] == 6, np.inf, np.ones((P, 2))))
    (folder / "old/cell_type_align.txt").write_text("id,celltype,datatype\n0,k562,a\n1,cd4,a\n")
    return (folder / "old",)


NUMBERS = [
    'data, row 4, column "CTCF": nan is not finite',
    'data, row 9, column "AP1/1": -2.0 is negative',
    "atpm/k562, row 7: -1.0 is negative",
]
PEAKS = [
    'peak_names, row 20: "nonsense" is not a place such as chr1:9790-10675',
    "peak_names, row 3: regions are not sorted: chr1:1 after chr1:2500; sort by chromosome and start",
]
FORMS = {
    "zarr 2, texts of fixed length": (lambda folder: store(folder, 2, NAMES), [*PEAKS, *NUMBERS]),
    "zarr 2, bytes": (lambda folder: store(folder, 2, NAMES.astype("S")), [*PEAKS, *NUMBERS]),
    "zarr 3, texts of any length": (lambda folder: store(folder, 3, NAMES), [*PEAKS, *NUMBERS]),
    "numbers for names": (
        lambda folder: store(folder, 2, np.arange(P)),
        ['"peak_names" holds int64, expected text', *NUMBERS],
    ),
    "bytes that are no text": (
        lambda folder: store(folder, 2, np.where(np.arange(P) == 5, b"chr1\xff", NAMES.astype("S"))),
        ["peak_names, row 5: b'chr1\\xff' is not UTF-8", *NUMBERS],
    ),
    "npz": (
        npz,
        [
            'peak_names, row 20 (from 0): "nonsense" is not a place such as chr1:9790-10675',
            "peak_names, row 3 (from 0): regions are not sorted: chr1:1 after chr1:2500; sort by chromosome and start",
            'counts, row 4 (from 0), column "CTCF": nan is not finite',
            'counts, row 9 (from 0), column "AP1/1": -2.0 is negative',
            'atpm, row 7 (from 0), column "atpm:k562": -1.0 is negative',
        ],
    ),
    "csv": (
        csv,
        [
            'line 14, column "AP1/1": "" is not a number',
            "line 16: has 5 columns, the header has 6",
            'line 6, column "CTCF": nan is not finite',
            'line 11, column "AP1/1": -2.0 is negative',
            'line 9, column "atpm:k562": -1.0 is negative',
        ],
    ),
    "npz and bed": (
        lambda folder: beds(folder, [line.replace("nonsense", "chr3\t9\t8") for line in BED]),
        [
            'arr_0, row 4 (from 0), column "motif-0003": nan is not finite',
            'arr_0, row 9 (from 0), column "motif-0002": -2.0 is negative',
            "k562.atac.bed, line 9: -1.0 is negative",
            "k562.atac.bed, line 22: the region ends at 8, not after its start 9",
            "k562.atac.bed, line 5: regions are not sorted: chr1:1 after chr1:2500; sort by chromosome and start",
        ],
    ),
    "folder": (
        legacy,
        [
            messages
            for number, more in enumerate(([], ['1.exp.npy, row 6 (from 0): inf is not finite'] * 2))
            for messages in [
                f'{number}.watac.npz, row 4 (from 0), column "motif-0003": nan is not finite',
                f'{number}.watac.npz, row 9 (from 0), column "motif-0002": -2.0 is negative',
                f"{number}.watac.npz, row 7 (from 0), the last column: -1.0 is negative",
                *more[:1],
                f"{number}.csv, line 22: the region ends at 8, not after its start 9",
                f"{number}.csv, line 5: regions are not sorted: chr1:1 after chr1:2500; sort by chromosome and start",
            ]
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_all_problems_are_reported_at_once_with_their_place(tmp_path, form):
    write, expected = FORMS[form]
    paths = write(tmp_path)
    messages = refusal(*paths)
    assert [line.split(": ", 1)[1] for line in messages] == expected
    assert all(line.startswith(str(paths[0])) for line in messages)


def test_invalid_lines_of_a_bed_file(tmp_path):
    messages = refusal(*beds(tmp_path))
    assert f'{tmp_path / "k562.atac.bed"}: line 22: expected chromosome, start and end, got "nonsense\t0.5"' in messages
    good = [line.replace("nonsense", "chr3\t9\t10") for line in BED]
    messages = refusal(*beds(tmp_path, good, ["", *["high"] * 9, *ATPM[10:]]))
    assert messages[:2] == [
        f'{tmp_path / "k562.atac.bed"}: line 2: "" is not a number (accessibility of k562)',
        f'{tmp_path / "k562.atac.bed"}: line 3: "high" is not a number (accessibility of k562)',
    ]
    assert "... and 5 more like the last one" in messages
    assert any("arr_0, row 4" in line for line in messages)


def test_names_in_an_npz_file_may_be_bytes_but_not_numbers(tmp_path):
    good = [f"chr1:{n}0-{n}5" for n in range(P)]
    ones, path = np.ones((P, M)), tmp_path / "x.npz"
    np.savez(path, features=ones, motifs=MOTIFS.astype("S"), peak_names=np.array(good, "S"))
    found = find_regions(find_source([path])).arrays
    assert found["motifs"].tolist() == MOTIFS.tolist()
    assert found["start"].tolist() == [n * 10 for n in range(P)]
    np.savez(path, features=ones, motifs=MOTIFS, peak_names=np.arange(P))
    assert refusal(path) == [f'{path}: "peak_names" holds int64, expected text']
    np.savez(path, features=ones, motifs=np.array([b"a", b"\xff", b"c", b"d"]), peak_names=np.array(good))
    assert f"{path}: \"motifs\", row 1: b'\\xff' is not UTF-8" in refusal(path)


def test_a_part_of_a_store_is_refused(tmp_path):
    (path,) = store(tmp_path, 2, NAMES)
    write_group(path / "atpm")
    for part in ("data", "atpm", "atpm/k562"):
        with pytest.raises(Refused) as refused:
            find_source([path / part])
        assert refused.value.codes == ["unknown-format"]
        assert f"give the store: {path}" in refused.value.problems[0].help
