"""Weights of other programs: what is read, what is passed over, what is refused; and nothing in a file is run."""

import argparse
import collections
import enum
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dither.registry.config.errors import Refused
from dither.registry.files.weight_files import read_weights

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


class Settings(dict):
    """As another program might have them: a class that this one would not import."""

    def __init__(self, *given):
        super().__init__(*given)
        self.kept = collections.defaultdict(list, {"x": [1]})

    def __reduce__(self):
        return Settings, (), {"kept": self.kept, "colour": Colour.RED}


class Colour(enum.Enum):
    RED = 1


class Evil:
    """What a file may not do."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def same(found, wanted=WEIGHTS):
    assert found.keys() == wanted.keys()
    for name, weight in found.items():
        assert torch.equal(weight, wanted[name])
        assert weight.dtype == wanted[name].dtype
        assert not weight.requires_grad


@pytest.mark.parametrize(
    "saved",
    [
        WEIGHTS,
        collections.OrderedDict(WEIGHTS),
        {"state_dict": {f"model.{name}": weight for name, weight in WEIGHTS.items()}, "epoch": 3, "loops": {}},
        {"model": {f"module.{name}": nn.Parameter(w) for name, w in WEIGHTS.items()}, "args": argparse.Namespace(lr=1)},
        {"state_dict": {f"model._orig_mod.{n}": w for n, w in WEIGHTS.items()}, "hyper_parameters": Settings()},
        {"model": {"state_dict": WEIGHTS}, "optimizer": [torch.ones(1), Colour.RED]},
        WEIGHTS | {"steps": 7, "note": "text"},
    ],
    ids=["plain", "ordered", "lightning", "ddp", "settings", "nested", "others beside"],
)
def test_checkpoints_of_torch(tmp_path, saved):
    torch.save(saved, tmp_path / "x.ckpt")
    same(read_weights(tmp_path / "x.ckpt"))


def test_safetensors_whatever_the_file_is_called(tmp_path):
    save_file(WEIGHTS, tmp_path / "x.pt")
    same(read_weights(tmp_path / "x.pt"))
    save_file({f"model.{name}": weight for name, weight in WEIGHTS.items()}, tmp_path / "y.safetensors")
    same(read_weights(tmp_path / "y.safetensors"))


def test_nothing_in_a_file_is_called(tmp_path):
    made = tmp_path / "made by the file"
    torch.save({"state_dict": WEIGHTS, "hyper_parameters": Evil(made)}, tmp_path / "x.pt")
    same(read_weights(tmp_path / "x.pt"))
    assert not made.exists()
    torch.load(tmp_path / "x.pt", weights_only=False)["hyper_parameters"].close()
    assert made.exists(), "the file would have done it"


def test_what_reaches_for_the_system_is_refused(tmp_path):
    torch.save({"state_dict": WEIGHTS}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as old, zipfile.ZipFile(tmp_path / "y.pt", "w") as new:
        for entry in old.namelist():
            data = old.read(entry)
            if entry.endswith("data.pkl"):
                data = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."
            new.writestr(entry, data)
    with pytest.raises(Refused, match="cannot be read as weights of torch"):
        read_weights(tmp_path / "y.pt")


def test_bare_pickles_are_not_read(tmp_path):
    torch.save(WEIGHTS, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(Refused, match=r"bare pickle, as torch before 1\.6 wrote it.*save it anew"):
        read_weights(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        ({"epoch": 3, "optimizer": {}}, "holds no weights by name, but: epoch, optimizer"),
        ([torch.ones(1)], "holds no weights by name, but: list"),
        (torch.ones(2), "holds no weights by name, but: Tensor"),
        ({"state_dict": {}}, "holds no weights"),
        ({"x": torch.ones(2).to_sparse()}, "holds no weights by name, but: x"),
        ({"model.x": torch.ones(1), "x": torch.ones(1)}, "holds two weights x"),
    ],
    ids=str,
)
def test_files_without_weights(tmp_path, saved, told):
    torch.save(saved, tmp_path / "x.pt")
    with pytest.raises(Refused, match=told):
        read_weights(tmp_path / "x.pt")


def test_a_checkpoint_that_holds_itself_ends(tmp_path):
    loop = {}
    loop["model"] = loop
    torch.save(loop, tmp_path / "x.pt")
    with pytest.raises(Refused, match="no weights"):
        read_weights(tmp_path / "x.pt")


def test_a_file_that_was_cut_or_is_not_there(tmp_path):
    torch.save(WEIGHTS, tmp_path / "x.pt")
    whole = (tmp_path / "x.pt").read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "y.pt").write_bytes(whole[:length])
        with pytest.raises(Refused, match=r"y\.pt cannot be read as weights of torch"):
            read_weights(tmp_path / "y.pt")
    for content in (b"", b"\x00" * 20, b"hello"):
        (tmp_path / "z.safetensors").write_bytes(content)
        with pytest.raises(Refused, match="cannot be read as safetensors"):
            read_weights(tmp_path / "z.safetensors")
    for path in (tmp_path / "nowhere.pt", tmp_path):
        with pytest.raises(Refused, match="cannot be read"):
            read_weights(path)
