"""Threads of torch wait passively unless the user decides otherwise, and a small model has one."""

import os
import subprocess
import sys

import pytest
import torch

from dither.engine.runs.loading import build
from dither.engine.training.device import (
    SMALL_STEP,
    THREAD_VARIABLES,
    Threads,
    choose_threads,
    set_threads,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.setattr(Threads, "before", None)
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, "PASSIVE"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ({"GOMP_SPINCOUNT": "1000"}, None),
        ({"KMP_BLOCKTIME": "0"}, None),
    ],
)
def test_importing_dither_sets_passive_waiting_before_torch(given, policy):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    inherited = {key: os.environ[key] for key in os.environ if key not in names}
    code = (
        "import os, sys, dither.engine.cli; assert 'torch' not in sys.modules;"
        "print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(policy)


def test_the_number_of_threads(monkeypatch):
    assert choose_threads(None, SMALL_STEP - 1, CPU) == 1
    assert choose_threads(None, SMALL_STEP, CPU) is None
    assert choose_threads(3, 1, CPU) == 3
    assert choose_threads(None, 1, torch.device("cuda")) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(None, 1, CPU) is None


def test_a_small_model_leaves_the_threads_of_the_next_one():
    torch.set_num_threads(2)
    set_threads(None, 1)
    set_threads(None, 1)
    assert torch.get_num_threads() == 1
    set_threads(None, None)
    assert torch.get_num_threads() == 2
    set_threads(3, 3)
    set_threads(None, None)
    assert torch.get_num_threads() == 3


def test_the_first_lines_say_so(start, console, load):
    torch.set_num_threads(2)
    code, _ = start("train.steps=1")
    text = console.export_text()
    assert code == 0
    assert "cpu, 1 threads; " in text
    assert "one CPU thread: more gain little" in text
    build(load("train.threads=2"))
    assert torch.get_num_threads() == 2
