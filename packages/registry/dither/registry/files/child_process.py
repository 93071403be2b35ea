"""Child processes that import no module of the working folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["safe_path"]

VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """Start the Python processes of the block as with `python -P`."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
