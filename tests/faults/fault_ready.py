"""Imported once by the process that trials are forked from."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import fault_hooks  # noqa: F401
import fault_trial  # noqa: F401
import torch
import torch.utils.tensorboard

from dither.engine import run, training  # noqa: F401
from dither.engine.cli import app  # noqa: F401
from dither.registry.catalog import default_catalog

torch.set_num_threads(1)
for part in default_catalog().parts():
    __import__(type(part.spec).__module__)
