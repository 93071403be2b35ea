"""Arguments of Python users: converted where their meaning is clear, refused by code otherwise."""

import numpy as np
import pytest
import torch

import dither


@pytest.fixture(scope="module")
def plans():
    return dither.load("zoo/bubble-small")


@pytest.fixture(scope="module")
def digits():
    return dither.load("zoo/digits")


@pytest.fixture(scope="module")
def text():
    return dither.load("zoo/shakespeare")


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"n": "4"}, ["wrong-type"]),
        ({"n": True}, ["wrong-type"]),
        ({"n": None, "seed": None}, ["wrong-type", "wrong-type"]),
        (
            {"n": -1, "seed": 0.5, "batch_size": 0},
            ["out-of-range", "wrong-type", "out-of-range"],
        ),
        ({"labels": {"label": None}}, ["wrong-type"]),
        ({"labels": {"label": [1, None]}, "n": 2}, ["wrong-type"]),
        ({"labels": [1, 2, 3], "n": 2}, ["wrong-shape"]),
        ({"labels": 11}, ["unknown-value"]),
    ],
)
def test_arguments_of_sample_are_refused(digits, options, codes):
    with pytest.raises(dither.Refused) as refused:
        digits.sample(**options)
    assert [problem.code for problem in refused.value.problems] == codes


@pytest.mark.parametrize(
    "labels",
    [
        [3, 7],
        torch.tensor([3, 7]),
        np.array([3, 7]),
        ("3", "7"),
        [np.int64(3), torch.tensor(7)],
    ],
)
def test_labels_without_a_name_are_of_the_only_condition(digits, labels):
    expected = digits.sample(2, steps=2, labels={"label": [3, 7]})
    assert not torch.equal(
        expected, digits.sample(2, steps=2, labels={"label": [3, 8]})
    )
    assert torch.equal(digits.sample(2, steps=2, labels=labels), expected)
    assert torch.equal(
        digits.sample(2, steps=2, labels=3), digits.sample(2, steps=2, labels=[3, 3])
    )


def test_the_first_label_is_not_the_absence_of_labels(digits):
    ids = digits.sample(2, steps=2, labels=0)
    named = digits.log_likelihood(ids, samples=2, labels={"label": 0}).values
    assert torch.equal(digits.log_likelihood(ids, samples=2, labels=0).values, named)
    other = digits.log_likelihood(ids, samples=2, labels=np.array([1, 1])).values
    assert not torch.equal(other, named)


def test_labels_without_a_name_need_a_single_condition(plans):
    with pytest.raises(dither.Refused) as refused:
        plans.sample(1, labels=3)
    assert refused.value.problems[0].code == "misfit"


def test_decode_takes_arrays_lists_single_and_shorter_samples(plans, text):
    ids = plans.sample(2, seed=3)
    decoded = plans.decode(ids)
    assert plans.decode(ids.numpy()) == decoded
    assert plans.decode(ids.tolist()) == decoded
    assert plans.decode(ids[0]) == decoded[:1]

    ids = text.sample(1)
    (whole,) = text.decode(ids)
    assert text.decode(ids[0, :7].tolist()) == [whole[:7]]


def test_a_task_decodes_copies(plans, monkeypatch):
    samples = plans.sample(2, seed=0)
    before = samples.clone()
    monkeypatch.setattr(
        plans.task, "decode", lambda x, like: (x.zero_(), like.x0.zero_())
    )
    plans.decode(samples)
    assert torch.equal(samples, before)


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ("text", "wrong-type"),
        (torch.zeros(1, 36), "wrong-type"),
        ([[0, 1]], "misfit"),
        (torch.full((1, 36), 99), "out-of-range"),
        (torch.full((1, 36), -1), "out-of-range"),
    ],
)
def test_what_is_no_sample_is_not_decoded(plans, ids, code):
    with pytest.raises(dither.Refused) as refused:
        plans.decode(ids)
    assert refused.value.problems[0].code == code


def test_evaluation_and_likelihood_refuse_arguments(plans):
    for call, code in [
        (lambda: plans.evaluate("vaild"), "unknown-value"),
        (lambda: plans.evaluate(np.array(["valid"])), "unknown-value"),
        (lambda: plans.evaluate(samples=0), "out-of-range"),
        (lambda: plans.log_likelihood("text"), "wrong-type"),
        (lambda: plans.log_likelihood([[0] * 36], samples=0), "out-of-range"),
        (lambda: plans.log_likelihood([[0] * 36], method="odd"), "unknown-value"),
        (lambda: plans(torch.zeros(1, 36)), "wrong-type"),
        (lambda: plans(torch.zeros(1, 36), 0.5), "wrong-type"),
        (lambda: plans.denoise(None, 0.5, torch.zeros(1, 36)), "wrong-type"),
    ]:
        with pytest.raises(dither.Refused) as refused:
            call()
        assert refused.value.problems[0].code == code
