"""What the tests of the whole house share: one thread, and a count of the conformance checks."""

import torch

from dither.testing.summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

torch.set_num_threads(1)
