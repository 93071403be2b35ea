"""Zarr arrays: read as zarr itself reads them, written so that zarr reads them, and no damage goes unnamed."""

import bz2
import gzip
import json
import lzma
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.formats.zarr_array import ZarrArray, write_array, write_group
from dither.tasks.get_region.formats.zarr_codecs import crc32c, unpack

RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.random((25, 7), dtype=np.float32)
TEXTS = np.array(["AP1/1", "", "chr1:9790-10675", "häm", "x"])
PLAIN = {
    "zarr_format": 2,
    "shape": [5, 3],
    "chunks": [2, 2],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 7,
    "filters": None,
    "order": "C",
}


def header(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    said = {key: value for key, value in {**PLAIN, **changes}.items() if value != "absent"}
    (folder / ".zarray").write_text(json.dumps(said))
    return folder


def refusal(folder, rows=slice(None)):
    with pytest.raises(Refused) as refused:
        ZarrArray(folder)[rows]
    return str(refused.value)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("values", [NUMBERS, NUMBERS[:, 0], TEXTS, RANDOM.integers(-5, 5, (9, 2)).astype(np.int8)])
@pytest.mark.parametrize("rows", [None, 4, 100])
def test_what_is_written_is_read(tmp_path, version, values, rows):
    write_array(tmp_path / "x", values, rows, version)
    array = ZarrArray(tmp_path / "x")
    assert array.shape == values.shape
    np.testing.assert_array_equal(array[:], values)
    for part in (slice(3, 5), slice(4, 4), slice(0, 1), slice(2, 99)):
        np.testing.assert_array_equal(array[part], values[part])
    assert array.missing() == []


def test_chunks_laid_out_by_hand(tmp_path):
    """5 x 3 in chunks of 2 x 2: each chunk is full on disk, and one that is not there holds the fill value."""
    folder = header(tmp_path / "x")
    whole = np.full((6, 4), 7, np.int32)
    whole[:5, :3] = np.arange(15).reshape(5, 3)
    for i in range(3):
        for j in range(2):
            if (i, j) != (1, 0):
                (folder / f"{i}.{j}").write_bytes(whole[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].tobytes())
    expected = whole[:5, :3].copy()
    expected[2:4, :2] = 7
    np.testing.assert_array_equal(ZarrArray(folder)[:], expected)
    assert ZarrArray(folder).missing() == [(1, 0)]


@pytest.mark.parametrize(("packing", "pack"), [("zlib", zlib.compress), ("gzip", gzip.compress)])
def test_packed_chunks_other_separators_and_orders(tmp_path, packing, pack):
    values = np.arange(15, dtype=np.int32).reshape(5, 3)
    folder = header(
        tmp_path / "x", chunks=[5, 3], compressor={"id": packing, "level": 9}, order="F", dimension_separator="/"
    )
    (folder / "0").mkdir()
    (folder / "0" / "0").write_bytes(pack(values.tobytes("F")))
    np.testing.assert_array_equal(ZarrArray(folder)[:], values)


def test_castagnoli():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's polynomial
    assert unpack("crc32c", b"123456789" + struct.pack("<I", 0xE3069283), 9) == b"123456789"


DAMAGE = {
    "cut short": (lambda content: content[:-9], "0.0: rows 0 to 4 cannot be read: it is cut short"),
    "empty": (lambda content: b"", "it holds 0 bytes, expected 60"),
    "no such packing": (lambda content: b"nonsense" * 9, "it is damaged or cut short"),
    "too much": (lambda content: zlib.compress(bytes(10**7)), "it holds more than the 60 bytes that it should"),
    "too little": (lambda content: zlib.compress(bytes(59)), "it holds 59 bytes, expected 60"),
    "two pieces too much": (lambda content: content + zlib.compress(b"more"), "it holds more than the 60 bytes"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_chunks_are_named_with_their_rows(tmp_path, damage):
    spoil, message = DAMAGE[damage]
    folder = header(tmp_path / "x", chunks=[5, 3], compressor={"id": "zlib", "level": 1})
    (folder / "0.0").write_bytes(spoil(zlib.compress(np.arange(15, dtype=np.int32).tobytes())))
    assert message in refusal(folder)
    assert str(folder / "0.0") in refusal(folder)


HEADERS = {
    "shape missing": ({"shape": "absent"}, "has no 'shape'"),
    "shape of text": ({"shape": ["5", 3]}, "shape is ['5', 3], expected a list of lengths"),
    "negative": ({"shape": [-5, 3]}, "expected a list of lengths"),
    "no axes": ({"shape": [], "chunks": []}, "has 0 axes"),
    "empty chunks": ({"chunks": [0, 2]}, "chunks of (0, 2) do not cut"),
    "other axes": ({"chunks": [2]}, "chunks of (2,) do not cut an array of (5, 3)"),
    "bomb": ({"shape": [10**12, 282], "chunks": [1000, 282]}, "the array would take 1,128,000,000,000,000 bytes"),
    "bomb of a chunk": ({"chunks": [10**9, 3]}, "a chunk would take 12,000,000,000 bytes"),
    "complex": ({"dtype": "<c8"}, "dtype is <c8, expected numbers or text"),
    "record": ({"dtype": [["a", "<f4"]]}, "expected numbers or text"),
    "pickles": ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "holds objects packed with pickle; expected text"),
    "objects": ({"dtype": "|O"}, "holds objects packed with nothing"),
    "filter": ({"filters": [{"id": "delta"}]}, "went through delta, which is not known"),
    "format": ({"zarr_format": 4}, "zarr_format is 4, expected 2"),
    "separator": ({"dimension_separator": "../"}, "separated by '../'"),
    "packing": ({"compressor": {"id": "secret"}}, 'packed with "secret"; known are zlib, gzip'),
}


@pytest.mark.parametrize("mistake", HEADERS)
def test_headers_that_lie_are_refused(tmp_path, mistake):
    changes, message = HEADERS[mistake]
    folder = header(tmp_path / "x", **changes)
    (folder / "0.0").write_bytes(bytes(16))
    assert message in refusal(folder)


def test_a_header_that_is_not_there_or_no_json(tmp_path):
    (tmp_path / "x").mkdir()
    assert "has neither .zarray nor zarr.json; the store was cut short" in refusal(tmp_path / "x")
    for content in (b"{", b"[" * 10**5, b"\xff", b"[]", b" " * (1 << 21)):
        (tmp_path / "x" / ".zarray").write_bytes(content)
        assert ".zarray" in refusal(tmp_path / "x")


TEXT_CHUNKS = {
    "count": (struct.pack("<I", 4), "it holds 4 texts, expected 5"),
    "length": (struct.pack("<II", 5, 2**31), "it is cut short"),
    "ends": (struct.pack("<I", 5), "its texts are damaged or cut short"),
    "letters": (struct.pack("<II", 5, 1) + b"\xff", "its texts are damaged or cut short"),
    "nothing": (b"", "its texts are damaged or cut short"),
}


@pytest.mark.parametrize("mistake", TEXT_CHUNKS)
def test_texts_that_are_damaged(tmp_path, mistake):
    content, message = TEXT_CHUNKS[mistake]
    write_array(tmp_path / "x", TEXTS, version=3)
    (tmp_path / "x" / "c" / "0").write_bytes(gzip.compress(content))
    assert message in refusal(tmp_path / "x")


@pytest.mark.parametrize("name", ["zlib", "gzip", "bz2", "lzma"])
def test_a_bomb_is_not_unpacked(name):
    pack = {"zlib": zlib.compress, "gzip": gzip.compress, "bz2": bz2.compress, "lzma": lzma.compress}[name]
    bomb = pack(bytes(2 * 10**7))
    tracemalloc.start()
    with pytest.raises(ValueError, match="it holds more than the 60 bytes"):
        unpack(name, bomb, 60)
    assert tracemalloc.get_traced_memory()[1] < 10**7  # lzma has a window of 8 MB
    tracemalloc.stop()


def test_numcodecs_is_asked_for_only_where_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "numcodecs", None)
    folder = header(tmp_path / "x", chunks=[5, 3], compressor={"id": "lz4"})
    (folder / "0.0").write_bytes(struct.pack("<I", 60) + bytes(60))
    assert 'its chunks are packed with lz4, which needs numcodecs\n  help: install the extra "zarr"' in refusal(folder)


def test_claims_of_packed_chunks_are_looked_at_before_they_are_unpacked(tmp_path):
    pytest.importorskip("numcodecs")
    for name, content in (
        ("lz4", struct.pack("<I", 10**9) + bytes(60)),
        ("zstd", b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 10**9) + bytes(60)),
        ("blosc", struct.pack("<4BIII", 2, 1, 1, 4, 10**9, 10**9, 80) + bytes(64)),
    ):
        folder = header(tmp_path / name, chunks=[5, 3], compressor={"id": name})
        (folder / "0.0").write_bytes(content)
        assert "it claims to hold 1,000,000,000 bytes, more than the 60" in refusal(folder)
    (folder / "0.0").write_bytes(content[:-1])
    assert "it is cut short" in refusal(folder)


