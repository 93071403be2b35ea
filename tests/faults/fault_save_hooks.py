"""What shows, from within its own process, that a checkpoint holds the values of its step and no later ones."""

from __future__ import annotations

from typing import Any


def ones_after_saves() -> None:
    """Make all that a checkpoint refers to ones as soon as the loop may go on, and put it back when it is on disk."""
    from dither.engine.checkpoints.checkpoint import Saver

    save = Saver.save

    def overwritten(self: Any, step: int, contents: Any) -> None:
        held = [contents.model.state_dict(), contents.average.state_dict(), contents.tensors]
        tensors = [tensor for part in held for tensor in part.values()]
        save(self, step, contents)
        before = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.fill_(1)
        self.wait()
        for tensor, values in zip(tensors, before, strict=True):
            tensor.copy_(values)

    Saver.save = overwritten
