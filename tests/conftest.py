"""What the tests of the whole house share: one thread, a small experiment, and a count of the conformance checks."""

import json
from collections.abc import Callable

import pytest
import torch

from dither.testing.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary", "text_experiment"]

torch.set_num_threads(1)
TEXT = """
loss = "masked-ce"
process = "absorbing"
sampler = "first-hitting"
[task]
use = "language-model"
length = 8
tokenizer = "{tokenizer}"
ngrams = 2
data = {{ use = "text-files", paths = {paths}, valid = 0.2, test = 0.1 }}
[model]
use = "denoiser"
width = 8
depth = 1
embedding = "tokens"
condition = "level"
block = {{ use = "adaln-zero", heads = 2 }}
head = "tokens"
[train]
steps = 2
batch_size = 4
device = "cpu"
threads = 1
[evaluate]
samples = 4
[sample]
count = 1
"""


@pytest.fixture(scope="session")
def text_experiment() -> Callable[..., str]:
    """The TOML of an experiment on text files, whose two steps take half a second."""

    def written(*paths: str, tokenizer: str = "bytes") -> str:
        return TEXT.format(paths=json.dumps(paths), tokenizer=tokenizer)

    return written