def test_stores_that_zarr_wrote(tmp_path):
    zarr = pytest.importorskip("zarr")
    numcodecs = pytest.importorskip("numcodecs")
    values = np.cumsum(RANDOM.integers(0, 3, (2500, 9)), 0).astype(np.float32)
    codecs = zarr.codecs
    old = [numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE), numcodecs.Blosc("lz4", 5, 1), numcodecs.Zstd(3)]
    old += [numcodecs.LZ4(), numcodecs.BZ2(1), numcodecs.LZMA(), None]
    new = [codecs.BloscCodec(cname="zstd", shuffle="bitshuffle"), codecs.ZstdCodec(checksum=True), "auto", None]
    new += [[codecs.GzipCodec(), codecs.Crc32cCodec()]]
    for version, packing in [*((2, packing) for packing in old), *((3, packing) for packing in new)]:
        folder = tmp_path / f"{version}-{packing}".replace("/", "-")[:60]
        group = zarr.open_group(str(folder), mode="w", zarr_format=version)
        group.create_array("x", data=values, chunks=(1000, 4), compressors=packing)
        group.create_array("part", shape=(30,), chunks=(10,), dtype="f8", fill_value=float("nan"))[10:20] = np.ones(10)
        np.testing.assert_array_equal(ZarrArray(folder / "x")[:], values)
        np.testing.assert_array_equal(ZarrArray(folder / "part")[:], np.repeat([np.nan, 1, np.nan], 10))


