"""Fit boosting for get_region/quick, and write its predictions, which ship with dither-tasks.

    python tools/boosting.py [FOLDER]

They are found by a hash of data and options; otherwise boosting is fitted during the run. A slow
test fits them again.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dither.engine.cli import main as dither
from dither.registry.files.cache import cache_folder
from dither.tasks.get_region.metrics import baselines

EXPERIMENT = Path(__file__).parent.parent / "experiments/get_region/quick.toml"


def main() -> int:
    """Write the files to a folder, by default that of the package."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else baselines.SHIPPED
    wheels = cache_folder() / "wheels"
    with TemporaryDirectory() as name:
        folder = Path(name)
        # The data of the user, but no earlier prediction
        if wheels.is_dir():
            (folder / "wheels").symlink_to(wheels)
        os.environ["DITHER_DATA"] = name
        baselines.SHIPPED = folder / "none"
        run = ["run", str(EXPERIMENT), "train.steps=1", "evaluate.every=1"]
        code: int = dither([*run, "--runs", str(folder / "runs")])
        if code == 0:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(folder / "boosting", target)
    return code


if __name__ == "__main__":
    sys.exit(main())
