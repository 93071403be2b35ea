"""MATLAB files of Graph2Plan, read by a process of its own.

`scipy.io.loadmat` may bring the whole process down on a damaged file (a segmentation fault, seen with scipy 1.16 and
uncompressed files), so it runs apart: `python -m dither.tasks.bubble_diagram.formats.matlab data.mat out.json`.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from .common import Fault, RejectedPlan

__all__ = ["FIELDS", "read_structs"]

FIELDS: Final = ("name", "gtBoxNew", "gtBox", "rType", "rEdge", "box", "edge")
"""Fields of a plan that are read."""


def read_structs(file: Path) -> list[dict[str, Any]]:
    """Return the plans in the variable `data`, as lists and text.

    Raises:
        Unfit: The file cannot be read, or holds no such plans.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plans.json"
        command = [sys.executable, "-m", __name__, str(file), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not out.is_file():
            said = done.stderr.strip().splitlines()
            why = said[-1] if said and done.returncode > 0 else "it makes the reader crash"
            raise RejectedPlan(Fault("file", f"is no MATLAB file that can be read: {why}"))
        found: Any = json.loads(out.read_text(encoding="utf-8"))
    if isinstance(found, str):
        raise RejectedPlan(Fault("file", found))
    plans: list[dict[str, Any]] = found
    return plans


def _load(file: Path) -> list[dict[str, Any]] | str:
    """Return the plans, or what is wrong."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(file, variable_names=["data"], appendmat=False)
        names = "" if "data" in found else ", ".join(name for name, _, _ in whosmat(file, appendmat=False))
    except NotImplementedError:
        return "is of MATLAB 7.3 (HDF5); save it again with -v7"
    except (OSError, ValueError, TypeError, LookupError, EOFError, MatReadError, zlib.error, struct.error,
            ArithmeticError, MemoryError, AttributeError) as error:  # fmt: skip
        return f"is no MATLAB file that can be read: {str(error) or type(error).__name__}"
    if "data" not in found:
        return f"holds no variable data; it holds {names or 'nothing'}"
    data = np.asarray(found["data"])
    if data.dtype.names is None:
        return f"its variable data is {data.dtype} of shape {data.shape}; an array of structs is due"
    fields = [field for field in FIELDS if field in data.dtype.names]
    return [{field: _plain(plan[field]) for field in fields} for plan in data.ravel()]


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.tolist() if array.dtype.kind in "biufU" else str(value)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_load(Path(sys.argv[1]))), encoding="utf-8")
