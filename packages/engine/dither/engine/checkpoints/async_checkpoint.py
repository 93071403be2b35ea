"""Writing checkpoints in the training loop or in a background thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .checkpoint import Checkpoints, Contents
from .sharded_checkpoint import Shards

__all__ = ["Saver"]


class Saver:
    """Writes the checkpoints of a run.

    Args:
        checkpoints: The checkpoints of the run.
        background: Write in a thread; the loop only copies the tensors, which takes the memory of a checkpoint.
        written: Called in the loop with the step and folder of each checkpoint on disk.

    Attributes:
        newest: Step of the newest checkpoint on disk, or None.
    """

    def __init__(
        self, checkpoints: Checkpoints, background: bool = False, written: Callable[[int, Path], None] = lambda *_: None
    ) -> None:
        self.checkpoints, self.written = checkpoints, written
        self.newest: int | None = None
        self._pool = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: tuple[int, Future[Path]] | None = None

    def has(self, step: int) -> bool:
        """Return whether the checkpoint of a step is the newest or is being written."""
        return step == (self.newest if self._pending is None else self._pending[0])

    def save(self, step: int, contents: Contents | Shards) -> None:
        """Write a checkpoint; the tensors of `contents` may change once this returns.

        Raises:
            OSError: It or the previous checkpoint cannot be written.
        """
        self.wait()
        if self._pool is None:
            self._complete(step, self.checkpoints.save(step, contents))
        else:
            self._pending = step, self._pool.submit(self.checkpoints.save, step, contents.copied())

    def skip(self, step: int) -> None:
        """Record a checkpoint that another rank writes."""
        self.newest = step

    def poll(self) -> None:
        """Complete a write that has ended, without waiting.

        Raises:
            OSError: The write failed.
        """
        if self._pending is not None and self._pending[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk.

        Raises:
            OSError: The write failed.
        """
        if self._pending is not None:
            (step, future), self._pending = self._pending, None
            self._complete(step, future.result())

    def close(self) -> None:
        """Wait for a pending write, ignoring its result."""
        if self._pool is not None:
            self._pool.shutdown()

    def _complete(self, step: int, path: Path) -> None:
        self.newest = step
        self.written(step, path)
