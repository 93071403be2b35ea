"""`python -m dither.engine.cli`, for torchrun."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..signals import EXIT_CODE, STOPPED, record_exit_code
from . import main

__all__ = ["run_rank"]


def run_rank(command: Callable[[], int]) -> int:
    """Run a command on a rank, and leave its exit code for a job file."""
    # That of an earlier start of the ranks would outlive a crash of this one.
    record_exit_code(None)
    code = command()
    record_exit_code(code)
    # torchrun would start ranks again that have stopped.
    return 0 if code == STOPPED and EXIT_CODE in os.environ else code


if __name__ == "__main__":
    raise SystemExit(run_rank(main))
