"""What every test of the house shares."""

import atexit
import contextlib
import gc
import os
import sys
import tempfile

import hypothesis
import pytest

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("house")
os.environ.setdefault("OMP_NUM_THREADS", "1")
state = tempfile.TemporaryDirectory(prefix="dither-state-")
atexit.register(state.cleanup)
os.environ["XDG_STATE_HOME"] = state.name  # plugin files of tests have not run for whoever runs the tests


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, a pass over which takes as long as a small run."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_full_collections() -> None:
    """Keep them excluded: a run would collect everything at its start and end the exclusion."""
    if loop := sys.modules.get("dither.engine.runs.loop"):
        loop._no_pauses = contextlib.nullcontext
