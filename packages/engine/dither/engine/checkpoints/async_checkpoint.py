"""When checkpoints are written: in the loop, or beside it while training goes on with the next steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .checkpoint import Checkpoints, Contents
from .sharded_checkpoint import Pieces

__all__ = ["Saver"]


class Saver:
    """Writes the checkpoints of a run.

    Args:
        checkpoints: Where they go.
        beside: Write in a thread: only a copy of everything is made in the loop. It takes the memory of a checkpoint.
        written: Told of each checkpoint that is whole and on disk, in the thread of the loop.

    Attributes:
        newest: Step of the newest checkpoint on disk; None if there is none.
    """

    def __init__(
        self, checkpoints: Checkpoints, beside: bool = False, written: Callable[[int, Path], None] = lambda *_: None
    ) -> None:
        self.checkpoints, self.written = checkpoints, written
        self.newest: int | None = None
        self._pool = ThreadPoolExecutor(1, "checkpoint") if beside else None
        self._under_way: tuple[int, Future[Path]] | None = None

    def has(self, step: int) -> bool:
        """Tell whether the checkpoint of a step is the newest, or is being written."""
        return step == (self.newest if self._under_way is None else self._under_way[0])

    def save(self, step: int, contents: Contents | Pieces) -> None:
        """Write a checkpoint; what `contents` refers to may change as soon as this returns.

        Raises:
            OSError: It cannot be written, or the one before could not.
        """
        self.wait()
        if self._pool is None:
            self._done(step, self.checkpoints.save(step, contents))
        else:
            self._under_way = step, self._pool.submit(self.checkpoints.save, step, contents.copied())

    def leave(self, step: int) -> None:
        """Take a checkpoint as written: another process writes it."""
        self.newest = step

    def poll(self) -> None:
        """Take note of a write that has ended; waits for none.

        Raises:
            OSError: It failed.
        """
        if self._under_way is not None and self._under_way[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
            OSError: It cannot be written.
        """
        if self._under_way is not None:
            (step, future), self._under_way = self._under_way, None
            self._done(step, future.result())

    def close(self) -> None:
        """Let a write that is under way come to its end, however it ends."""
        if self._pool is not None:
            self._pool.shutdown()

    def _done(self, step: int, path: Path) -> None:
        self.newest = step
        self.written(step, path)
