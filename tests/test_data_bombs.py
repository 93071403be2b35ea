"""Small data files that would take gigabytes or years: each is refused by name, in little memory, and quickly."""

import base64
import gzip
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
import torch

from dither.core_blocks.convert.load_hf import read_shards
from dither.registry import Refused
from dither.registry.files.weight_files import read_weights
from dither.tasks.get_region.formats.tables import read_table
from dither.tasks.language_model.data.tokenizers.huggingface import read_tokenizer
from dither.tasks.prepared.arrays import load_npz

pytestmark = pytest.mark.filterwarnings("ignore")
MEGABYTES, SECONDS = 700, 10
LONG = "\ufdfa"  # its compatibility form has 18 letters


def zeros(gigabytes: int) -> bytes:
    return gzip.compress(bytes(1 << 24), 1) * 64 * gigabytes


def tokenizer(path, steps=12, **step):
    normalizers = [
        step or {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}
    ] * steps
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    whole = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
    }
    empty = dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
    path.write_text(json.dumps({**whole, **empty, "model": model}))
    return lambda: read_tokenizer(str(path)).encode("a" * 1000)


def regex(path):
    return tokenizer(path, type="Replace", pattern={"Regex": ""}, content="ab")


def ligatures(path):
    to, back = (
        {"type": "Replace", "pattern": {"String": a}, "content": b}
        for a, b in (("a", LONG), ("\u0644", "a"))
    )
    return tokenizer(path, 4, type="Sequence", normalizers=[to, {"type": "NFKC"}, back])


def sparse_ids(path):
    read = tokenizer(path, 0)
    path.write_text(path.read_text().replace('{"a": 0', '{"a": 4000000000'))
    return read


def cut_charsmap(path):
    return tokenizer(path, 1, type="Precompiled", precompiled_charsmap="/" * 4000)


def byte_letters(path):
    return tokenizer(path, type="ByteLevel")


def parquet(path):
    from pyarrow import array, parquet, table

    path = path.with_suffix(".parquet")
    with parquet.ParquetWriter(
        path, (part := table({"a": array(np.zeros(1 << 22))})).schema
    ) as writer:
        for _ in range(10):
            writer.write_table(part)
    return lambda: read_table(path)


def endless_line(path):
    path = path.with_suffix(".csv.gz")
    path.write_bytes(gzip.compress(b"chromosome,start,end,A\n") + zeros(2))
    return lambda: read_table(path)


def many_columns(path):
    path = path.with_suffix(".csv.gz")
    path.write_bytes(gzip.compress(b"chromosome,start,end" + b",A" * 3_000_000 + b"\n"))
    return lambda: read_table(path)


def long_name(path):
    path.write_text("peak,A\n" + "x" * 20_000_000 + ",1\n" + "x,1\n" * 1000)
    return lambda: read_table(path)


def npz(path):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("a.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f4", "fortran_order": False, "shape": (5 << 24,)}
        )
        for _ in range(20):
            member.write(bytes(1 << 24))
    return lambda: load_npz(path, path)


def same_hashes(path):
    keys = [(key * ((1 << 61) - 1)).to_bytes(11, "little", signed=True) for key in range(1, 60_000)]
    return hashed_keys(
        path, b"\x80\x02}(" + b"".join(b"\x8a\x0b" + key + b"K\x01" for key in keys) + b"u."
    )


def hashed_keys(path, data=b"\x80\x02}K\x01" + b"2\x86" * 45 + b"K\x01s."):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/version", "3")
    return lambda: read_weights(path)


def strides_of_zero(path):
    torch.save({"w": torch.zeros(1).expand(100_000, 100_000)}, path)
    return lambda: read_weights(path)["w"] + 1


def shards(path):
    path.mkdir()
    (path / "model.safetensors.index.json").write_bytes(b"[" * (1 << 27))
    return lambda: read_shards(path)


BOMBS = (
    tokenizer, regex, ligatures, byte_letters, parquet, endless_line, many_columns, long_name, npz,
    hashed_keys, strides_of_zero, shards, same_hashes, sparse_ids, cut_charsmap,
)  # fmt: skip


def measure(bomb, folder):
    """Read a bomb in another process; return its message and megabytes, or what else happened."""
    read = bomb(folder / "bomb")
    out, back = os.pipe()
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result: object = "not refused"
        try:
            if problems := getattr(read(), "problems", ()):
                raise Refused(list(problems))
        except Refused as refused:
            result = [
                str(refused),
                (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
            ]
        except BaseException as error:
            result = repr(error)
        os.write(back, json.dumps(result).encode())
        os._exit(0)
    os.close(back)
    _, status = os.waitpid(child, 0)
    with open(out, "rb") as pipe:
        return json.loads(pipe.read()) if status == 0 else f"status {status}"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results from a new process: memory that a process once used, and keeps, would not count against limits."""
    folder = tmp_path_factory.mktemp("bombs")
    done = subprocess.run(
        [sys.executable, __file__, folder], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [bomb.__name__ for bomb in BOMBS])
def test_a_bomb_is_refused_by_name(results, name):
    assert isinstance(results[name], list), results[name]
    message, megabytes = results[name]
    assert "bomb" in message
    assert megabytes < MEGABYTES


def test_sound_tokenizers_are_read(tmp_path):
    for step in (
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        {"type": "NFKC"},
    ):
        assert len(tokenizer(tmp_path / "t.json", 1, **step)()) == 1
    charsmap = base64.b64encode(
        (1024).to_bytes(4, "little") + bytes(1024) + normalize("NFKC", LONG).encode() + b"\0"
    )
    replace = [
        ("String", "``", '"'),
        ("String", "''", '"'),
        ("Regex", " {2,}", " "),
        ("Regex", r"[\n\t]\s+", "\u2581"),
    ]
    albert = [{"type": "Replace", "pattern": {kind: of}, "content": to} for kind, of, to in replace]
    albert += [{"type": "NFKD"}, {"type": "Precompiled", "precompiled_charsmap": charsmap.decode()}]
    assert len(tokenizer(tmp_path / "t.json", 1, type="Sequence", normalizers=albert)()) == 1


if __name__ == "__main__":
    folders = {bomb: Path(sys.argv[1], bomb.__name__) for bomb in BOMBS}
    for folder in folders.values():
        folder.mkdir()
    sys.stdout.write(
        json.dumps({bomb.__name__: measure(bomb, folder) for bomb, folder in folders.items()})
    )
