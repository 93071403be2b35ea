"""What a full disk and a full memory say, whoever says it, and through whatever it was passed on."""

import errno

import pytest

from dither.engine.files.resource_errors import shortage

FULL = OSError(errno.ENOSPC, "No space left on device", "a.csv")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, str(FULL)),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory: DefaultCPUAllocator: can't alloc"),
        (OSError(errno.EMFILE, "Too many open files"), None),
        (ValueError("x"), None),
    ],
)
def test_the_line_is_worded_from_the_link_that_says_it(error, said):
    around = RuntimeError("a part failed")
    around.__cause__ = ValueError("of this")
    around.__cause__.__cause__ = error
    for each in (error, around):
        lacking = shortage(each)
        assert lacking is None if said is None else lacking.startswith(said)
