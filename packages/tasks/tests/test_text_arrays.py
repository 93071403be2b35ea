import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.language_model.data import corpus as arrays
from dither.tasks.language_model.data.corpus import Document, encode_documents
from dither.tasks.language_model.data.tokenizers.base import Bytes, Characters

DOCUMENTS = [Document.of("a", "first ü"), Document.of("b", "second"), Document.of("c", "third")]
TEXT = "first ü\n\nsecond\n\nthird"


@pytest.fixture
def small_memory(monkeypatch):
    monkeypatch.setattr(arrays, "RESIDENT", 3)


def files(folder, suffix):
    return sorted(folder.glob(f"*{suffix}"))


def test_documents_stand_one_after_the_other(tmp_path):
    ids = encode_documents(DOCUMENTS, Bytes(), folder=tmp_path).ids
    assert not isinstance(ids, np.memmap)
    assert ids.dtype == np.uint8
    assert Bytes().decode(ids) == TEXT
    assert list(tmp_path.iterdir()) == []
    assert len(encode_documents([], Bytes()).ids) == 0


@pytest.mark.parametrize(
    ("size", "dtype"), [(256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.uint32)]
)
def test_the_type_is_the_smallest_that_holds_every_id(size, dtype):
    tokenizer = Characters("".join(map(chr, [*range(32, 0xD800), *range(0xE000, 0x30000)][: size - 1])))
    assert tokenizer.size == size
    text = tokenizer.alphabet[-1] + "\x00"  # the largest id of a character, and <unk>
    ids = encode_documents([Document.of("a", text)], tokenizer).ids
    assert ids.dtype == dtype
    assert ids.tolist() == [size - 2, size - 1]


def test_a_large_corpus_is_mapped_and_described(tmp_path, small_memory):
    ids = encode_documents(DOCUMENTS, Bytes(), folder=tmp_path).ids
    assert isinstance(ids, np.memmap)
    assert Bytes().decode(ids) == TEXT
    (array,), (sidecar,) = files(tmp_path, ".bin"), files(tmp_path, ".json")
    facts = json.loads(sidecar.read_text())
    assert facts["dtype"] == "|u1"
    assert facts["shape"] == [len(TEXT.encode())]
    assert facts["sha256"] == hashlib.sha256(array.read_bytes()).hexdigest()
    assert facts["source"] == [[document.name, document.digest] for document in DOCUMENTS]
    assert facts["tokenizer"]["fingerprint"] == Bytes().fingerprint
    assert len(list(tmp_path.iterdir())) == 2


def test_an_array_that_is_there_is_not_made_again(tmp_path, small_memory):
    def never():
        raise AssertionError("read again")

    encode_documents(DOCUMENTS, Bytes(), folder=tmp_path)
    unread = [Document(document.name, document.digest, document.size, never) for document in DOCUMENTS]
    assert Bytes().decode(encode_documents(unread, Bytes(), folder=tmp_path).ids) == TEXT
    with pytest.raises(AssertionError, match="read again"):  # another tokenizer, another array
        encode_documents(unread, Characters("abc"), folder=tmp_path)
    with pytest.raises(AssertionError, match="read again"):  # other documents as well
        encode_documents(unread[:2], Bytes(), folder=tmp_path)


def _flip(path):
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [
        lambda array, sidecar: array.write_bytes(array.read_bytes()[:-1]),
        lambda array, sidecar: array.write_bytes(b""),
        lambda array, sidecar: _flip(array),
        lambda array, sidecar: array.unlink(),
        lambda array, sidecar: sidecar.unlink(),
        lambda array, sidecar: sidecar.write_text(sidecar.read_text()[:-9]),
        lambda array, sidecar: sidecar.write_text("[]"),
        lambda array, sidecar: sidecar.write_text("{}"),
        lambda array, sidecar: sidecar.write_text(sidecar.read_text().replace("|u1", "<u2")),
    ],
)
def test_a_damaged_array_is_written_again(tmp_path, small_memory, damage):
    encode_documents(DOCUMENTS, Bytes(), folder=tmp_path)
    damage(*files(tmp_path, ".bin"), *files(tmp_path, ".json"))
    assert Bytes().decode(encode_documents(DOCUMENTS, Bytes(), folder=tmp_path).ids) == TEXT
    assert len(list(tmp_path.iterdir())) == 2


def test_many_may_write_the_same_array_at_once(tmp_path, small_memory):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: encode_documents(DOCUMENTS, Bytes(), folder=tmp_path).ids, range(32)))
    assert {Bytes().decode(ids) for ids in found} == {TEXT}
    assert len(list(tmp_path.iterdir())) == 2


def test_an_array_that_is_cut_short_while_it_is_written_leaves_nothing(tmp_path, small_memory):
    def fails():
        raise Refused("gone")

    with pytest.raises(Refused, match="gone"):
        encode_documents([*DOCUMENTS, Document("d", "0", 1, fails)], Bytes(), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, small_memory):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="file/tokens cannot be written.*DITHER_DATA"):
        encode_documents(DOCUMENTS, Bytes(), folder=tmp_path / "file" / "tokens")


def test_the_cache_folder_is_the_default(tmp_path, small_memory, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    encode_documents(DOCUMENTS, Bytes())
    assert len(files(tmp_path / "tokens", ".bin")) == 1
