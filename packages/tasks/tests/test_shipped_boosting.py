"""Predictions of boosting that ship with the package are those of a new fit."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dither.tasks.get_region.metrics.baselines import SHIPPED

ROOT = Path(__file__).parents[3]


def test_each_shipped_file_has_probabilities_or_values():
    files = sorted(SHIPPED.glob("*.npy"))
    assert files
    for file in files:
        values = np.load(file, allow_pickle=False)
        assert values.ndim == 1
        assert np.isfinite(values).all()
        assert np.ptp(values) > 0.1


@pytest.mark.slow
def test_a_new_fit_predicts_the_same(tmp_path):
    command = [sys.executable, str(ROOT / "tools/boosting.py"), str(tmp_path / "new")]
    subprocess.run(command, check=True, cwd=tmp_path)
    fitted = {file.name: np.load(file) for file in (tmp_path / "new").iterdir()}
    shipped = {file.name: np.load(file) for file in SHIPPED.glob("*.npy")}
    assert set(fitted) == set(shipped)
    for name, values in fitted.items():
        np.testing.assert_allclose(values, shipped[name], atol=1e-3)
