"""What is asked of torch for speed: refused where it cannot be had, and not left behind for the next run."""

import pytest
import torch
from torch import nn

from dither.engine.runs.loading import build
from dither.engine.training import device
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused


@pytest.fixture
def make(load):
    def made(*changes):
        experiment = load(*changes).experiment
        return Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)

    return made


def test_without_a_compiler_there_is_a_refusal_and_no_traceback(make, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Refused) as refused:
        make("train.compile=true")
    assert refused.value.codes == ["missing-dependency"]
    assert refused.value.problems[0].path == ("train", "compile")
    device.require_compiler(torch.device("meta"))


def test_a_model_without_blocks_cannot_be_compiled_block_by_block(make, monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: name)
    with pytest.raises(Refused) as refused:
        make("train.compile='blocks'")
    assert refused.value.codes == ["misfit"]


def test_evaluation_is_not_compiled(load, monkeypatch):
    """Its shapes are others, and what comes first in a resumed run must not decide what is compiled."""
    system = Diffusion.build(load().experiment)
    stances = []
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: stances.append(stance) or torch.no_grad())
    with system.eager():
        assert not stances, "nothing is compiled"
    monkeypatch.setattr(nn.Module, "compile", lambda module: None)
    system.compile_model()
    with system.eager():
        assert stances == ["force_eager"]


def test_the_precision_of_matrix_products_is_that_of_the_file_for_whatever_is_built(load):
    """To train, to evaluate, to draw, to measure: all of them build, and nothing else sets it."""
    before = torch.get_float32_matmul_precision()
    try:
        build(load("train.precision=tf32"))
        assert torch.get_float32_matmul_precision() == "high"
        build(load("train.precision=bfloat16"))
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
