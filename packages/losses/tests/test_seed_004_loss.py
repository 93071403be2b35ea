"""The loss of the seed: a transcription of its document, where it is least, and what the warning and the checks say."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.losses.seed_004 import seed_004
from dither.losses.specs import ScoreEntropy, SeedLoss
from dither.losses.tokens import score_entropy
from dither.registry.flow.records import Clean, Noise, Noised, State
from dither.registry.flow.spaces import FeatureSpace, Field, TokenSpace
from dither.registry.kinds import ProcessFacts


def text(ids, length=1):
    return TokenSpace((Field("text", length, ids),))


def transcribed(logits: list[float], x: int, x0: int, sigma: float) -> float:
    """The document, line by line, for one position."""
    ids = len(logits)
    logits = [0.0 if v == x else logit for v, logit in enumerate(logits)]  # "Mask input positions"
    top = sum(math.exp(logit) for logit in logits)
    s = [math.exp(logit) / top for logit in logits]  # "s = softmax(l)"
    esigm1 = math.expm1(sigma) if sigma < 0.5 else math.exp(sigma) - 1
    r = 1 - ids / (esigm1 + ids)
    n = sum(s) / ids - s[x] / ids
    n = r * n if x == x0 else s[x0] / esigm1 + n
    stayed = (ids - 1) / ids * r * (math.log(r) - 1)
    moved = 1 / ids * ((-math.log(r) - 1) / r - (ids - 2))
    c = stayed if x == x0 else moved
    p = sum(s) / ids - s[x] / ids
    return p - n + c


def record(process, x0, x, sigma):
    ids = torch.tensor([[x0]]), torch.tensor([[x]])
    noise = Noise(torch.tensor([sigma], dtype=torch.float64), torch.tensor([7.0], dtype=torch.float64))
    yes = torch.ones(1, 1, dtype=torch.bool)
    return Noised(ids[0], State.of(ids[1]), noise, yes, yes, ~yes, process.table.on("cpu"))


@given(st.integers(2, 40), st.floats(1e-4, 20), st.booleans(), st.integers(0, 2**16))
def test_it_is_what_the_document_writes(process_of, ids, sigma, moved, seed):
    torch.manual_seed(seed)
    process = process_of("uniform", text(ids), "score")
    x0 = int(torch.randint(ids, ()))
    x = (x0 + 1) % ids if moved else x0
    raw = 3 * torch.randn(1, 1, ids, dtype=torch.float64)
    noised = record(process, x0, x, sigma)
    measured = seed_004(process.read(raw, noised.state, noised.noise), noised)
    expected = transcribed(raw[0, 0].tolist(), x, x0, sigma)
    assert measured.values.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)  # r itself is right to 1e-16 / r
    assert measured.weights.tolist() == [[1.0]]


def test_it_is_least_where_all_is_on_one_id_and_not_at_the_truth(process_of):
    """Two ids, of which x_0 = 0 has chance 3/4: the mean over q(x_t | x_0) falls on and on towards certainty."""
    process = process_of("uniform", text(2), "score")
    sigma, data = 1.0, (0.75, 0.25)
    alpha = math.exp(-sigma)
    law = [[alpha + (1 - alpha) / 2 if x == x0 else (1 - alpha) / 2 for x in range(2)] for x0 in range(2)]
    later = [sum(data[x0] * law[x0][x] for x0 in range(2)) for x in range(2)]

    def mean(loss, log_ratio):
        """With log p_t(1)/p_t(0) told to be `log_ratio`."""
        total = 0.0
        for x0 in range(2):
            for x in range(2):
                raw = torch.zeros(1, 1, 2, dtype=torch.float64)
                raw[0, 0, 1 - x] = log_ratio if x == 0 else -log_ratio
                noised = record(process, x0, x, sigma)
                value = loss(process.read(raw, noised.state, noised.noise), noised).values.item()
                total += data[x0] * law[x0][x] * value
        return total

    truth = math.log(later[1] / later[0])
    places = [truth + step for step in (-20.0, -5.0, -1.0, -0.1, 0.0, 0.1, 1.0)]
    ours, theirs = ([mean(loss, place) for place in places] for loss in (score_entropy, seed_004))
    assert min(range(7), key=ours.__getitem__) == 4, "score entropy is least at the truth"
    assert min(range(7), key=theirs.__getitem__) == 0, "the loss of the seed is least where all is on id 0"
    assert theirs[0] < theirs[1] < theirs[2] < theirs[4]


def test_it_is_not_0_at_the_truth_and_falls_below_0(process_of):
    process = process_of("uniform", text(27), "score")
    sigma = 1e-3
    e = math.expm1(sigma)
    truth = torch.zeros(1, 1, 27, dtype=torch.float64)
    truth[0, 0, 0] = math.log1p(27 / e)
    noised = record(process, 0, 1, sigma)
    pred = process.read(truth, noised.state, noised.noise)
    assert score_entropy(pred, noised).values.item() < 1e-9
    assert seed_004(pred, noised).values.item() == pytest.approx(8199, rel=1e-3)
    noised = record(process, 0, 1, 20.0)
    raw = torch.zeros(1, 1, 27, dtype=torch.float64)
    assert seed_004(process.read(raw, noised.state, noised.noise), noised).values.item() > -1
    noised = record(process, 0, 0, 1.0)
    assert seed_004(process.read(raw, noised.state, noised.noise), noised).values.item() < 0


def test_no_rate_and_nothing_fixed(process_of):
    process = process_of("uniform", text(5, 6), "score")
    x0 = torch.arange(6)[None] % 5
    clean = Clean.of(x0, torch.arange(6)[None] < 5, torch.arange(6)[None] == 0)
    noised = process.corrupt(clean, torch.tensor([0.9]))
    raw = torch.randn(1, 6, 5, requires_grad=True)
    measured = seed_004(process.read(raw, noised.state, noised.noise), noised)
    faster = Noised(**{**noised.__dict__, "noise": Noise(noised.noise.sigma, 9 * noised.noise.rate)})
    assert torch.equal(seed_004(process.read(raw, noised.state, noised.noise), faster).values, measured.values)
    assert measured.weights.tolist() == [[0, 1, 1, 1, 1, 0]]
    (grad,) = torch.autograd.grad(measured.total(), raw)
    assert not grad[clean.fixed].any()
    assert grad[~clean.fixed].any()


def test_features_have_none_of_it():
    noised = Noised(*[torch.zeros(1, 1)] * 2, Noise(torch.ones(1), torch.ones(1)), *[torch.zeros(1, 1)] * 3)
    with pytest.raises(TypeError, match="no prior over ids"):
        seed_004(None, noised)


def test_it_warns_and_stands_only_where_the_seed_has_it():
    facts = ProcessFacts("uniform", text(9), "score", "uniform")
    assert not list(SeedLoss().check(facts))
    assert not SeedLoss.bound
    (warning,) = SeedLoss().warn(facts)
    assert "softmax" in warning.message
    assert "no bound" in warning.message
    assert "score-entropy" in warning.help
    assert not list(ScoreEntropy().warn(facts))
    for wrong in (
        ProcessFacts("uniform", text(9), "posterior", "uniform"),
        ProcessFacts("absorbing", text(9), "score", "mask"),
        ProcessFacts("marginal", text(9), "score", "frequencies"),
        ProcessFacts("gaussian", FeatureSpace(2, 3), "x0", "gaussian"),
    ):
        (misfit,) = SeedLoss().check(wrong)
        assert misfit.related == ("process",)
