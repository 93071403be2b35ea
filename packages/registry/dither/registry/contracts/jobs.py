"""Protocols of executors, which run the points of sweeps. No torch."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

__all__ = ["Cluster", "Command", "Executor", "Job"]


@dataclass(frozen=True)
class Command:
    """`python -m MODULE ARGUMENTS`, and what an executor needs to place it.

    Attributes:
        name: That of the point, or of the search.
        output: File to which a process appends stdout and stderr.
        ranks: Processes that train one model; each takes one GPU.
        slot: Index among the commands that run at the same time.
        parallel: Number of commands that run at the same time.
    """

    module: str
    arguments: tuple[str, ...]
    name: str
    output: Path
    ranks: int = 1
    slot: int = 0
    parallel: int = 1

    @property
    def argv(self) -> list[str]:
        """The command line; -P keeps modules of the working folder out."""
        return [sys.executable, "-P", "-m", self.module, *self.arguments]


class Job(Protocol):
    """A running command."""

    @abstractmethod
    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; negative if a signal ended it."""

    @abstractmethod
    def stop(self, force: bool = False) -> None:
        """Send SIGTERM, after which a run writes a checkpoint and exits with 75; with `force` kill it."""


@runtime_checkable
class Executor(Protocol):
    """Runs commands that a sweep waits for, such as processes, or tasks of Ray and Dask."""

    @abstractmethod
    def start(self, command: Command) -> Job:
        """Start a command; OSError if that is impossible. Called from several threads."""


@runtime_checkable
class Cluster(Protocol):
    """Queues commands that outlive the sweep, such as jobs of SLURM or SkyPilot."""

    @abstractmethod
    def submit(self, commands: Sequence[Command], folder: Path) -> list[str]:
        """Queue commands, and return their ids; `folder` is for scripts and logs.

        At most `Command.parallel` run at the same time. Refused if the cluster rejects them. A
        command with exit code 75 may be queued again.
        """
