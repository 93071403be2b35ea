"""Score entropy in float32 against float64 and 60 digits: every vocabulary, every noise, near the truth and far off."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

from dither.losses.tokens import FAR, score_entropy
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Noise, Noised, State
from dither.registry.contracts.spaces import Field, TokenSpace

VOCABULARIES = (2, 15, 4096, 50_257)
SIGMAS = (1e-4, 3e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 5.0, 20.0)
RATE = 2.5
X0, X = torch.tensor([[0, 0]]), torch.tensor([[0, 1]])
"""Two positions: one that has not moved, and one that has."""


def text(ids: int, length: int = 2) -> TokenSpace:
    return TokenSpace((Field("text", length, ids),))


def record(
    process: TokenProcess, sigma: float, dtype: torch.dtype, x: Tensor = X
) -> Noised:
    noise = Noise(torch.tensor([sigma], dtype=dtype), torch.tensor([RATE], dtype=dtype))
    fixed = torch.zeros(x.shape, dtype=torch.bool)
    return Noised(X0, State.of(x), noise, ~fixed, ~fixed, fixed, process.prior_probs())


def log_ratio(ids: int, sigma: float) -> Tensor:
    """log q(y | x_0) / q(x_t | x_0) in float64."""
    e = math.expm1(sigma)
    table = torch.zeros(1, 2, ids, dtype=torch.float64)
    table[0, 0, 1:] = table[0, 1, 0] = math.log(e) - math.log(e + ids)
    table[0, 1, 0] *= -1
    return table


def oracle(log_score: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """Values and slopes in float64 of scores as they are, 0 at x."""
    ids = log_score.shape[-1]
    truth = log_ratio(ids, sigma)
    gap, ratio = log_score.double() - truth, truth.exp()
    weight = RATE / ids
    terms = torch.where(
        gap < FAR,
        ratio * (gap.expm1() - gap),
        log_score.double().exp() - ratio * (1 + gap),
    )
    here = torch.nn.functional.one_hot(X, ids).bool()
    return weight * terms.masked_fill(here, 0.0).sum(-1), (
        weight * ratio * gap.expm1()
    ).masked_fill(here, 0.0)


def said(kind: str, ids: int, sigma: float) -> Tensor:
    """Log scores in float32, 0 at x."""
    truth, noise = log_ratio(ids, sigma), torch.randn(1, 2, ids, dtype=torch.float64)
    log_score = {
        "exact": truth,
        "off by 1e-4": truth + 1e-4 * noise.sign(),
        "off by 1e-2": truth + 1e-2 * noise,
        "off by 0.3": truth + 0.3 * noise,
        "untrained": torch.zeros_like(truth),
        "random": 5 * noise,
        "wild": 15 * noise.clamp(-4, 4),
    }[kind]
    return log_score.float().scatter(-1, X[..., None], 0.0)


KINDS = ("off by 1e-4", "off by 1e-2", "off by 0.3", "untrained", "random", "wild")


@pytest.mark.parametrize("ids", VOCABULARIES)
def test_float32_is_within_a_thousandth_of_float64(process_of, ids: int) -> None:
    process = process_of("uniform", text(ids), "score")
    for sigma in torch.tensor(SIGMAS).tolist():
        noised = record(process, sigma, torch.float32)
        for kind in KINDS:
            raw = said(kind, ids, sigma).requires_grad_()
            measured = score_entropy(
                process.read(raw, noised.state, noised.noise), noised
            )
            values, slopes = oracle(raw.detach(), sigma)
            where = f"V = {ids}, sigma = {sigma:g}, {kind}"
            assert measured.values.dtype == torch.float32
            worst = ((measured.values.double() - values).abs() / values).max().item()
            assert worst < 1e-3, f"{where}: values off by {worst:.2g}"
            (slope,) = torch.autograd.grad(measured.total(), raw)
            off = torch.linalg.vector_norm(
                slope.double() - slopes
            ) / torch.linalg.vector_norm(slopes)
            assert off < 1e-3, f"{where}: gradient off by {off:.2g}"


@pytest.mark.parametrize("ids", VOCABULARIES)
def test_exact_ratios_cost_nothing(process_of, ids: int) -> None:
    """What UNI-D2's uniform loss misses: it has the formula of absorbing noise, about 12 nats at the truth."""
    process = process_of("uniform", text(ids), "score")
    for sigma in torch.tensor(SIGMAS).tolist():
        noised = record(process, sigma, torch.float32)
        raw = said("exact", ids, sigma).requires_grad_()
        values = score_entropy(
            process.read(raw, noised.state, noised.noise), noised
        ).values
        # A score that is itself rounded to float32 is off by 2^-24 of its logarithm, and costs half the square of that.
        rounding = (log_ratio(ids, sigma) * 2**-24).square() * log_ratio(
            ids, sigma
        ).exp()
        allowed = RATE / ids * rounding.sum(-1) + 1e-20
        assert (values >= 0).all()
        assert (values <= allowed).all(), (
            f"V = {ids}, sigma = {sigma:g}: {values} at the truth"
        )


def test_the_oracle_is_right_to_sixty_digits() -> None:
    """s - r log s + r (log r - 1), the definition, without any rearrangement, in decimal arithmetic."""
    for ids, sigma in ((5, 1e-4), (50, 0.3), (300, 20.0)):
        raw = said("off by 1e-2", ids, sigma)
        with localcontext() as context:
            context.prec = 60
            alpha = (-Decimal(sigma)).exp()
            q = [alpha + (1 - alpha) / ids] + [(1 - alpha) / ids] * (ids - 1)
            expected = []
            for place, x in enumerate(X[0].tolist()):
                total = Decimal(0)
                for y in range(ids):
                    if y != x:
                        log_s, r = Decimal(raw[0, place, y].item()), q[y] / q[x]
                        total += log_s.exp() - r * log_s + r * (r.ln() - 1)
                expected.append(float(total * Decimal(RATE) / ids))
        got = oracle(raw, sigma)[0][0]
        torch.testing.assert_close(
            got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0
        )


def test_as_large_as_float32_allows_and_then_infinite(process_of) -> None:
    """s = exp(log s) sets the limit, not s / r; beyond it value and slope are infinite, never a NaN, never cut off."""
    ids = 50_257
    process = process_of("uniform", text(ids), "score")
    noised = record(process, 1e-4, torch.float32)
    for height in (44.0, 75.0, 87.0, 95.0, 1e4):
        raw = torch.zeros(1, 2, ids)
        raw[0, :, 7] = height  # log s - log r is 20 more where nothing has moved
        raw.requires_grad_()
        measured = score_entropy(process.read(raw, noised.state, noised.noise), noised)
        (slope,) = torch.autograd.grad(measured.total(), raw)
        finite = height < 88
        assert (measured.values.isfinite() == finite).all(), height
        assert not measured.values.isnan().any()
        assert (slope[0, :, 7].isfinite() == finite).all()
        assert not slope.isnan().any()
        rest = slope[0, :, 8:]
        assert rest.isfinite().all(), (
            "one infinite score takes the slopes of the others along"
        )
        if finite:
            expected = oracle(raw.detach(), torch.tensor(1e-4).item())[0]
            torch.testing.assert_close(
                measured.values.double(), expected, rtol=1e-5, atol=0
            )
