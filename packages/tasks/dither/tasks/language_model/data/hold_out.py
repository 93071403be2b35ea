"""Options of data sources that hold out shares of a text."""

from __future__ import annotations

from typing import Self

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds.task import DataSpec

__all__ = ["HoldOut"]


class HoldOut(DataSpec):
    """Shares of the text, in whole documents, that are held out."""

    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the text, in whole documents, held out for validation."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share held out for testing."""

    @model_validator(mode="after")
    def _leaves_training_text(self) -> Self:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid = {self.valid} and test = {self.test} leave no training text")
        return self
