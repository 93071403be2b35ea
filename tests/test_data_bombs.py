"""Small data files that would take gigabytes or years: each is refused by name, in little memory, and quickly."""

import gzip
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dither.core_blocks.convert.load_hf import read_shards
from dither.registry import Refused
from dither.registry.files.weight_files import read_weights
from dither.tasks.get_region.formats.tables import read_table
from dither.tasks.prepared.arrays import load_npz

pytestmark = pytest.mark.filterwarnings("ignore")
MEGABYTES, SECONDS = 700, 10


def zeros(gigabytes: int) -> bytes:
    return gzip.compress(bytes(1 << 24), 1) * 64 * gigabytes


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
    keys = [
        (key * ((1 << 61) - 1)).to_bytes(11, "little", signed=True)
        for key in range(1, 60_000)
    ]
    return hashed_keys(
        path,
        b"\x80\x02}(" + b"".join(b"\x8a\x0b" + key + b"K\x01" for key in keys) + b"u.",
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
    parquet, endless_line, many_columns, long_name, npz,
    hashed_keys, strides_of_zero, shards, same_hashes,
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
        [sys.executable, __file__, folder],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", [bomb.__name__ for bomb in BOMBS])
def test_a_bomb_is_refused_by_name(results, name):
    assert isinstance(results[name], list), results[name]
    message, megabytes = results[name]
    assert "bomb" in message
    assert megabytes < MEGABYTES


if __name__ == "__main__":
    folders = {bomb: Path(sys.argv[1], bomb.__name__) for bomb in BOMBS}
    for folder in folders.values():
        folder.mkdir()
    sys.stdout.write(
        json.dumps(
            {bomb.__name__: measure(bomb, folder) for bomb, folder in folders.items()}
        )
    )
