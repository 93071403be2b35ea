"""Baselines: predictors without a deep model, for the same target elements as the model.

They are fitted on the training regions alone. Letters: B batch, L length, M columns, P training
regions, R regions of a batch in one row each.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import Group
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder

from ..data.region_matrix import ColumnStats, row_blocks
from .column_metrics import windows_of

__all__ = ["RIVALS", "Baselines", "MaskedBatch", "neighbour_mean", "with_neighbours"]

_Values = Float[ndarray, "B L M"]
_Mask = Bool[ndarray, "B L M"]
_Motifs = Float32[ndarray, "... M"]

SHIPPED = Path(__file__).parent / "boosting"
"""Predictions of boosting for get_region/quick, which take 75 CPU s; written by tools/boosting.py."""

RIVALS = ("logistic-sqrt", "mlp", "boosting")
"""Baselines of single columns that take longer to fit."""

MLP = {
    "hidden_layer_sizes": (256,),
    "alpha": 1.0,
    "batch_size": 256,
    "early_stopping": True,
    "n_iter_no_change": 3,
    "max_iter": 40,
    "random_state": 0,
}
"""Options of the MLP; a tenth of the training regions decides when it stops."""

BOOSTING = {
    "max_iter": 400,
    "learning_rate": 0.05,
    "early_stopping": False,
    "random_state": 0,
}
"""Options of gradient boosting: AUC .8909 of the human regions of chromosome 1 with neighbours, .8883
without; .8874 with 100 rounds of .1, the default of scikit-learn."""

PENALTY = 100.0
"""Penalty of ridge regression, on columns of standard deviation 1 summed over the training
regions."""


@dataclass(frozen=True)
class MaskedBatch:
    """Truth of a batch in the units of the data, visible elements, and those to predict.

    `cell` is the number of the cell type of each window, -1 without a label, `window` its place
    (see `windows_of`), and `guess` the predictions of the model, if known.
    """

    truth: _Values
    visible: _Mask
    target: _Mask
    cell: Integer[ndarray, " B"]
    window: Integer[ndarray, "B 2"] | None = None
    guess: _Values | None = None

    @classmethod
    def of(
        cls,
        truth: _Values,
        target: Bool[Tensor, "B L M"],
        clean: Clean,
        guess: _Values | None = None,
    ) -> MaskedBatch:
        """Take what is neither target nor padding as visible."""
        masked = target.cpu().numpy()
        valid = clean.valid.cpu().numpy()
        cell = np.full(len(valid), -1)
        if "cell" in clean.cond:
            cell = clean.cond["cell"].cpu().numpy()
        visible = valid[..., None] & ~masked
        return cls(truth, visible, masked, cell, windows_of(clean), guess)

    def of_windows(self, rows: Bool[ndarray, " B"] | slice) -> MaskedBatch:
        """Return some of the windows."""
        return MaskedBatch(
            truth=self.truth[rows],
            visible=self.visible[rows],
            target=self.target[rows],
            cell=self.cell[rows],
            window=None if self.window is None else self.window[rows],
            guess=None if self.guess is None else self.guess[rows],
        )


class Baselines:
    """The baselines, fitted on first use.

    - `mean`: the training mean of each column; ranks at random.
    - `ridge`: ridge regression of each column on the visible columns of the region, fitted for
      every pattern of visible columns; if no column is visible, on the nearest regions with
      visible columns.
    - `logistic`: logistic regression of accessibility on the motifs of the region, masked ones at
      their mean.
    - `logistic-sqrt`: the same on square roots of the motifs.
    - `mlp`, `boosting`: an MLP of one hidden layer on square roots, and histogram gradient
      boosting, for accessibility and expression, with the same inputs; expression also from
      accessibility that is never masked. Boosting sees both neighbours in a window of the model,
      too. Its predictions are cached on disk, since it takes two minutes for 30,000 regions.

    `train` are training regions of one cell type in the order of the genome, in the units of the
    data; `starts` is True where one is the first of a window as in an evaluation, in which it has
    no left neighbour. `rivals` are `logistic-sqrt`, `mlp` and `boosting`.
    """

    def __init__(
        self,
        train: Float32[ndarray, "P M"],
        starts: Bool[ndarray, " P"],
        groups: Sequence[Group],
        rivals: bool = False,
    ) -> None:
        self.train = train
        self.starts = starts
        self.groups = tuple(groups)
        self.names = ("logistic", *RIVALS) if rivals else ("logistic",)
        self._fitted: dict[tuple[str, int, tuple[int, ...]], Any] = {}
        self.motifs = next(group.stop for group in groups if group.name == "motifs")
        # By blocks, to avoid a copy of the whole table in float64.
        blocks = (train[rows] for rows in row_blocks(len(train)))
        self.standard = ColumnStats.over(
            (block, np.ones(len(block))) for block in blocks
        )

    def predictions(
        self, batch: MaskedBatch, *, rivals: bool = True
    ) -> Iterator[tuple[str, _Values, _Mask]]:
        """Yield name, predictions in the units of the data, and predicted elements.

        `rivals` takes those that take longer to fit, too, if they are among the baselines.
        """
        truth = batch.truth
        visible = batch.visible
        target = batch.target
        mean = self.standard.mean
        yield "mean", np.broadcast_to(mean, truth.shape), target

        # Masked columns are at their mean, which is 0 here.
        z = np.where(visible, self._scaled(truth), 0).astype(np.float32)
        rows = target.any(-1)
        values = np.zeros(truth.shape, np.float32)
        values[rows] = self._ridge(z[rows], visible[rows])
        # A region of which nothing is visible is predicted from its neighbours.
        blind = rows & ~visible.any(-1)
        neighbours = neighbour_mean(z, visible)
        values[blind] = (neighbours @ self._sides)[blind]
        yield "ridge", values * self.standard.std + mean, target

        columns = np.arange(truth.shape[-1])
        for column in columns[self.motifs :].tolist():
            counted = target & (columns == column)
            if counted.any():
                names = [name for name in self.names if rivals or name not in RIVALS]
                for name, guess in self._of_column(column, batch, names):
                    yield name, guess, counted

    def _of_column(
        self, column: int, batch: MaskedBatch, names: Sequence[str]
    ) -> Iterator[tuple[str, _Values]]:
        """Yield predictions of a column after the motifs from the motifs.

        Columns between, such as accessibility, are inputs, too, if they are never masked.
        """
        masked = np.asarray(batch.target.any((0, 1)))
        extra = [number for number in range(self.motifs, column) if not masked[number]]
        inputs = (*range(self.motifs), *extra)
        rows = batch.target[..., column]
        visible = np.where(batch.visible, batch.truth, np.float32(np.nan))
        known = visible[rows][:, inputs]
        for name in names:
            if name == "boosting":
                first = np.arange(rows.shape[1]) == 0
                beside = with_neighbours(visible[..., inputs], first)[rows]
                guess = self._boosted(column, inputs, beside)
            else:
                guess = self._predict(name, column, inputs, known)
            if guess is not None:
                values = np.zeros(batch.truth.shape, np.float32)
                values[rows, column] = guess
                yield name, values

    def _predict(
        self, name: str, column: int, inputs: tuple[int, ...], known: _Motifs
    ) -> Any:
        """Return predictions of a column; None if the model cannot be fitted."""
        model = self._fit(name, column, inputs)
        if model is None:
            return None
        if self._is_binary(column):
            return model.predict_proba(known)[:, 1]
        return model.predict(known)

    def _boosted(
        self, column: int, inputs: tuple[int, ...], known: Float32[ndarray, "n K"]
    ) -> Any:
        """Return predictions of boosting from inputs with neighbours, from the cache if it has them.

        The name of the file is a hash of the data and of all options, so runs on the same data
        share it. A slow test compares the shipped ones with a fit of the scikit-learn at hand.
        """
        fit = (BOOSTING, self._train_hash, column, inputs)
        key = sha256(repr(fit).encode())
        key.update(np.ascontiguousarray(known).data)
        file = cache_folder() / "boosting" / f"{key.hexdigest()}.npy"
        for stored in (file, SHIPPED / file.name):
            # Without a file, or with a damaged one, boosting is fitted.
            with suppress(OSError, ValueError):
                cached = np.load(stored, allow_pickle=False)
                if cached.shape == known.shape[:1]:
                    return cached
        guess = self._predict("boosting", column, inputs, known)
        if guess is not None:
            # Without a place to write the next run fits again.
            with suppress(OSError), atomic_write(file) as temporary:
                np.save(temporary, guess.astype(np.float32), allow_pickle=False)
        return guess

    @cached_property
    def _train_hash(self) -> str:
        key = sha256(np.ascontiguousarray(self.train).data)
        key.update(np.ascontiguousarray(self.starts).data)
        return key.hexdigest()

    def _ridge(
        self, z: Float32[ndarray, "R M"], visible: Bool[ndarray, "R M"]
    ) -> Float32[ndarray, "R M"]:
        """Regress every column on the visible ones V: S_.V (S_VV + penalty)^-1 z_V.

        S are the products of columns.
        """
        from scipy.linalg import solve

        products = self._products
        guess = np.zeros_like(z)
        # Rows with the same visible columns share one system of equations.
        # Eight columns a byte: sorting rows of bytes is faster.
        bits = np.packbits(visible, axis=1)
        _, member, counts = np.unique(
            bits, axis=0, return_inverse=True, return_counts=True
        )
        order = np.argsort(member.ravel(), kind="stable")
        for rows in np.split(order, counts.cumsum()[:-1]):
            seen = np.flatnonzero(visible[rows[0]])
            if len(seen):
                penalty = PENALTY * np.eye(len(seen))
                system = products[np.ix_(seen, seen)] + penalty
                z_seen = z[np.ix_(rows, seen)]
                weights = solve(system, z_seen.T, assume_a="pos")
                guess[rows] = (products[:, seen] @ weights).T
        return guess

    @cached_property
    def _products(self) -> Float[ndarray, "M M"]:
        z = self._scaled(self.train)
        return (z.T @ z).astype(np.float64)

    @cached_property
    def _sides(self) -> Float32[ndarray, "M M"]:
        """Coefficients from the mean of the regions left and right to a region."""
        from scipy.linalg import solve

        z = self._scaled(self.train)
        # Regions with a neighbour on both sides, in the same window.
        window = self.starts.cumsum()
        inner = np.flatnonzero(window[2:] == window[:-2]) + 1
        x = (z[inner - 1] + z[inner + 1]) / 2

        penalty = PENALTY * np.eye(x.shape[1])
        system = (x.T @ x).astype(np.float64) + penalty
        sides = solve(system, x.T @ z[inner], assume_a="pos")
        return np.ascontiguousarray(sides, np.float32)

    def _fit(self, name: str, column: int, inputs: tuple[int, ...]) -> Any:
        """Return a fitted model; None for constant values, and for one that needs other values."""
        key = name, column, inputs
        if key not in self._fitted:
            values = self.train[:, column]
            binary = self._is_binary(column)
            model = None
            if values.min() < values.max():
                model = _new_model(name, binary=binary)
            if model is not None:
                target = values > 0.5 if binary else values
                known = self.train[:, inputs]
                if name == "boosting":
                    known = with_neighbours(known, self.starts)
                    # It refuses columns of NaN, as neighbours in windows of one region are.
                    known[:, np.isnan(known).all(0)] = 0
                # The MLP warns when it stops after a number of epochs.
                with warnings.catch_warnings(action="ignore"):
                    model.fit(known, target)
            self._fitted[key] = model
        return self._fitted[key]

    def _is_binary(self, column: int) -> bool:
        return set(np.unique(self.train[:, column])) == {0.0, 1.0}

    def _scaled(self, values: _Motifs) -> _Motifs:
        scaled: _Motifs = values - self.standard.mean
        # In place, to avoid a second table of all training regions.
        scaled /= self.standard.std
        return scaled


def _new_model(name: str, *, binary: bool) -> Any:
    """Return a pipeline for 0 and 1, or for numbers; None for logistic regression of numbers."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    if name == "mlp":
        model = MLPClassifier(**MLP) if binary else MLPRegressor(**MLP)
    elif name == "boosting":
        boosting = (
            HistGradientBoostingClassifier if binary else HistGradientBoostingRegressor
        )
        # Trees need no scaling, and take NaN as it is.
        return boosting(**BOOSTING)
    elif binary:
        model = LogisticRegression(C=0.01, max_iter=500)
    else:
        return None
    # Masked inputs are NaN, which is the mean after scaling.
    steps = [
        StandardScaler(),
        SimpleImputer(strategy="constant", fill_value=0.0),
        model,
    ]
    if name in ("logistic-sqrt", "mlp"):
        steps.insert(0, FunctionTransformer(lambda x: np.sqrt(x.clip(min=0))))
    return make_pipeline(*steps)


