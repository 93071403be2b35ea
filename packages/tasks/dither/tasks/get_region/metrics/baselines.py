"""Predictors that need no deep model, asked for the very same elements under the very same masks as the model.

They are fitted on the training regions alone. Letters: B batch, L length, M columns, P training regions, R regions of a
question in one row each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer
from torch import Tensor

from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Group

from ..data.lazy_matrix import row_blocks
from ..data.region_matrix import ColumnStats

__all__ = ["BASELINES", "Baselines", "MaskedBatch", "nearest_visible", "regions_beside"]

BASELINES = ("mean", "nearest", "similar", "ridge", "logistic")
"""Their names, the simplest first."""

REFERENCES = 8192
"""Training regions, evenly spaced, among which similar ones are looked for."""

ALIKE = 32
"""Similar regions whose mean is the answer."""

PENALTY = 100.0
"""Of the ridge, on columns of standard deviation 1 summed over the training regions."""


@dataclass(frozen=True)
class MaskedBatch:
    """What was asked for in a batch.

    Attributes:
        truth: `B L M`, in the units of the data.
        visible: True for what may be looked at. `B L M`.
        wanted: True for what is asked. `B L M`.
        centre: Where the regions are, in bases. `B L`.
        cell: The cell type of each window, by number; -1 where it is not told. `B`.
    """

    truth: Float32[np.ndarray, "B L M"]
    visible: Bool[np.ndarray, "B L M"]
    wanted: Bool[np.ndarray, "B L M"]
    centre: Integer[np.ndarray, "B L"]
    cell: Integer[np.ndarray, " B"]

    @classmethod
    def of(cls, truth: Float32[np.ndarray, "B L M"], wanted: Bool[Tensor, "B L M"], clean: Clean) -> MaskedBatch:
        """Take what is neither wanted nor padding as visible."""
        asked, valid = wanted.cpu().numpy(), clean.valid.cpu().numpy()
        cell = clean.cond["cell"].cpu().numpy() if "cell" in clean.cond else np.full(len(valid), -1)
        return cls(truth, valid[..., None] & ~asked, asked, clean.cond["centre"].cpu().numpy(), cell)

    def of_cell(self, cell: int) -> MaskedBatch:
        """Return the windows of one cell type."""
        return self.of_windows(self.cell == cell)

    def of_windows(self, rows: Bool[np.ndarray, " B"]) -> MaskedBatch:
        """Return some of the windows."""
        return MaskedBatch(*(getattr(self, each.name)[rows] for each in fields(self)))


class Baselines:
    """The baselines, fitted when they are first asked.

    - `mean`: the training mean of each column; it ranks by chance.
    - `nearest`: the same column of the nearest region of the window that is visible there.
    - `similar`: the mean of the 32 training regions that are most alike in what is visible of the region.
    - `ridge`: ridge regression of each column on the visible columns of the region, fitted for every pattern of
      visible columns; where nothing of a region is visible, on the nearest regions of which something is.
    - `logistic`: logistic regression of accessibility on the motifs of the region, the hidden ones at their mean.

    Args:
        train: Training regions in the order of the genome, in the units of the data, of one cell type. `P M`.
        starts: True where a region is the first of its chromosome. `P`.
        groups: Which columns are motifs and accessibility.
    """

    def __init__(
        self, train: Float32[np.ndarray, "P M"], starts: Bool[np.ndarray, " P"], groups: Sequence[Group]
    ) -> None:
        self.train, self.starts, self.groups = train, starts, tuple(groups)
        self.places = {group.name: slice(group.start, group.stop) for group in groups}
        self.standard = ColumnStats.over(
            (train[rows], np.ones(rows.stop - rows.start)) for rows in row_blocks(len(train))
        )

    def answers(
        self, question: MaskedBatch
    ) -> Iterator[tuple[str, Float[np.ndarray, "B L M"], Bool[np.ndarray, "B L M"]]]:
        """Yield the name of a baseline, its answers `B L M` in the units of the data, and what it answers."""
        shape = question.truth.shape
        whole = np.broadcast_to(self.standard.mean, shape)
        yield "mean", whole, question.wanted
        found, values = nearest_visible(question.truth, question.visible, question.centre)
        if (found & question.wanted).any():
            yield "nearest", np.where(found, values, whole), question.wanted
        z = np.where(question.visible, self._scaled(question.truth), 0).astype(np.float32)
        asked = question.wanted.any(-1)
        for name, guess in (("similar", self._similar), ("ridge", self._ridge)):
            values = np.zeros(shape, np.float32)
            values[asked] = guess(z[asked], question.visible[asked])
            if name == "ridge":
                blind = asked & ~question.visible.any(-1)
                values[blind] = (regions_beside(z, question.visible) @ self._beside)[blind]
            yield name, values * self.standard.std + self.standard.mean, question.wanted
        place = self.places.get("accessibility")
        if place is not None and self._logistic is not None and question.wanted[..., place].any():
            values = np.zeros(shape, np.float32)
            motifs = z[..., self.places["motifs"]].reshape(-1, self.places["motifs"].stop)
            values[..., place] = self._logistic.predict_proba(motifs)[:, 1].reshape(*shape[:2], 1)
            yield "logistic", values, question.wanted & (np.arange(shape[-1]) == place.start)

    def _similar(self, z: Float32[np.ndarray, "R M"], visible: Bool[np.ndarray, "R M"]) -> Float32[np.ndarray, "R M"]:
        """Average the references nearest in the visible columns; where none is visible the mean, which is 0."""
        every = max(1, -(-len(self.train) // REFERENCES))
        known = self._scaled(self.train[::every])
        count = min(ALIKE, len(known))
        guess = np.zeros_like(z)
        for low in range(0, len(z), 256):
            part, seen = z[low : low + 256], visible[low : low + 256].astype(np.float32)
            distance = seen @ np.square(known).T - 2 * part @ known.T
            near = np.argpartition(distance, count - 1, axis=1)[:, :count]
            guess[low : low + 256] = known[near].mean(1) * seen.any(1, keepdims=True)
        return guess

    def _ridge(self, z: Float32[np.ndarray, "R M"], visible: Bool[np.ndarray, "R M"]) -> Float32[np.ndarray, "R M"]:
        """Regress every column on the visible ones: with S the products of columns, S_.V (S_VV + penalty)^-1 z_V."""
        from scipy.linalg import solve

        products, guess = self._products, np.zeros_like(z)
        patterns, member = np.unique(np.packbits(visible, axis=1), axis=0, return_inverse=True)
        order = np.argsort(member.ravel(), kind="stable")
        for rows in np.split(order, np.bincount(member.ravel(), minlength=len(patterns)).cumsum()[:-1]):
            seen = np.flatnonzero(visible[rows[0]])
            if len(seen):
                system = products[np.ix_(seen, seen)] + PENALTY * np.eye(len(seen))
                weights = solve(system, z[np.ix_(rows, seen)].T, assume_a="pos")
                guess[rows] = (products[:, seen] @ weights).T
        return guess

    @cached_property
    def _products(self) -> Float[np.ndarray, "M M"]:
        z = self._scaled(self.train)
        products: Float[np.ndarray, "M M"] = (z.T @ z).astype(np.float64)
        return products

    @cached_property
    def _beside(self) -> Float32[np.ndarray, "M M"]:
        """Coefficients from the mean of the regions left and right to a region."""
        from scipy.linalg import solve

        z = self._scaled(self.train)
        chromosome = self.starts.cumsum()
        inner = np.flatnonzero(chromosome[2:] == chromosome[:-2]) + 1
        x = (z[inner - 1] + z[inner + 1]) / 2
        system = (x.T @ x).astype(np.float64) + PENALTY * np.eye(x.shape[1])
        beside: Float32[np.ndarray, "M M"] = np.zeros_like(system, np.float32)
        beside[:] = solve(system, x.T @ z[inner], assume_a="pos")
        return beside

    @cached_property
    def _logistic(self) -> Any:
        """A fitted regression; None where the training regions are all open or all closed, or neither."""
        from sklearn.linear_model import LogisticRegression

        label = self.train[:, self.places["accessibility"].start]
        if set(np.unique(label)) != {0.0, 1.0}:
            return None
        motifs = self._scaled(self.train, self.places["motifs"])
        return LogisticRegression(C=0.01, max_iter=500).fit(motifs, label > 0.5)

    def _scaled(
        self, values: Float32[np.ndarray, "... M"], columns: slice = slice(None)
    ) -> Float32[np.ndarray, "... n"]:
        scaled: Float32[np.ndarray, "... n"] = values[..., columns] - self.standard.mean[columns]
        scaled /= self.standard.std[
            columns
        ]  # in place: a second table of all training regions would be the largest of a run
        return scaled


def _both_sides(
    visible: Bool[np.ndarray, "B L K"],
) -> tuple[Integer[np.ndarray, "B L K"], Integer[np.ndarray, "B L K"]]:
    """Return the nearest visible place at or before each, or -1, and at or behind it, or L."""
    length = visible.shape[1]
    place = np.arange(length)[None, :, None]
    before = np.maximum.accumulate(np.where(visible, place, -1), axis=1)
    behind = np.minimum.accumulate(np.where(visible, place, length)[:, ::-1], axis=1)[:, ::-1]
    return before, behind


def nearest_visible(
    values: Float32[np.ndarray, "B L M"], visible: Bool[np.ndarray, "B L M"], centre: Integer[np.ndarray, "B L"]
) -> tuple[Bool[np.ndarray, "B L M"], Float32[np.ndarray, "B L M"]]:
    """Return, for each element, the same column of the nearest region where it is visible, and whether there is one.

    Near is meant in bases; of two regions as near, the earlier one counts.
    """
    before, behind = _both_sides(visible)
    length = values.shape[1]
    has_before, has_behind = before >= 0, behind < length
    before, behind = before.clip(min=0), behind.clip(max=length - 1)
    where = centre[..., None].astype(np.int64)
    where = np.broadcast_to(where, values.shape)
    to_before = where - np.take_along_axis(where, before, 1)
    to_behind = np.take_along_axis(where, behind, 1) - where
    later = has_behind & (~has_before | (to_behind < to_before))
    return has_before | has_behind, np.take_along_axis(values, np.where(later, behind, before), 1)


def regions_beside(z: Float32[np.ndarray, "B L M"], visible: Bool[np.ndarray, "B L M"]) -> Float32[np.ndarray, "B L M"]:
    """Return the mean of the nearest regions on either side of which something is visible; 0 where there is none.

    Args:
        z: Standardised values, 0 where they are not visible.
        visible: What may be seen.
    """
    seen = visible.any(-1, keepdims=True)
    length, total, count = z.shape[1], np.zeros_like(z), np.zeros(seen.shape, np.float32)
    for place in _both_sides(np.asarray(seen)):
        there = (place >= 0) & (place < length)
        total += np.take_along_axis(z, place.clip(0, length - 1), 1) * there
        count += there
    beside: Float32[np.ndarray, "B L M"] = total / np.maximum(count, 1)
    return beside
