"""Imported once by the fork server: torch is loaded, and every task was trained for a step.

Pictures take longer than everything else in a run so small, so that a line of text replaces them.
"""

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
from dither.registry.contracts.protocols import Picture
from dither.tasks.bubble_diagram.task import BubbleDiagrams
from dither.tasks.get_region.task import RegionWindows

for owner in (BubbleDiagrams, RegionWindows):
    owner.plots = lambda self, samples, like: iter(
        [Picture("shown", text=str(tuple(samples.shape)))]
    )
    owner.trajectory_plots = lambda self, path, like: iter(())

torch.set_num_threads(1)
quiet, before = io.StringIO(), Path.cwd()
with (
    tempfile.TemporaryDirectory() as name,
    contextlib.redirect_stdout(quiet),
    contextlib.redirect_stderr(quiet),
):
    os.chdir(name)
    for task in os.environ["DITHER_FAULT_TASKS"].split():
        more = ("train.steps=1", "evaluate.samples=1", "train.keep_memory=false")
        main(
            arguments(
                write_experiment(Path(name), task), Path(name) / f"runs-{task}", *more
            )
        )
    os.chdir(before)
gc.collect()
gc.freeze()
