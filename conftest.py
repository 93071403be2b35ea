"""What every test of the house shares."""

import atexit
import os
import tempfile

import hypothesis

hypothesis.settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("house")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "DITHER_MENUS" not in os.environ:  # plugins of tests have no place in the cache of whoever runs them
    menus = tempfile.TemporaryDirectory(prefix="dither-menus-")
    os.environ["DITHER_MENUS"] = menus.name
    os.environ["XDG_STATE_HOME"] = menus.name  # nor has what they say of plugin files that ran
    atexit.register(menus.cleanup)
