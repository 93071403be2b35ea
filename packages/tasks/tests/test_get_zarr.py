"""Zarr arrays: round trips, chunks in every codec and order, damage with file and rows, missing chunks, size limits."""

import json
import pickle

import numcodecs
import numpy as np
import pytest
import zarr

from dither.registry.config.errors import Refused
from dither.tasks.get_region.formats import zarr_array
from dither.tasks.get_region.formats.zarr_array import ZarrArray, is_group

RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.random((25, 7), dtype=np.float32)
TEXTS = np.array(["AP1/1", "", "chr1:9790-10675", "häm", "x"])
BYTES = [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]


def refusal(folder):
    with pytest.raises(Refused) as refused:
        ZarrArray(folder)[:]
    return refused.value


def create(folder, values, version=2, **options):
    array = zarr.create_array(
        str(folder),
        shape=values.shape,
        dtype=values.dtype,
        zarr_format=version,
        **options,
    )
    array[:] = values
    return folder


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "values",
    [
        NUMBERS,
        NUMBERS[:, 0],
        TEXTS,
        NUMBERS > 0.5,
        np.zeros((6, 2)),
        np.full((9, 2), -5, np.int8),
    ],
)
def test_round_trip(tmp_path, write_array, version, values):
    write_array(tmp_path / "x", values, 4, version)
    array = ZarrArray(tmp_path / "x")
    assert (array.shape, len(array), array.ndim) == (
        values.shape,
        len(values),
        values.ndim,
    )
    for part in (slice(None), slice(3, 5), slice(4, 4), slice(0, 1), slice(2, 99)):
        np.testing.assert_array_equal(array[part], values[part])
    assert array[:].dtype.kind == values.dtype.kind
    assert array.missing() == []


WRITTEN = {
    "blosc": {"compressors": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE)},
    "order F": {"order": "F", "compressors": numcodecs.GZip()},
    "delta": {"filters": numcodecs.Delta(">f8"), "compressors": numcodecs.Zstd()},
    "fixedscaleoffset": {"filters": numcodecs.FixedScaleOffset(0, 1, ">f8", "<i4"), "compressors": numcodecs.Zlib()},
    "quantize": {"filters": numcodecs.Quantize(3, ">f8"), "compressors": numcodecs.Blosc("lz4", 5)},
    "3 zstd": {"version": 3, "compressors": zarr.codecs.ZstdCodec(checksum=True)},
    "3 transposed": {"version": 3, "filters": [zarr.codecs.TransposeCodec(order=(1, 0))], "compressors": BYTES},
    "3 blosc": {"version": 3, "compressors": zarr.codecs.BloscCodec()},
    "3 shards": {"version": 3, "shards": (500, 12), "compressors": BYTES},
    "3 shards, index first": {"version": 3, "shards": {"shape": (500, 12), "index_location": "start"}},
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_arrays_of_other_writers(tmp_path, name):
    values = np.cumsum(RANDOM.integers(0, 3, (1300, 12)), 0).astype(
        "<f8" if name.startswith("3") else ">f8"
    )
    array = ZarrArray(create(tmp_path / "x", values, chunks=(250, 4), **WRITTEN[name]))
    np.testing.assert_array_equal(array[:], values)
    np.testing.assert_array_equal(array[240:760], values[240:760])
    assert array.missing() == []


def test_packed_bits_and_shards_in_shards(tmp_path):
    values = RANDOM.random((101, 12)) > 0.5
    packed = {"filters": numcodecs.PackBits(), "compressors": numcodecs.Zlib()}
    inner = zarr.codecs.ShardingCodec(
        chunk_shape=(5, 3), codecs=[zarr.codecs.BytesCodec(), *BYTES]
    )
    nested = {
        "version": 3,
        "compressors": None,
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(10, 6), codecs=[inner]),
    }
    for name, options in (
        ("bits", {"chunks": (7, 5), **packed}),
        ("shards", {"chunks": (20, 12), **nested}),
    ):
        array = ZarrArray(create(tmp_path / name, values, **options))
        np.testing.assert_array_equal(array[:], values)
        np.testing.assert_array_equal(array[33:58], values[33:58])
    path = tmp_path / "shards" / array.file_name((1, 0))
    path.write_bytes(path.read_bytes()[:-9])
    refused = refusal(tmp_path / "shards")
    assert refused.codes == ["damaged-file"]
    assert refused.problems[0].message.startswith(f"{path}: rows 20 to 39 ")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
def test_texts_of_any_length(tmp_path, version):
    free = zarr.create_array(
        str(tmp_path / "free"), shape=(5,), dtype=str, chunks=(2,), zarr_format=version
    )
    free[:] = TEXTS.astype(object)
    np.testing.assert_array_equal(ZarrArray(tmp_path / "free")[:], TEXTS)


