"""Recognising a full disk and exhausted memory, also as the cause of another exception."""

import errno

import pytest

from dither.engine.files.resource_errors import shortage

FULL = OSError(errno.ENOSPC, "No space left on device", "a.csv")
OOM = "out of memory: DefaultCPUAllocator: can't allocate memory\n  help: lower train.batch_size"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FULL, str(FULL)),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OOM),
        (OSError(errno.EMFILE, "Too many open files"), None),
        (ValueError("x"), None),
    ],
)
def test_shortage(error, message):
    outer = RuntimeError("a component failed")
    outer.__cause__ = ValueError("inner")
    outer.__cause__.__cause__ = error
    for each in (error, outer):
        found = shortage(each)
        assert found is None if message is None else found.startswith(message)
