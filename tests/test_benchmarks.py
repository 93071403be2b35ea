"""Benchmarks are scripts that nothing else calls: a row of each kind still runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("row", ["1 layer", "bound of a text"])
def test_a_row_of_the_benchmarks(row) -> None:
    script = ROOT / "benchmarks" / "all.py"
    words = [sys.executable, str(script), "--minutes", "0", "--only", row]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith(row)]
    assert "3 pairs" in line
