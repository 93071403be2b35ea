"""torch.compile and matmul precision: refused if unavailable, and without effect on later runs."""

import ctypes

import pytest
import torch
from torch import nn

from dither.engine.runs.loading import build
from dither.engine.training import device
from dither.engine.training.diffusion import Diffusion
from dither.registry.config.errors import Refused


def test_missing_compiler(make_trainer, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Refused) as refused:
        make_trainer("train.compile=true")
    assert refused.value.codes == ["missing-dependency"]
    assert refused.value.problems[0].path == ("train", "compile")
    device.prepare_compiler(torch.device("meta"))


def test_model_without_blocks(make_trainer, monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: name)
    with pytest.raises(Refused) as refused:
        make_trainer("train.compile='blocks'")
    assert refused.value.codes == ["misfit"]


def test_evaluation_is_eager(load, monkeypatch):
    """Its shapes differ; in a resumed run they come first and must not decide what is compiled."""
    system = Diffusion.build(load().experiment)
    stances = []
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: stances.append(stance) or torch.no_grad())
    with system.eager():
        assert not stances, "not compiled yet"
    monkeypatch.setattr(nn.Module, "compile", lambda module: None)
    system.compile_model()
    with system.eager():
        assert stances == ["force_eager"]


def test_matmul_precision_is_set_by_every_build(load):
    before = torch.get_float32_matmul_precision()
    try:
        build(load("train.precision=tf32"))
        assert torch.get_float32_matmul_precision() == "high"
        build(load("train.precision=bfloat16"))
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_freed_memory_is_kept_with_glibc():
    assert device.keep_freed_memory() == hasattr(ctypes.CDLL(None), "mallopt")
