"""Work that holds the GIL, in processes of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from subprocess import PIPE, run
from typing import Any


def map_in_processes(code: str, jobs: Sequence[Any]) -> list[Any]:
    """Run Python code once per job at the same time, each from JSON on stdin to JSON on stdout.

    Not by multiprocessing: a process that it spawns would run the user's script once more.

    Raises:
        CalledProcessError: The code failed.
    """
    # Threads suffice: each only waits for its process.
    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(partial(_run, code), jobs))


def _run(code: str, job: Any) -> Any:
    # Ctrl-C, which stops a run after its current step, must not reach the child: it has its own
    # process group.
    done = run(
        # -P: without it the working directory is on sys.path, where a file could shadow a module.
        [sys.executable, "-Pc", code],
        input=json.dumps(job).encode(),
        stdout=PIPE,
        check=True,
        process_group=0,
    )
    return json.loads(done.stdout)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    # os.cpu_count also counts cores that taskset or a batch system withholds.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
