"""Small files that expand: each is refused in little time and memory."""

import gzip
import io
import pickle

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.bubble_diagram.formats.resplan import load_restricted
from dither.tasks.get_region.formats.tables import read_header
from dither.tasks.prepared.arrays import load_npz


def test_a_gzipped_endless_line(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wb", 1) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    with pytest.raises(Refused, match="in a line"):
        read_header(tmp_path / "a.csv.gz")


def test_arrays_that_expand(tmp_path):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(300 << 20, np.uint8))
    with pytest.raises(Refused) as refused:
        load_npz(buffer, tmp_path / "a.npz")
    assert refused.value.codes == ["too-large"]


def test_keys_whose_hash_takes_exponential_time():
    content = b"\x80\x02}K\x01" + b"2\x86" * 45 + b"K\x01s."  # {(((1, 1), (1, 1)), ...): 1}
    with pytest.raises(pickle.UnpicklingError, match="nested"):
        load_restricted(content)
    plain = {(1, (2, 3)): [((0.0, 1.0), (1.0, 1.0))]}
    assert load_restricted(pickle.dumps(plain)) == plain
