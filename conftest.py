"""What every test of the house shares."""

import atexit
import os
import tempfile

import hypothesis

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("house")
os.environ.setdefault("OMP_NUM_THREADS", "1")
state = tempfile.TemporaryDirectory(prefix="dither-state-")
atexit.register(state.cleanup)
os.environ["XDG_STATE_HOME"] = state.name  # plugin files of tests have not run for whoever runs the tests
