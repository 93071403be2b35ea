"""Imported once by the process that trials are forked from: torch is there, and the tasks have been trained a little.

Pictures take longer than all else in a run so small, and nothing follows from them: a line of text stands for them.
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
from fault_tasks import arguments, write_experiment

from dither.engine.cli import main
from dither.registry.flow.protocols import Picture
from dither.tasks.bubble_diagram.task import BubbleDiagrams
from dither.tasks.get_region.task import RegionWindows

for owner in (BubbleDiagrams, RegionWindows):
    owner.plots = lambda self, samples, like: iter([Picture("shown", text=str(tuple(samples.shape)))])
    owner.trajectory_plots = lambda self, path, like: iter(())

torch.set_num_threads(1)
quiet = io.StringIO()
with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
    folder, before = Path(made), Path.cwd()
    for task in os.environ["DITHER_FAULT_TASKS"].split():
        experiment = write_experiment(folder, task)
        os.chdir(folder)
        main(
            arguments(
                experiment, folder / f"runs-{task}", "train.steps=1", "evaluate.samples=1", "train.keep_memory=false"
            )
        )
    os.chdir(before)
gc.collect()
gc.freeze()
