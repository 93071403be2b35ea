"""Shards of zarr 3: files of many chunks are read chunk by chunk, and what is damaged or missing in one is named."""

import gzip
import json

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.formats.zarr_array import ZarrArray
from dither.tasks.get_region.formats.zarr_codecs import crc32c

RANDOM = np.random.default_rng(0)
NUMBERS = RANDOM.random((13, 7), dtype=np.float32)
NOWHERE = 2**64 - 1
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def write(folder, values, chunks, shards, *, place="end", checked=True, skip=(), order="<", **changes):
    """Lay an array out by hand, in shards whose chunks are gzipped; `skip` are chunks that are left out."""
    index_codecs = [{**BYTES, "configuration": {"endian": "little" if order == "<" else "big"}}]
    options = {
        "chunk_shape": list(chunks),
        "codecs": [BYTES, {"name": "gzip", "configuration": {"level": 1}}],
        "index_codecs": index_codecs + [{"name": "crc32c"}] * checked,
        "index_location": place,
    }
    said = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(values.shape),
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shards)}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": {**options, **changes}}],
        "attributes": {},
    }
    counts = [s // c for s, c in zip(shards, chunks, strict=True)]
    whole = np.zeros([-(-n // s) * s for n, s in zip(values.shape, shards, strict=True)], values.dtype)
    whole[: len(values), : values.shape[1]] = values
    for shard in np.ndindex(*(n // s for n, s in zip(whole.shape, shards, strict=True))):
        length = 16 * int(np.prod(counts)) + 4 * checked
        parts, begin, index = [], length * (place == "start"), []
        for inside in np.ndindex(*counts):
            at = [n * count + i for n, count, i in zip(shard, counts, inside, strict=True)]
            there = (
                all(n * c < size for n, c, size in zip(at, chunks, values.shape, strict=True)) and (*at,) not in skip
            )
            cut = tuple(slice(n * c, (n + 1) * c) for n, c in zip(at, chunks, strict=True))
            packed = gzip.compress(whole[cut].tobytes(), 1) if there else b""
            index.append((begin, len(packed)) if there else (NOWHERE, NOWHERE))
            begin += len(packed)
            parts.append(packed)
        head = np.array(index, order + "u8").tobytes()
        head += crc32c(head).to_bytes(4, "little") * checked
        path = folder / "c" / "/".join(map(str, shard))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(head + b"".join(parts) if place == "start" else b"".join(parts) + head)
    (folder / "zarr.json").write_text(json.dumps(said))
    return folder


def refusal(folder):
    with pytest.raises(Refused) as refused:
        ZarrArray(folder)[:]
    return str(refused.value)


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize(
    ("chunks", "shards"), [((2, 3), (4, 6)), ((5, 7), (5, 7)), ((1, 7), (20, 7)), ((3, 2), (6, 8))]
)
def test_chunks_are_found_in_their_shards(tmp_path, place, chunks, shards):
    array = ZarrArray(write(tmp_path / "x", NUMBERS, chunks, shards, place=place))
    assert array.missing() == []
    for rows in (slice(None), slice(3, 5), slice(4, 4), slice(1, 12)):
        np.testing.assert_array_equal(array[rows], NUMBERS[rows])


def test_an_index_without_checksum_or_the_other_way_round(tmp_path):
    for checked, order in ((False, "<"), (True, ">"), (False, ">")):
        folder = write(tmp_path / f"{checked}{ord(order)}", NUMBERS, (2, 3), (4, 6), checked=checked, order=order)
        np.testing.assert_array_equal(ZarrArray(folder)[:], NUMBERS)


def test_chunks_that_a_shard_leaves_out(tmp_path):
    folder = write(tmp_path / "x", NUMBERS, (2, 7), (4, 7), skip=[(1, 0), (4, 0)])
    (folder / "c" / "3" / "0").unlink()
    expected = NUMBERS.copy()
    for row in (2, 8, 12):
        expected[row : row + 2] = 0
    array = ZarrArray(folder)
    np.testing.assert_array_equal(array[:], expected)
    assert array.missing() == [(1, 0), (4, 0), (6, 0)]


def spoil(path, change):
    content = bytearray(path.read_bytes())
    path.write_bytes(bytes(change(content)))


def flipped(place):
    def change(content):
        content[place] ^= 255
        return content

    return change


DAMAGE = {
    "cut short": (
        lambda content: content[:-9],
        "rows 4 to 5 cannot be read: the index of its shard is damaged, or the",
    ),
    "empty": (lambda content: b"", "its shard is cut short: 0 bytes do not hold an index of 36"),
    "index": (flipped(-8), "the index of its shard is damaged"),
    "chunk": (flipped(20), "rows 4 to 5 cannot be read: it is damaged or cut short"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_named_with_their_rows(tmp_path, damage):
    change, message = DAMAGE[damage]
    folder = write(tmp_path / "x", NUMBERS, (2, 7), (4, 7))
    spoil(folder / "c" / "1" / "0", change)
    assert message in refusal(folder)
    assert str(folder / "c" / "1" / "0") in refusal(folder)
    np.testing.assert_array_equal(ZarrArray(folder)[:4], NUMBERS[:4])
    assert (3, 0) not in ZarrArray(folder).missing()  # damaged is not missing


def test_a_shard_whose_index_stands_first_is_cut_short(tmp_path):
    folder = write(tmp_path / "x", NUMBERS, (2, 7), (4, 7), place="start")
    spoil(folder / "c" / "1" / "0", lambda content: content[:-9])
    assert "the index of its shard points behind its end at" in refusal(folder)


HEADERS = {
    "crooked": ({"chunk_shape": [3, 7]}, "chunks of (3, 7) do not fill shards of (4, 7)"),
    "axes": ({"chunk_shape": [2]}, "chunks of (2,) do not cut an array of (13, 7)"),
    "nothing": ({"chunk_shape": [0, 7]}, "chunks of (0, 7) do not cut"),
    "packed index": ({"index_codecs": [BYTES, {"name": "gzip"}]}, "its shards is packed with bytes, gzip; expected"),
    "place": ({"index_location": "middle"}, "index_location is 'middle', expected start or end"),
    "shards in shards": ({"codecs": [{"name": "sharding_indexed"}]}, "its shards hold shards, which are not read"),
    "no chunk shape": ({"chunk_shape": None}, "chunk_shape is None"),
}


@pytest.mark.parametrize("mistake", HEADERS)
def test_headers_of_shards_that_lie(tmp_path, mistake):
    changes, message = HEADERS[mistake]
    assert message in refusal(write(tmp_path / "x", NUMBERS, (2, 7), (4, 7), **changes))


def test_a_bomb_of_chunks(tmp_path):
    folder = write(tmp_path / "x", NUMBERS, (2, 7), (4, 7))
    said = json.loads((folder / "zarr.json").read_text())
    said["shape"] = [2**31, 1]
    said["codecs"][0]["configuration"]["chunk_shape"] = [1, 1]
    said["chunk_grid"]["configuration"]["chunk_shape"] = [2**31, 1]
    (folder / "zarr.json").write_text(json.dumps(said))
    assert "the array is cut into 2,147,483,648 chunks" in refusal(folder)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 70001])
def test_the_checksum_side_by_side_is_that_byte_by_byte(length):
    content = RANDOM.integers(0, 256, length, np.uint8).tobytes()
    state = 0xFFFFFFFF
    for byte in content:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(content) == state ^ 0xFFFFFFFF
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.filterwarnings("ignore")
def test_shards_that_zarr_wrote(tmp_path):
    zarr = pytest.importorskip("zarr")
    codecs = zarr.codecs
    values = (RANDOM.random((2300, 12)) * (RANDOM.random((2300, 12)) < 0.3)).astype(np.float32)
    names = np.array([f"chr1:{n}-{n + 9}" for n in range(len(values))])
    gzipped = [codecs.GzipCodec(), codecs.Crc32cCodec()]
    for number, (packing, place, filters) in enumerate(
        (
            ([codecs.ZstdCodec(checksum=True)], "end", None),
            ([codecs.BloscCodec(cname="zstd", shuffle="bitshuffle")], "start", None),
            (gzipped, "end", [codecs.TransposeCodec(order=(1, 0))]),
            ([], "end", None),
        )
    ):
        shards = {"shape": (1000, 12), "index_location": place}
        options = {"shards": shards, "compressors": packing} | ({"filters": filters} if filters else {})
        group = zarr.open_group(str(tmp_path / str(number)), mode="w", zarr_format=3)
        group.create_array("data", data=values, chunks=(250, 4), **options)
        group.create_array("names", shape=names.shape, dtype=str, chunks=(300,), shards=(900,))[:] = names.astype(
            object
        )
        np.testing.assert_array_equal(ZarrArray(tmp_path / str(number) / "data")[:], values)
        np.testing.assert_array_equal(ZarrArray(tmp_path / str(number) / "names")[:], names)
    empty = values.copy()
    empty[250:500] = 0
    group.create_array("part", data=empty, chunks=(250, 12), shards=(1000, 12))
    assert ZarrArray(tmp_path / "3" / "part").missing() == [(1, 0)]
    np.testing.assert_array_equal(ZarrArray(tmp_path / "3" / "part")[:], empty)
