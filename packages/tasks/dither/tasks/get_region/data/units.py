"""Units of columns: those of the source, scaled ones for metrics, and those of the model.

source -> scaled: divided by the largest training value, and cut at 1 (motifs under `scale`,
quantitative accessibility) scaled -> model: motifs transformed, then every column standardised.
Letters: W columns, M motifs, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32
from numpy import ndarray

from dither.registry.config.errors import Refused

from ...prepared.arrays import load_npz
from .column_groups import Transform
from .region_matrix import ColumnStats

__all__ = ["UNITS", "ColumnUnits"]

_Values = Float[ndarray, "*B W"]

UNITS = "columns.npz"
"""File of a run and of exports that holds the units, motifs and cell types."""

Function = Callable[[Any], Any]

FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "sqrt": (np.sqrt, np.square),
    "log1p": (np.log1p, np.expm1),
}
ROUNDING = 2.0**-20
"""Share of the mean of a column that standardising in float32 and its inverse may leave of a 0;
2^-22 at most."""


@dataclass(frozen=True)
class ColumnUnits:
    """How values become inputs of the model, and outputs values.

    `divisor` is the source value of a scaled value of 1; then motifs are transformed, and
    `standard` is subtracted and divided by. For "quantile", `quantiles` are evenly spaced ones of
    each motif over the training regions.
    """

    divisor: Float32[ndarray, " W"]
    standard: ColumnStats
    transform: Transform = "none"
    motifs: int = 0
    quantiles: Float32[ndarray, "Q M"] | None = None

    def forward(self, scaled: _Values) -> _Values:
        """Scaled -> model."""
        return (self.transformed(scaled) - self.standard.mean) / self.standard.std

    def transformed(self, scaled: _Values) -> _Values:
        """Return scaled values with the motifs transformed."""
        return self._of_motifs(scaled, inverse=False)

    def inverse(self, values: _Values) -> _Values:
        """Model -> scaled. Values within rounding of 0 become 0 and rank as such."""
        plain: _Values = values * self.standard.std + self.standard.mean
        plain[np.abs(plain) <= ROUNDING * np.abs(self.standard.mean)] = 0
        return self._of_motifs(plain, inverse=True)

    def inverse_transform(self, values: _Values) -> _Values:
        """Model -> source; values that were cut at 1 come back as `divisor`."""
        scaled = self.inverse(np.asarray(values, np.float32))
        return scaled * self.divisor

    def _of_motifs(self, values: _Values, *, inverse: bool) -> _Values:
        if self.transform == "none":
            return values
        result = np.array(values, np.float32)
        motifs = result[..., : self.motifs]
        if self.quantiles is None:
            forward, backward = FUNCTIONS[self.transform]
            # Assigned in place: `motifs` is a view of `result`.
            function = backward if inverse else forward
            # A prediction may be negative.
            motifs[...] = function(motifs.clip(min=0))
            return result

        # Motif by motif: np.interp takes one table at a time.
        levels = np.linspace(0, 1, len(self.quantiles))
        for column, knots in enumerate(self.quantiles.T):
            points = (knots, levels)
            if inverse:
                points = (levels, knots)

            motifs[..., column] = np.interp(motifs[..., column], *points)
        return result

    def arrays(self) -> dict[str, ndarray]:
        """Return the arrays that a run and its exports keep."""
        arrays = {
            "divisor": self.divisor,
            "mean": self.standard.mean,
            "std": self.standard.std,
        }
        if self.quantiles is not None:
            arrays["quantiles"] = self.quantiles
        return arrays

    @classmethod
    def read(cls, path: Path) -> ColumnUnits:
        """Read the units that a run saved; raise Refused if they are missing or damaged."""
        arrays = load_npz(path)
        try:
            transform: Any = str(arrays["transform"])
            return cls(
                divisor=arrays["divisor"],
                standard=ColumnStats(arrays["mean"], arrays["std"]),
                transform=transform,
                motifs=len(arrays["motif"]),
                quantiles=arrays.get("quantiles"),
            )
        except (KeyError, TypeError) as error:
            raise Refused(f"{path}: damaged ({error})", code="damaged-file") from None
