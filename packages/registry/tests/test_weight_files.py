"""External weights: what is read, ignored and rejected; nothing in a file is executed."""

import argparse
import collections
import enum

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dither.registry.files.weight_files import read_weights

WEIGHTS = {
    "a.weight": torch.arange(6.0).view(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
}


class Settings(dict):
    """Hyperparameters of a class that is not imported."""

    def __init__(self, *given):
        super().__init__(*given)
        self.kept = collections.defaultdict(list, {"x": [1]})

    def __reduce__(self):
        return Settings, (), {"kept": self.kept, "colour": Colour.RED}


class Colour(enum.Enum):
    RED = 1


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def assert_weights(found):
    assert found.keys() == WEIGHTS.keys()
    for name, weight in found.items():
        assert torch.equal(weight, WEIGHTS[name])
        assert weight.dtype == WEIGHTS[name].dtype
        assert not weight.requires_grad


@pytest.mark.parametrize(
    "saved",
    [
        WEIGHTS,
        collections.OrderedDict(WEIGHTS),
        {
            "state_dict": {f"model.{name}": weight for name, weight in WEIGHTS.items()},
            "epoch": 3,
            "loops": {},
        },
        {
            "model": {f"module.{name}": nn.Parameter(w) for name, w in WEIGHTS.items()},
            "args": argparse.Namespace(lr=1),
        },
        {
            "state_dict": {f"model._orig_mod.{n}": w for n, w in WEIGHTS.items()},
            "hyper_parameters": Settings(),
        },
        {"model": {"state_dict": WEIGHTS}, "optimizer": [torch.ones(1), Colour.RED]},
        WEIGHTS | {"steps": 7, "note": "text"},
    ],
    ids=["plain", "ordered", "lightning", "ddp", "settings", "nested", "other values"],
)
def test_checkpoints_of_torch(tmp_path, saved):
    torch.save(saved, tmp_path / "x.ckpt")
    assert_weights(read_weights(tmp_path / "x.ckpt"))


def test_safetensors_with_any_suffix(tmp_path):
    for prefix in ("", "model."):
        save_file(
            {f"{prefix}{name}": weight for name, weight in WEIGHTS.items()},
            tmp_path / "x.pt",
        )
        assert_weights(read_weights(tmp_path / "x.pt"))


def test_nothing_in_a_file_is_executed(tmp_path):
    made = tmp_path / "made by the file"
    torch.save(
        {"state_dict": WEIGHTS, "hyper_parameters": Evil(made)}, tmp_path / "x.pt"
    )
    assert_weights(read_weights(tmp_path / "x.pt"))
    assert not made.exists()
    torch.load(tmp_path / "x.pt", weights_only=False)["hyper_parameters"].close()
    assert made.exists(), "unrestricted unpickling would have created it"


def test_bare_pickles_are_rejected(tmp_path, refused):
    torch.save(WEIGHTS, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    with refused("unknown-format"):
        read_weights(tmp_path / "x.pth")


LOOP: dict = {}
LOOP["model"] = LOOP


@pytest.mark.parametrize(
    ("saved", "code", "found"),
    [
        (LOOP, "missing-array", "model"),
        ({"epoch": 3, "optimizer": {}}, "missing-array", "epoch, optimizer"),
        ([torch.ones(1)], "missing-array", "list"),
        (torch.ones(2), "missing-array", "Tensor"),
        ({"state_dict": {}}, "missing-array", ""),
        ({"x": torch.ones(2).to_sparse()}, "missing-array", "x"),
        ({"model.x": torch.ones(1), "x": torch.ones(1)}, "duplicate", "x"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_files_without_weights(tmp_path, refused, saved, code, found):
    torch.save(saved, tmp_path / "x.pt")
    with refused(code) as info:
        read_weights(tmp_path / "x.pt")
    assert found in str(info.value)


def test_truncated_and_missing_files(tmp_path, refused):
    torch.save(WEIGHTS, tmp_path / "x.pt")
    whole = (tmp_path / "x.pt").read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "y.pt").write_bytes(whole[:length])
        with refused("damaged-file"):
            read_weights(tmp_path / "y.pt")
    for content in (b"", b"\x00" * 20, b"hello"):
        (tmp_path / "z.safetensors").write_bytes(content)
        with refused("damaged-file"):
            read_weights(tmp_path / "z.safetensors")
    for path in (tmp_path / "nowhere.pt", tmp_path):
        with refused("unreadable-file"):
            read_weights(path)
