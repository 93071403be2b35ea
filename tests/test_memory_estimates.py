"""The estimate of memory against whole runs of the three experiments, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "memory_estimates.py"


@pytest.mark.slow
def test_the_estimate_is_within_a_tenth_of_the_peak():
    command = [sys.executable, str(BENCHMARK), "as they are", "as it is"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "3 of 3 within 10 %" in done.stdout, done.stdout