@pytest.mark.filterwarnings("ignore")
def test_texts_that_zarr_wrote(tmp_path):
    zarr = pytest.importorskip("zarr")
    for version in (2, 3):
        group = zarr.open_group(str(tmp_path / str(version)), mode="w", zarr_format=version)
        group.create_array("fixed", data=TEXTS)
        group.create_array("free", shape=TEXTS.shape, dtype=str, chunks=(2,))[:] = TEXTS.astype(object)
        for name in ("fixed", "free"):
            np.testing.assert_array_equal(ZarrArray(tmp_path / str(version) / name)[:], TEXTS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
def test_zarr_reads_what_we_write(tmp_path, version):
    zarr = pytest.importorskip("zarr")
    write_group(tmp_path / "s", version)
    write_group(tmp_path / "s" / "atpm", version)
    write_array(tmp_path / "s" / "data", NUMBERS, 10, version)
    write_array(tmp_path / "s" / "atpm" / "k562", NUMBERS[:, 0], 10, version)
    write_array(tmp_path / "s" / "names", TEXTS, None, version)
    write_array(tmp_path / "s" / "flags", NUMBERS > 0.5, 10, version)
    group = zarr.open_group(str(tmp_path / "s"), mode="r")
    assert group.metadata.zarr_format == version
    np.testing.assert_array_equal(group["data"][:], NUMBERS)
    np.testing.assert_array_equal(group["atpm/k562"][:], NUMBERS[:, 0])
    np.testing.assert_array_equal(group["flags"][:], NUMBERS > 0.5)
    assert [*map(str, group["names"][:])] == TEXTS.tolist()


def test_texts_without_letters_are_refused(tmp_path):
    assert "its texts have no letters" in refusal(header(tmp_path / "x", dtype="<U0"))
