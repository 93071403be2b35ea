"""Option types shared by Specs and implementations."""

from __future__ import annotations

from typing import Literal

__all__ = ["Link", "Reduction"]

Reduction = Literal["element-mean", "region-sum", "zero-padded"]
"""Reduction over the features of a position."""
Link = Literal["none", "softplus", "log"]
"""Inverse link from the prediction to a Poisson rate."""
