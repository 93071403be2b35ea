"""Verdicts between arms: false ones, power, intervals over seeds and samples, Holm's correction."""

import math

import numpy as np
import pytest

from dither.engine.sweeps.paired_statistics import Scores, compare_scores, holm, judge

SAMPLES = 50


def arm(rng, seeds, effect=0.0, shared=None, of_arm=0.0, noise=1.0):
    """Sums of an arm: runs differ by N(0, 1), of which `shared` is the part of each seed in all arms.

    `of_arm` is the deviation by which the arm differs from others on each sample.
    """
    correlation, common = shared or (0.0, np.zeros(seeds))
    own = math.sqrt(1 - correlation) * rng.normal(size=seeds)
    runs = effect + math.sqrt(correlation) * common + own
    values = runs[:, None] + of_arm * rng.normal(size=SAMPLES)
    values = values + noise * rng.normal(size=(seeds, SAMPLES))
    weights = np.broadcast_to(1.0 + np.arange(SAMPLES) % 4, values.shape)
    return Scores.of_sums(np.stack([values * weights, weights], 1))


def verdicts(seed, repetitions, seeds, effects=(0.0,), correlation=0.0, **options):
    """The share of comparisons with a verdict for some arm, and the share with a right one for the first."""
    rng = np.random.default_rng(seed)
    some = right = 0
    for _ in range(repetitions):
        shared = (correlation, rng.normal(size=seeds))
        reference = arm(rng, seeds, shared=shared, **options)
        arms = [arm(rng, seeds, effect, shared, **options) for effect in effects]
        effects_of_arms = [compare_scores(one, reference) for one in arms]
        judged = judge(effects_of_arms, "lower")
        some += any(effect.verdict in ("better", "worse") for effect in judged)
        right += judged[0].verdict == "worse"
    return some / repetitions, right / repetitions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correlation": 0.9},
        {"of_arm": 8.0},
        {"noise": 20.0},
        {"effects": (0.0, 0.0, 0.0)},
    ],
)
@pytest.mark.slow
def test_false_verdicts_of_200_comparisons_of_equal_arms(options):
    # At 5 %, 98 of 100 such experiments have 16 false verdicts or fewer.
    assert verdicts(1, 200, 5, **options)[0] <= 16 / 200


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("of_arm", [0.0, 8.0])
def test_false_verdicts_of_any_number_of_seeds(seeds, of_arm):
    # binomial standard deviation 0.7 %
    assert verdicts(2, 1000, seeds, of_arm=of_arm)[0] <= 0.06


@pytest.mark.slow
def test_power_for_one_standard_deviation_of_seeds():
    """Five seeds find it if they are shared and explain 90 % of the variance; independent ones rarely do."""
    one = {"effects": (1.0,), "noise": 0.1}
    assert verdicts(3, 400, 5, correlation=0.9, **one)[1] >= 0.8
    assert 0.1 <= verdicts(3, 400, 5, **one)[1] <= 0.35
    assert verdicts(3, 200, 20, **one)[1] >= 0.8


@pytest.mark.slow
def test_the_interval_covers_the_difference_on_new_samples():
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(1000):
        pair = [arm(rng, 5, effect, of_arm=4.0) for effect in (0.0, 0.7)]
        effect = compare_scores(pair[1], pair[0])
        inside += effect.low <= 0.7 <= effect.high
    assert inside / 1000 >= 0.94


def test_without_differences_between_samples_it_is_the_paired_t_test():
    stats = pytest.importorskip("scipy.stats")
    first, second = np.random.default_rng(5).normal(size=(2, 6))
    effect = compare_scores(Scores(second), Scores(first))
    expected = stats.ttest_rel(second, first)
    interval = expected.confidence_interval(0.95)
    assert effect.p == pytest.approx(expected.pvalue)
    assert (effect.low, effect.high) == pytest.approx(tuple(interval))


def test_one_seed_has_an_interval_of_samples_and_no_verdict():
    rng = np.random.default_rng(6)
    effect = compare_scores(arm(rng, 1, 30.0), arm(rng, 1))
    (judged,) = judge([effect], "lower")
    assert judged.verdict == "seeds unknown"
    assert math.isnan(judged.p)
    assert judged.low < judged.difference < judged.high
    bare = compare_scores(Scores(np.array([1.0])), Scores(np.array([2.0])))
    assert math.isnan(bare.low)


def test_equal_runs_and_deterministic_ones():
    values = Scores(np.array([1.0, 2.0, 3.0]))
    same = compare_scores(values, values)
    assert (same.difference, same.p) == (0.0, 1.0)
    (judged,) = judge([same], "lower")
    assert (judged.verdict, judged.more_seeds) == ("not distinguishable", None)
    # A constant difference says nothing of other seeds.
    for shift in (1, 0.1):
        shifted = compare_scores(Scores(values.values + shift), values)
        assert math.isnan(shifted.p)
        assert math.isnan(shifted.low)
        (judged,) = judge([shifted], "higher")
        assert (judged.verdict, judged.more_seeds) == ("seeds unknown", None)
    rounded = compare_scores(Scores(values.values * (1 + 1e-8)), values)
    assert (rounded.difference, rounded.p) == (0.0, 1.0)
    almost = compare_scores(Scores(np.array([2.0, 3.0001, 4.0])), values)
    (judged,) = judge([almost], "higher")
    assert (judged.verdict, judged.more_seeds) == ("better", 0)
    assert judge([almost], None)[0].verdict == "higher"


@pytest.mark.slow
def test_false_verdicts_of_a_discrete_metric_of_two_seeds():
    rng = np.random.default_rng(8)
    found = 0
    for _ in range(2000):
        first, second = rng.binomial(10, 0.3, size=(2, 2)) / 10
        effect = compare_scores(Scores(first), Scores(second))
        found += judge([effect], "lower")[0].verdict in ("better", "worse")
    assert found / 2000 <= 0.06


def test_about_n_more_seeds_would_do():
    differences = np.array([1.5, -0.5, 1.2, 0.2])
    effect = compare_scores(Scores(differences), Scores(np.zeros(4)))
    (judged,) = judge([effect], "lower")
    assert judged.verdict == "not distinguishable"
    # As promised, if the true difference and deviation were those that were seen.
    rng = np.random.default_rng(7)
    seeds = 4 + judged.more_seeds
    found = 0
    for _ in range(400):
        values = effect.difference + differences.std(ddof=1) * rng.normal(size=seeds)
        found += compare_scores(Scores(values), Scores(np.zeros(seeds))).p <= 0.05
    assert 0.75 <= found / 400 <= 0.9


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    corrected = holm([math.nan, 0.01])
    assert math.isnan(corrected[0])
    assert corrected[1] == 0.02
