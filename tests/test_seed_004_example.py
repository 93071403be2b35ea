"""The one-file plugin docs/examples/seed_004.py: losses and sampler against transcriptions of their documents."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch

from dither.losses.tokens import masked_ce, score_entropy
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.contracts.records import Clean, Noise, Noised, State

FILE = Path(__file__).resolve().parents[1] / "docs/examples/seed_004.py"
spec = importlib.util.spec_from_file_location("seed_004_example", FILE)
example = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = example
spec.loader.exec_module(example)


def process_of(use, ids=5, length=1, **options):
    space = TokenSpace((Field("text", length, ids),))
    return default_catalog().parse("process", {"use": use, **options}).build(space)


def transcribed(logits, x, x0, sigma):
    """The document, line by line, for one position."""
    ids = len(logits)
    logits = [0.0 if v == x else logit for v, logit in enumerate(logits)]
    top = sum(math.exp(logit) for logit in logits)
    s = [math.exp(logit) / top for logit in logits]
    e = math.expm1(sigma)
    r = 1 - ids / (e + ids)
    p = sum(s) / ids - s[x] / ids
    n = r * p if x == x0 else s[x0] / e + p
    stayed, moved = (
        (ids - 1) / ids * r * (math.log(r) - 1),
        1 / ids * ((-math.log(r) - 1) / r - (ids - 2)),
    )
    return p - n + (stayed if x == x0 else moved)


@pytest.mark.parametrize(
    ("ids", "sigma", "x"), [(2, 0.1, 0), (7, 1.0, 1), (40, 8.0, 0), (5, 1e-2, 3)]
)
def test_loss_is_that_of_the_document(ids, sigma, x):
    torch.manual_seed(ids)
    process = process_of("uniform", ids)
    raw, yes = (
        3 * torch.randn(1, 1, ids, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.bool),
    )
    noise = Noise(
        torch.tensor([sigma], dtype=torch.float64),
        torch.tensor([7.0], dtype=torch.float64),
    )
    state = State.of(torch.tensor([[x]]))
    noised = Noised(
        torch.zeros_like(state.x), state, noise, yes, yes, ~yes, process.prior_probs()
    )
    pred = process.read(raw, state, noise)
    measured = example.seed_004(pred, noised)
    assert measured.values.item() == pytest.approx(
        transcribed(raw[0, 0].tolist(), x, 0, sigma), rel=1e-6
    )
    assert score_entropy(pred, noised).values.item() != pytest.approx(
        measured.values.item()
    )


def test_sampler_redraws_every_token_and_mixes_up_pairs():
    """Of two tokens that are always equal, half of the samples differ."""
    process = process_of("uniform", 2, 2, schedule={"use": "geometric"})

    def model(state, t):
        raw = torch.where(torch.arange(2) == state.x.flip(1)[..., None], 20.0, -20.0)
        raw = raw - raw.gather(-1, state.x[..., None])
        return process.read(raw, state, process.schedule(t))

    torch.manual_seed(0)
    like = Clean.of(torch.zeros(2000, 2, dtype=torch.long))
    states = list(example.SeedSampler(steps=9).build()(process, model, like))
    assert len(states) == 9
    assert (
        abs((states[-1][:, 0] != states[-1][:, 1]).double().mean().item() - 0.5) < 0.05
    )
    known = Clean.of(
        torch.ones(50, 2, dtype=torch.long),
        known=torch.tensor([[True, False]]).expand(50, -1),
    )
    assert all(
        (x[:, 0] == 1).all()
        for x in example.SeedSampler(steps=3).build()(process, model, known)
    )


def test_active_divides_by_the_number_of_masked_tokens_and_weighs_ids():
    process = process_of("absorbing", 4, 6)
    clean = Clean.of(torch.arange(12).view(2, 6) % 4)
    torch.manual_seed(1)
    noised = process.corrupt(clean, torch.full((2,), 0.7))
    pred = process.read(torch.randn(2, 6, 5), noised.state, noised.noise)
    facts = (
        default_catalog()
        .parse("process", {"use": "absorbing"})
        .facts(TokenSpace((Field("text", 6, 4),)))
    )
    plain = example.MaskedCEActive().build(facts)(pred, noised)
    per_token = masked_ce(pred, noised).values
    torch.testing.assert_close(
        plain.total(), (per_token.sum(1) / noised.target_mask.sum(1)).sum()
    )
    weighted = example.MaskedCEActive(weights={"text": [1.0, 2.0, 0.5, 0.0]}).build(
        facts
    )(pred, noised)
    torch.testing.assert_close(
        weighted.values, plain.values * torch.tensor([1.0, 2.0, 0.5, 0.0])[clean.x0]
    )
