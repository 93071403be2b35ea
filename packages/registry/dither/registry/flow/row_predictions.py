"""Predictions at chosen positions, so that `B L V` numbers need not be in memory together.

Letters: B batch, L length, V vocabulary, N chosen positions, n those of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

__all__ = ["RowPrediction", "prediction_rows"]


@runtime_checkable
class RowPrediction(Protocol):
    """A `TokenPrediction` that can be read at single positions."""

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Any]:
        """Yield predictions of the chosen positions in order, each as one sample `1 n V`; none if none is chosen."""


@dataclass(frozen=True)
class _SelectedRows:
    """Chosen positions of a prediction that exists as a whole."""

    pred: Any
    where: Bool[Tensor, "B L"]

    def log_clean(self) -> Float[Tensor, "1 N V"]:
        return self.pred.log_clean()[self.where][None]  # type: ignore[no-any-return]

    def log_score(self) -> Float[Tensor, "1 N V"]:
        return self.pred.log_score()[self.where][None]  # type: ignore[no-any-return]


def prediction_rows(pred: Any, where: Bool[Tensor, "B L"]) -> Iterator[Any]:
    """Yield predictions of the chosen positions of any `TokenPrediction`, as `RowPrediction.rows` does."""
    if isinstance(pred, RowPrediction):
        yield from pred.rows(where)
    elif where.any():
        yield _SelectedRows(pred, where)
