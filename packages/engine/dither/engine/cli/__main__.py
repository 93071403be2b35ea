"""`python -m dither.engine.cli`, for torchrun."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..signals import STOPPED
from . import main

__all__ = ["run_rank"]

EXIT_CODE = "DITHER_EXIT_CODE"
"""Variable with the file for the exit code: torchrun exits with 1 for every exit code of its ranks."""


def run_rank(command: Callable[[], int]) -> int:
    """Run a command on a rank, and leave its exit code for a job file."""
    file = os.environ.get(EXIT_CODE)
    if file is None:
        return command()
    is_first = os.environ.get("LOCAL_RANK") == "0"
    # That of an earlier start of the ranks would outlive a crash of this one.
    if is_first:
        Path(file).unlink(missing_ok=True)
    code = command()
    if is_first:
        # A full disk must not change the exit code.
        with suppress(OSError):
            Path(file).write_text(f"{code}\n", encoding="ascii")
    # torchrun would start ranks again that have stopped.
    return 0 if code == STOPPED else code


if __name__ == "__main__":
    raise SystemExit(run_rank(main))
