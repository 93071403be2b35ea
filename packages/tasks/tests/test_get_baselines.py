"""Baselines against brute force and scikit-learn; they see neither masked nor held-out values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dither.registry.contracts.spaces import Group
from dither.tasks.get_region.data.region_matrix import ColumnStats
from dither.tasks.get_region.data.units import ColumnUnits
from dither.tasks.get_region.metrics import baselines
from dither.tasks.get_region.metrics.baselines import (
    BOOSTING,
    MLP,
    PENALTY,
    RIVALS,
    Baselines,
    MaskedBatch,
    neighbour_mean,
)
from dither.tasks.get_region.metrics.region_metrics import (
    MIN_WINDOWS,
    RegionMetrics,
    baseline_metrics,
    bootstrap_weights,
)

torch.set_num_threads(1)
P, B, L, M = 400, 3, 12, 6
GROUPS = (Group("motifs", 0, M), Group("accessibility", M, M + 1))
W = M + 1


@pytest.fixture(scope="module")
def train():
    g = np.random.default_rng(0)
    hidden = g.normal(size=(P, 2))
    motifs = np.abs(hidden @ g.normal(size=(2, M)) + 0.5 * g.normal(size=(P, M)))
    label = motifs[:, 0] + motifs[:, 3] > 2.5
    return np.column_stack([motifs, label]).astype(np.float32)


@pytest.fixture(scope="module")
def reference(train):
    return Baselines(train, np.arange(P) % 100 == 0, GROUPS)


def batch(train, share=0.5, seed=1, mask="element"):
    g = np.random.default_rng(seed)
    truth = train[g.integers(0, P, (B, L))]
    chosen = (
        g.random((B, L, W)) < share
        if mask == "element"
        else np.repeat(g.random((B, L, 1)) < share, W, 2)
    )
    if mask == "accessibility":
        chosen = np.broadcast_to(np.arange(W) == M, (B, L, W)).copy()
    return MaskedBatch(truth, ~chosen, chosen, np.zeros(B, np.int64))


def predictions_of(reference, query):
    return {
        name: (guess, counted) for name, guess, counted in reference.predictions(query)
    }


def test_neighbour_mean_by_brute_force():
    g = np.random.default_rng(1)
    visible = (g.random((B, L, 1)) < 0.3) & (g.random((B, L, W)) < 0.9)
    z = g.normal(size=(B, L, W)).astype(np.float32) * visible
    beside = neighbour_mean(z, visible)
    for b, place in np.ndindex(B, L):
        seen = np.flatnonzero(visible[b].any(1))
        sides = [
            z[b, side[pick]]
            for side, pick in ((seen[seen <= place], -1), (seen[seen >= place], 0))
            if len(side)
        ]
        expected = np.mean(sides, 0) if sides else np.zeros(W)
        np.testing.assert_allclose(beside[b, place], expected, atol=1e-6)


def test_ridge_equals_that_of_scikit_learn_for_every_pattern(train, reference):
    query = batch(train)
    guess, counted = predictions_of(reference, query)["ridge"]
    assert (counted == query.target).all()
    standard = ColumnStats.of(train)
    z, seen = (train - standard.mean) / standard.std, query.visible
    here = (query.truth - standard.mean) / standard.std
    for b, place in list(np.ndindex(B, L))[::3]:
        columns = np.flatnonzero(seen[b, place])
        if len(columns):
            fitted = Ridge(alpha=PENALTY, fit_intercept=False).fit(z[:, columns], z)
            expected = (
                fitted.predict(here[b, place, columns][None])[0] * standard.std
                + standard.mean
            )
            chosen = query.target[b, place]
            np.testing.assert_allclose(
                guess[b, place][chosen], expected[chosen], atol=1e-3
            )


def test_ridge_of_masked_regions_is_fitted_on_the_neighbours(train, reference):
    query = batch(train, mask="region")
    guess = predictions_of(reference, query)["ridge"][0]
    standard = ColumnStats.of(train)
    z = (train - standard.mean) / standard.std
    inner = [p for p in range(1, P - 1) if p // 100 == (p - 1) // 100 == (p + 1) // 100]
    fitted = Ridge(alpha=PENALTY, fit_intercept=False).fit(
        [(z[p - 1] + z[p + 1]) / 2 for p in inner], z[inner]
    )
    here = (query.truth - standard.mean) / standard.std * query.visible
    b, place = np.argwhere(query.target[..., 0])[2]
    expected = fitted.predict(
        neighbour_mean(here.astype(np.float32), query.visible)[b, place][None]
    )[0]
    np.testing.assert_allclose(
        guess[b, place], expected * standard.std + standard.mean, atol=1e-3
    )


def test_logistic_regression_replaces_masked_motifs_by_their_mean(train, reference):
    query = batch(train, mask="accessibility")
    guess, counted = predictions_of(reference, query)["logistic"]
    standard = ColumnStats.of(train)
    z = ((train - standard.mean) / standard.std)[:, :M]
    fitted = LogisticRegression(C=0.01, max_iter=500).fit(z, train[:, M] > 0)
    here = ((query.truth - standard.mean) / standard.std)[..., :M].reshape(-1, M)
    np.testing.assert_allclose(
        guess[..., M].ravel(), fitted.predict_proba(here)[:, 1], atol=1e-5
    )
    assert counted[..., M].all()
    assert not counted[..., :M].any()
    blind = predictions_of(reference, batch(train, mask="region", share=1.1))
    assert np.ptp(blind["logistic"][0][..., M]) == 0


def neighbours_of(table, starts):
    """Each region next to those left and right of it on its chromosome."""
    nothing = np.full(table.shape[1], np.nan, np.float32)
    padded = [nothing, *table, nothing]
    rows = []
    for place, row in enumerate(table):
        is_last = place + 1 == len(table) or starts[place + 1]
        left = nothing if starts[place] else padded[place]
        right = nothing if is_last else padded[place + 2]
        rows.append(np.concatenate([row, left, right]))
    return np.stack(rows)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("binary", [True, False])
def test_rivals_equal_those_of_scikit_learn(train, binary):
    table = train if binary else np.column_stack([train[:, :M], train[:, :M].sum(1)])
    query = batch(table, mask="accessibility")
    found = predictions_of(
        Baselines(table, np.arange(P) % 100 == 0, GROUPS, rivals=True), query
    )
    here = query.truth[..., :M].reshape(-1, M)
    root = ColumnStats.of(np.sqrt(table[:, :M]))
    z, own = ((np.sqrt(x) - root.mean) / root.std for x in (table[:, :M], here))
    starts = np.arange(P) % 100 == 0
    beside = neighbours_of(table[:, :M], starts)
    windows = [neighbours_of(x[:, :M], np.arange(L) == 0) for x in query.truth]
    boosting = (
        HistGradientBoostingClassifier if binary else HistGradientBoostingRegressor
    )
    mlp = MLPClassifier if binary else MLPRegressor
    fitted = {"mlp": (mlp(**MLP).fit(z, table[:, M]), own)}
    boosted = boosting(**BOOSTING).fit(beside, table[:, M])
    fitted["boosting"] = (boosted, np.concatenate(windows))
    if binary:
        fitted["logistic-sqrt"] = (
            LogisticRegression(C=0.01, max_iter=500).fit(z, table[:, M]),
            own,
        )
    assert {*fitted} == found.keys() - {"mean", "ridge", "logistic"}
    for name, (model, x) in fitted.items():
        expected = model.predict_proba(x)[:, 1] if binary else model.predict(x)
        np.testing.assert_allclose(
            found[name][0][..., M].ravel(), expected, atol=1e-3, err_msg=name
        )


def test_boosting_has_no_neighbours_in_windows_of_one_region(train):
    reference = Baselines(train, np.ones(P, bool), GROUPS, rivals=True)
    query = batch(train, mask="accessibility")
    parts = [values.reshape(-1, 1, W) for values in list(vars(query).values())[:3]]
    query = MaskedBatch(*parts, np.zeros(B * L, np.int64))
    guess = predictions_of(reference, query)["boosting"][0]
    boosted = HistGradientBoostingClassifier(**BOOSTING).fit(train[:, :M], train[:, M])
    expected = boosted.predict_proba(query.truth[:, 0, :M])[:, 1]
    np.testing.assert_allclose(guess[:, 0, M], expected, atol=1e-6)


def test_boosting_is_fitted_once_for_the_same_data(train, monkeypatch, tmp_path):
    """Whatever predictions depend on makes another file; a damaged one is fitted again."""
    monkeypatch.setattr(baselines, "cache_folder", lambda: tmp_path)
    starts = np.arange(P) % 100 == 0
    query = batch(train, mask="accessibility")
    fits = []

    def predict(table, query=query):
        reference = Baselines(table, starts, GROUPS, rivals=True)
        monkeypatch.setattr(reference, "names", ("boosting",))
        fit = reference._fit
        monkeypatch.setattr(
            reference, "_fit", lambda *key: fits.append(key) or fit(*key)
        )
        return predictions_of(reference, query)["boosting"][0]

    first = predict(train)
    assert len(fits) == 1
    np.testing.assert_array_equal(predict(train), first)
    assert len(fits) == 1
    for file in (tmp_path / "boosting").iterdir():
        file.write_bytes(b"damaged")
    np.testing.assert_array_equal(predict(train), first)
    assert len(fits) == 2
    other = train.copy()
    other[3, 0] += 1
    assert (predict(other) != first).any()
    assert (predict(train, batch(train, seed=4, mask="accessibility")) != first).any()
    monkeypatch.setitem(BOOSTING, "max_iter", 7)
    assert (predict(train) != first).any()
    assert len(fits) == 5
    # Without a place to write it is fitted each time.
    monkeypatch.setattr(baselines, "cache_folder", lambda: Path("/dev/null"))
    predict(train)
    predict(train)
    assert len(fits) == 7


def test_the_lead_of_the_model_is_a_paired_bootstrap(train, reference, monkeypatch):
    """Against a loop over the same resamples of windows; a model that equals the baseline leads by exactly 0."""
    monkeypatch.setattr("dither.tasks.get_region.metrics.region_metrics.DRAWS", 60)
    places = np.column_stack([np.zeros(B * 4, int), np.arange(B * 4)])
    parts = [batch(train, seed=seed, mask="accessibility") for seed in range(4)]
    joined = MaskedBatch(
        *(
            np.concatenate(values)
            for values in zip(*(list(vars(p).values())[:4] for p in parts), strict=True)
        )
    )
    logistic = predictions_of(reference, joined)["logistic"][0]
    noisy = logistic + np.random.default_rng(3).normal(size=logistic.shape).astype(
        np.float32
    )
    for guess, equal in ((logistic, True), (noisy, False)):
        query = replace(joined, window=places, guess=guess)
        found = baseline_metrics(fresh, lambda cell: reference, {"": [query]})
        lead, half = (
            found[f"accessibility_auc/logistic-lead{end}"] for end in ("", "_ci95")
        )
        assert (lead == half == 0) if equal else lead < 0 < half
        assert "accessibility_mse/ridge-lead_ci95" in found
    truth, differences = joined.truth[..., M] > 0.5, []
    for times in bootstrap_weights(len(places)):
        rows = np.repeat(np.arange(len(places)), times.astype(int))
        areas = [
            roc_auc_score(truth[rows].ravel(), score[rows][..., M].ravel())
            for score in (noisy, logistic)
        ]
        differences.append(areas[0] - areas[1])
    expected = (
        np.diff(np.quantile(differences, [0.025, 0.975]))[0]
        / 2
        * np.sqrt(len(places) / (len(places) - 1))
    )
    assert half == pytest.approx(expected, rel=1e-6)
    ridge = found["accessibility_auc/ridge"] + found["accessibility_auc/ridge-lead"]
    assert ridge == pytest.approx(roc_auc_score(truth.ravel(), noisy[..., M].ravel()))


def test_no_baseline_sees_masked_values(train, reference):
    for mask in ("element", "region", "accessibility"):
        query = batch(train, mask=mask)
        other = MaskedBatch(
            np.where(query.target, 99, query.truth).astype(np.float32),
            *list(vars(query).values())[1:],
        )
        one, two = predictions_of(reference, query), predictions_of(reference, other)
        for name, (guess, counted) in one.items():
            np.testing.assert_array_equal(
                guess[counted], two[name][0][counted], err_msg=f"{name} {mask}"
            )


def fresh():
    return RegionMetrics(
        GROUPS, ColumnUnits(np.ones(W), ColumnStats.none(W)), np.zeros(W, np.float32)
    )


def test_baselines_have_the_names_of_metrics_and_the_expected_order(train, reference):
    metrics = baseline_metrics(
        fresh,
        lambda cell: reference,
        {"": [batch(train, seed=seed) for seed in range(4)]},
    )
    assert metrics["motif_pearson/mean"] == 0
    assert metrics["motif_pearson/ridge"] > 0.3
    assert metrics["accessibility_auc/mean"] == 0.5
    assert metrics["accessibility_auc/logistic"] > 0.7
    assert {key for key in metrics if key.endswith("/logistic")} == {
        f"accessibility_{name}/logistic"
        for name in ("mse", "pearson", "spearman", "r2", "auc", "auprc")
    }
    assert all(np.isfinite(value) for value in metrics.values())
    assert baseline_metrics(fresh, lambda cell: reference, {"": []}) == {}
    flat = np.concatenate([train[:, :M], np.ones((P, 1), np.float32)], 1)
    assert "logistic" not in predictions_of(
        Baselines(flat, np.arange(P) == 0, GROUPS), batch(train)
    ), "constant labels"


def test_rivals_are_not_fitted_for_a_few_windows(train):
    starts = np.arange(P) % 100 == 0
    reference = Baselines(train, starts, GROUPS, rivals=True)
    few = batch(train, mask="accessibility")
    many = [batch(train, seed=seed, mask="accessibility") for seed in range(4)]
    assert len(few.truth) < MIN_WINDOWS <= 4 * len(few.truth)
    names = {"accessibility_auc/boosting", "accessibility_auc/mlp"}
    found = baseline_metrics(fresh, lambda cell: reference, {"": [few]})
    assert not names & found.keys()
    assert not {key[0] for key in reference._fitted} & {*RIVALS}
    both = {"": many, "sample ": [few]}
    found = baseline_metrics(fresh, lambda cell: reference, both)
    assert names < found.keys()
    assert "sample accessibility_auc/logistic" in found
    assert "sample accessibility_auc/boosting" not in found


def test_baselines_are_fitted_by_cell_type(train):
    query = batch(train)
    query = MaskedBatch(*list(vars(query).values())[:3], np.array([2, -1, 2]))
    seen = []

    def fit(cell):
        seen.append(cell)
        return Baselines(train + 10 * (cell == 2), np.arange(P) % 100 == 0, GROUPS[:1])

    metrics = baseline_metrics(fresh, fit, {"": [query, query]})
    assert seen == [-1, 2]
    assert (
        metrics["motif_mse/mean"] > 40
    )  # the wrong table was used for two of the three windows, on purpose
