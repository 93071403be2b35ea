"""Imported once by the process that trials are forked from: torch is there, and has trained a little."""

import contextlib
import gc
import io
import os
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import fault_hooks  # noqa: F401
import torch
from fault_trial import arguments, write_experiment

from dither.engine.cli import main

torch.set_num_threads(1)
quiet = io.StringIO()
with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
    folder = Path(made)
    main(arguments(write_experiment(folder), folder / "runs"))
gc.collect()
gc.freeze()
