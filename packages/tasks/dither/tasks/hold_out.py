"""Base of sources that are divided into splits by shares. Read without torch and numpy."""

from __future__ import annotations

from typing import Self

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds import DataSpec

__all__ = ["HoldOut"]


class HoldOut(DataSpec):
    """Shares of the data that are held out. Not a component by itself."""

    valid: float = Option(0.1, gt=0, lt=1)
    """Share held out for validation: whole documents of a text, or plans, isomorphic ones
    together."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share held out for testing, as for `valid`."""

    @model_validator(mode="after")
    def _leaves_training_data(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid = {self.valid} and test = {self.test} leave no training data"
            )
        return self
