"""What every test of the house shares."""

import os

import hypothesis

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("house")
os.environ.setdefault("OMP_NUM_THREADS", "1")
