"""Weights that are no numbers are never written."""

import math

import pytest
import torch
from safetensors.torch import load_file

from dither.engine.runs.launch import NON_FINITE, run
from dither.engine.training.nan_guard import all_finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_is_found(bad):
    tensors = [torch.full((3, 2), 3e38), torch.zeros(0), torch.full((5,), -3e38), torch.tensor(1.0)]
    assert all_finite(tensors)
    assert all_finite([])
    for at, tensor in enumerate(tensors):
        if tensor.numel():
            assert not all_finite(
                [*tensors[:at], tensor.flatten().index_fill(0, torch.tensor([0]), bad), *tensors[at:]]
            )


def test_an_update_that_is_too_large_ends_a_run_and_is_not_saved(load, tmp_path, console):
    """At a rate beyond all numbers, loss and gradient are numbers still, and the weights no longer."""
    changes = ("train.optimizer.lr=1e39", "train.lr_schedule={use='constant'}", "train.checkpoint_every=1")
    assert run(load(*changes), tmp_path / "runs", ["test"], console=console) == NON_FINITE
    text = " ".join(console.export_text().split())
    assert "step 1: its update, by too large a learning rate, made weights that are no numbers" in text
    assert "no checkpoint was written yet" in text
    assert not list((tmp_path / "runs").glob("*/checkpoints/step-*"))


def test_what_was_saved_before_is_kept_and_finite(load, tmp_path, console):
    changes = ("train.optimizer.lr=1e37", "train.checkpoint_every=1", "train.keep=9", "train.clip=0")
    assert run(load(*changes), tmp_path / "runs", ["test"], console=console) == NON_FINITE
    for path in (tmp_path / "runs").glob("*/checkpoints/*/model.safetensors"):
        assert all_finite(load_file(path).values()), path


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ("1e39", "step 1: its update, by too large a learning rate, made weights that are no numbers"),
        (
            "1e20",
            "step 2: the loss is nan and the gradient norm nan; the weights were not changed by it; the batch",
        ),
    ],
)
def test_where_an_update_has_destroyed_the_weights_no_sample_is_blamed(load, tmp_path, console, rate, said):
    """A step later the loss of every sample is no number."""
    changes = (f"train.optimizer.lr={rate}", "train.lr_schedule={use='constant'}")
    assert run(load(*changes), tmp_path / "runs", ["test"], console=console) == NON_FINITE
    text = " ".join(console.export_text().split())
    assert said in text
    assert "at fault" not in text