def with_neighbours(
    values: Float32[ndarray, "*B L M"], starts: Bool[ndarray, " L"]
) -> Float32[ndarray, "*B L 3M"]:
    """Return each region with the ones left and right of it; NaN beyond those where `starts`."""
    left = np.roll(values, 1, -2)
    left[..., starts, :] = np.nan
    right = np.roll(values, -1, -2)
    right[..., np.roll(starts, -1), :] = np.nan
    return np.concatenate([values, left, right], -1)


def neighbour_mean(z: _Values, visible: _Mask) -> _Values:
    """Return the mean of the nearest regions with visible columns on either side; 0 without any."""
    seen = visible.any(-1, keepdims=True)
    length = z.shape[1]
    total = np.zeros_like(z)
    count = np.zeros(seen.shape, np.float32)
    place = np.arange(length)[None, :, None]
    before = np.where(seen, place, -1)
    before = np.maximum.accumulate(before, axis=1)
    # From the right.
    after = np.where(seen, place, length)[:, ::-1]
    after = np.minimum.accumulate(after, axis=1)[:, ::-1]
    for side in (before, after):
        exists = (side >= 0) & (side < length)
        nearest = np.take_along_axis(z, side.clip(0, length - 1), 1)
        total += nearest * exists
        count += exists
    return total / np.maximum(count, 1)