@pytest.mark.parametrize("name", WRITTEN)
def test_damaged_chunks_are_named_with_their_rows(tmp_path, name):
    values = np.arange(40, dtype="<f8" if name.startswith("3") else ">f8").reshape(
        10, 4
    )
    options = {**WRITTEN[name]}
    if "shards" in options:
        options["shards"] = (
            (4, 4)
            if isinstance(options["shards"], tuple)
            else {**options["shards"], "shape": (4, 4)}
        )
    array = ZarrArray(create(tmp_path / "x", values, chunks=(2, 4), **options))
    path = tmp_path / "x" / array.file_name((1, 0))
    content, rows = (
        path.read_bytes(),
        "rows 4 to 7" if "shards" in options else "rows 2 to 3",
    )
    for damaged in (content[:-9], b"", b"nonsense" * 9, content[: len(content) // 2]):
        path.write_bytes(damaged)
        refused = refusal(tmp_path / "x")
        assert refused.codes == ["damaged-file"]
        assert refused.problems[0].message.startswith(f"{path}: {rows} ")
        np.testing.assert_array_equal(
            array[0:2], values[0:2]
        )  # other chunks can be read


def test_a_flipped_byte_in_a_shard_is_found(tmp_path):
    folder = create(
        tmp_path / "x", NUMBERS, 3, chunks=(5, 7), shards=(25, 7), compressors=BYTES
    )
    path = folder / "c" / "0" / "0"
    content = path.read_bytes()
    for at in range(0, len(content), 37):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert refusal(folder).codes == ["damaged-file"]


HEADER = {"zarr_format": 2, "shape": [5, 3], "chunks": [2, 2], "dtype": "<i4", "compressor": None, "fill_value": 7,
          "filters": None, "order": "C"}  # fmt: skip
HEADERS = {
    "shape missing": ({"shape": None}, "damaged-file"),
    "no axes": ({"shape": [], "chunks": []}, "wrong-shape"),
    "array too large": ({"shape": [10**12, 282], "chunks": [1000, 282]}, "too-large"),
    "complex": ({"dtype": "<c8", "fill_value": None}, "wrong-shape"),
    "pickles": ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "unknown-format"),
    "filters": ({"filters": [{}]}, "unknown-format"),
    "codec": ({"compressor": {"id": "secret"}}, "unknown-format"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HEADERS)
def test_wrong_headers_are_refused(tmp_path, name):
    changes, code = HEADERS[name]
    (tmp_path / ".zarray").write_text(json.dumps({**HEADER, **changes}))
    (tmp_path / "0.0").write_bytes(bytes(16))
    refused = refusal(tmp_path)
    assert refused.codes == [code]
    assert str(tmp_path) in refused.problems[0].message


def test_a_header_that_is_missing_or_not_json(tmp_path):
    assert refusal(tmp_path).codes == ["file-not-found"]
    for content in (b"{", b"[" * 10**5, b"\xff", b"[]"):
        for name in (".zarray", "zarr.json"):
            (tmp_path / name).write_bytes(content)
            assert refusal(tmp_path).codes == ["damaged-file"]
            (tmp_path / name).unlink()
        (tmp_path / "zarr.json").write_bytes(content)
        with pytest.raises(Refused):
            is_group(tmp_path)
        (tmp_path / "zarr.json").unlink()


class Pickle(numcodecs.abc.Codec):
    """The codec "pickle" of numcodecs, as it was before numcodecs 0.16."""

    codec_id = "pickle"

    def encode(self, buf):
        return buf

    def decode(self, buf, out=None):
        return numcodecs.compat.ndarray_copy(pickle.loads(bytes(buf)), out)


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "changes", [{"compressor": {"id": "pickle"}}, {"filters": [{"id": "pickle"}]}]
)
def test_codecs_that_execute_code_are_refused_unread(
    tmp_path, monkeypatch, write_array, changes
):
    monkeypatch.setitem(numcodecs.registry.codec_registry, "pickle", Pickle)
    opened = []
    monkeypatch.setattr(
        zarr,
        "open_array",
        lambda *a, _open=zarr.open_array, **k: opened.append(a) or _open(*a, **k),
    )
    (tmp_path / ".zarray").write_text(json.dumps({**HEADER, **changes}))
    for name in ("0.0", "0.1", "1.0", "1.1", "2.0", "2.1"):
        (tmp_path / name).write_bytes(pickle.dumps(Touch(tmp_path / "executed")))
    refused = refusal(tmp_path)
    assert not (tmp_path / "executed").exists()
    assert refused.codes == ["unknown-format"]
    assert "'pickle'" in refused.problems[0].message
    assert not opened
    (tmp_path / ".zarray").rename(tmp_path / "header")
    write_array(tmp_path / "x", NUMBERS, version=3)
    (tmp_path / "header").rename(tmp_path / "x" / ".zarray")
    assert refusal(tmp_path / "x").codes == [
        "unknown-format"
    ]  # also where the other header is good


@pytest.mark.parametrize(
    "place", ["codecs", "codecs of a shard", "index codecs", "a name"]
)
def test_unknown_codecs_of_format_3_are_refused(tmp_path, place):
    path = (
        create(
            tmp_path / "x", NUMBERS, 3, chunks=(5, 7), shards=(25, 7), compressors=BYTES
        )
        / "zarr.json"
    )
    header, codec = (
        json.loads(path.read_text()),
        {"name": "numcodecs.pickle", "configuration": {}},
    )
    shard = header["codecs"][0]["configuration"]
    lists = {
        "codecs of a shard": shard["codecs"],
        "index codecs": shard["index_codecs"],
    }
    lists.get(place, header["codecs"]).append(
        "numcodecs.pickle" if place == "a name" else codec
    )
    path.write_text(json.dumps(header))
    refused = refusal(tmp_path / "x")
    assert refused.codes == ["unknown-format"]
    assert "numcodecs.pickle" in refused.problems[0].message


@pytest.mark.parametrize("limit", ["MAX_CHUNK", "MAX_ARRAY"])
def test_files_above_the_limit_are_not_decoded(tmp_path, monkeypatch, limit):
    shards = (10, 7) if limit == "MAX_ARRAY" else None
    array = ZarrArray(
        create(
            tmp_path / "x", NUMBERS, 3, chunks=(5, 7), shards=shards, compressors=BYTES
        )
    )
    monkeypatch.setattr(zarr_array, limit, 50)
    with pytest.raises(Refused, match="the limit is 50") as refused:
        array[:]
    assert set(refused.value.codes) == {"damaged-file"}
