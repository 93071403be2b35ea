"""Work that holds the GIL, in processes of its own."""

from __future__ import annotations

import atexit
import json
import os
import sys
from subprocess import PIPE, CalledProcessError, Popen
from tempfile import TemporaryFile
from typing import Any

__all__ = ["ChildProcess", "usable_cores"]


class ChildProcess:
    """A process that runs Python code from JSON on its standard input to JSON on its standard output."""

    def __init__(self, code: str, job: Any) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with TemporaryFile() as given:
            given.write(json.dumps(job).encode())
            given.seek(0)
            # Ctrl-C, which stops a run after its current step, must not reach the child.
            options: dict[str, Any] = {"process_group": 0, "env": environment}
            self._process = Popen(
                [sys.executable, "-Pc", code], stdin=given, stdout=PIPE, **options
            )
        atexit.register(self._process.kill)

    def result(self) -> Any:
        """Wait for the result; raises CalledProcessError if there is none."""
        output, _ = self._process.communicate()
        atexit.unregister(self._process.kill)
        if self._process.returncode:
            raise CalledProcessError(self._process.returncode, self._process.args)
        return json.loads(output)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
