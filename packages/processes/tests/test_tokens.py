"""Token processes on tiny spaces: forward laws by enumeration, meanings, and what must never change."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dither.processes.clock import Clock
from dither.processes.evidence import Evidence
from dither.processes.schedules.curves import geometric, log_linear
from dither.processes.tokens import TokenProcess, even_prior, frequency_prior, mask_prior
from dither.registry.flow import Clean, Noise, State
from dither.registry.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal")
MEANINGS = ("posterior", "plug-in", "score")
DTYPES = (torch.float64, torch.float32)
TWO = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4, pad=0)))
ONE = TokenSpace((Field("text", 3, 4),))


def process_of(kind: str, space: TokenSpace, predict: str = "posterior", schedule=None) -> TokenProcess:
    space = space.with_mask() if kind == "absorbing" else space
    priors = {"absorbing": mask_prior, "uniform": even_prior, "marginal": odd_prior}
    return TokenProcess(space, priors[kind](space), Clock(schedule or log_linear(1e-3), t_min=0.0), predict)


def odd_prior(space: TokenSpace) -> Tensor:
    return frequency_prior(
        space,
        {
            f.name: [1.0 + 2 * i for i in range(f.size - (f.mask is not None) - (f.pad is not None))]
            for f in space.fields
        },
    )


def transition(prior_row: Tensor, sigma: float) -> Tensor:
    """exp(sigma (1 prior^T - I)), the definition as a Markov chain: row x_0, column x_t."""
    n = len(prior_row)
    return torch.linalg.matrix_exp(sigma * (prior_row.double().expand(n, n) - torch.eye(n, dtype=torch.float64)))


def noise_of(sigma: float, rows: int = 1) -> Noise:
    return Noise(torch.full((rows,), sigma, dtype=torch.float64), torch.ones(rows, dtype=torch.float64))


@pytest.mark.parametrize("space", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_priors(kind: str, space: TokenSpace) -> None:
    process = process_of(kind, space)
    table = process.table.on("cpu")
    clean = process.space.clean()
    torch.testing.assert_close(table.sum(-1), torch.ones(len(table), dtype=torch.float64))
    if kind == "absorbing":
        masks = [f.mask for f in process.space.fields for _ in range(f.length)][: len(table)]
        assert table.argmax(-1).tolist() == masks
        assert (table.max(-1).values == 1).all()
    else:
        assert torch.equal(table > 0, clean)
        spread = table.max(-1).values / torch.where(clean, table, 1).min(-1).values
        assert (spread == 1).all() if kind == "uniform" else (spread > 2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_forward_marginals_and_chapman_kolmogorov(kind: str, likely) -> None:
    process = process_of(kind, TWO)
    x0 = torch.tensor([[0, 2, 1, 2, 3]])
    clean = Clean.of(x0.expand(40_000, -1))
    table = process.table.on("cpu")
    for t in (0.1, 0.6, 1.0):
        noised = process.corrupt(clean, torch.full((40_000,), t, dtype=torch.float64))
        sigma = noised.noise.sigma[0].item()
        for place in range(5):
            matrix = transition(table[place], sigma)
            torch.testing.assert_close(
                transition(table[place], 0.3 * sigma) @ transition(table[place], 0.7 * sigma), matrix
            )
            law = matrix[x0[0, place]].clamp_min(0).where(matrix[x0[0, place]] > 1e-12, 0)
            assert likely(noised.state.x[:, place], law) > 1e-4
            ids = torch.arange(process.space.vocab)
            evidence = Evidence(ids[:, None].expand(-1, 5), noised.noise[: len(ids)], table, process.clean.on("cpu"))
            x = torch.where(evidence.sure, 0.0, (evidence.log_lost + table.T.log()).exp())[:, place]
            torch.testing.assert_close(x + (ids == x0[0, place]) * (-noised.noise.sigma[0]).exp(), matrix[x0[0, place]])


@pytest.mark.parametrize("kind", KINDS)
def test_levels_per_position(kind: str) -> None:
    """At level 0 nothing moves, whatever the other positions do."""
    process = process_of(kind, ONE)
    x0 = torch.randint(0, 4, (4_000, 3))
    t = torch.tensor([0.0, 1.0, 0.5]).expand(4_000, 3)
    x = process.corrupt(Clean.of(x0), t).state.x
    moved = (x != x0).float().mean(0)
    away = 1.0 if kind == "absorbing" else 1 - (process.table.on("cpu")[0][:4]).mean().item()
    assert moved[0] == 0
    torch.testing.assert_close(moved[1:], torch.tensor([away, away / 2]), rtol=0.1, atol=0.02)


def context_of(clean: Tensor, spread: float = 1.0) -> Tensor:
    """A random log m over the clean ids, one row per position."""
    return (spread * torch.randn(clean.shape, dtype=torch.float64)).masked_fill(~clean, -torch.inf).log_softmax(-1)


@pytest.mark.parametrize("sigma", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_meanings_agree_with_bayes(kind: str, sigma: float) -> None:
    """Posterior and score of a context, from the transition matrix alone; and back."""
    process = process_of(kind, TWO)
    table, clean = process.table.on("cpu"), process.space.clean()
    for ids in itertools.product(*[range(f.size) for f in process.space.fields]):
        x = torch.tensor([[ids[0]] * 2 + [ids[1]] * 3])
        if not ((clean | (table > 0)).gather(1, x.T)).all():
            continue  # PAD
        noise, log_m = noise_of(sigma), context_of(clean)[None]
        evidence = Evidence(x, noise, table, clean)
        for place in range(5):
            if evidence.sure[0, place]:
                continue
            matrix, m = transition(table[place], sigma), log_m[0, place].exp()
            joint = m * matrix[:, x[0, place]]
            later = m @ matrix
            torch.testing.assert_close(
                evidence.posterior(log_m)[0, place].exp(), joint / joint.sum(), rtol=1e-9, atol=0
            )
            score = evidence.score(log_m)[0, place]
            torch.testing.assert_close(score.exp(), later / later[x[0, place]], rtol=1e-9, atol=0)
            assert score[x[0, place]] == 0
            torch.testing.assert_close(evidence.context(evidence.posterior(log_m))[0, place], log_m[0, place])
            torch.testing.assert_close(
                evidence.context_of_score(evidence.score(log_m))[0, place], log_m[0, place], rtol=1e-9, atol=1e-9
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("told", "asked"), list(itertools.product(MEANINGS, MEANINGS)))
def test_a_reading_gives_every_form(kind: str, told: str, asked: str) -> None:
    """The same context told as any meaning reads the same in every form."""
    process = process_of(kind, ONE, told)
    table, clean = process.table.on("cpu"), process.space.clean()
    x = torch.full((1, 3), process.space.fields[0].mask if kind == "absorbing" else 2)
    noise, log_m = noise_of(0.7), context_of(clean.expand(3, -1))[None]
    evidence = Evidence(x, noise, table, clean)
    forms = {"posterior": evidence.posterior(log_m), "plug-in": log_m, "score": evidence.score(log_m)}
    reading = process.read(forms[told], State.of(x), noise)
    asked_for = {"posterior": reading.log_clean, "plug-in": reading.log_context, "score": reading.log_score}[asked]()
    torch.testing.assert_close(asked_for, forms[asked], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
@pytest.mark.parametrize("vocab", [2, 15, 27, 4096, 50257])
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 1.0, 20.0])
def test_float32_conversions_are_stable(vocab: int, sigma: float, kind: str) -> None:
    process = process_of(kind, TokenSpace((Field("text", 2, vocab),)))
    x = torch.full((1, 2), vocab) if kind == "absorbing" else torch.tensor([[0, 1]])
    table, clean = process.table.on("cpu"), process.space.clean()
    exact, narrow = (Evidence(x, Noise(noise_of(sigma).sigma.to(d), torch.ones(1)), table, clean) for d in DTYPES)
    log_m = context_of(clean.expand(2, -1), 3.0)[None]
    score, posterior = narrow.score(log_m.float()), narrow.posterior(log_m.float())
    torch.testing.assert_close(score.double(), exact.score(log_m), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(posterior.double(), exact.posterior(log_m), rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(narrow.context(posterior).double(), log_m, rtol=1e-5, atol=3e-5)
    back = narrow.context_of_score(score)
    torch.testing.assert_close(back.logsumexp(-1), torch.zeros(1, 2), rtol=0, atol=1e-5)
    assert not narrow.posterior(back).isnan().any()
    if kind == "absorbing" or sigma < 2:  # at sigma = 20 a context is below the rounding of its score in float32
        torch.testing.assert_close(back.exp().double(), log_m.exp(), rtol=1e-2, atol=1e-6)
    again = exact.context_of_score(exact.score(log_m))
    torch.testing.assert_close(again.exp(), log_m.exp(), rtol=1e-5, atol=1e-7 if sigma > 2 else 1e-12)


def test_equal_scores_are_an_even_context_at_any_noise() -> None:
    """What a zero-initialised head says: everything is as likely as x_t, also where the difference is all rounding."""
    process = process_of("uniform", TokenSpace((Field("text", 1, 27),)), "score")
    for sigma in (1e-4, 1.0, 20.0, 60.0):
        reading = process.read(
            torch.zeros(1, 1, 27), State.of(torch.tensor([[3]])), noise_of(sigma).apply(Tensor.float)
        )
        torch.testing.assert_close(reading.log_context().exp(), torch.full((1, 1, 27), 1 / 27), rtol=1e-3, atol=0)


@pytest.mark.parametrize("meaning", MEANINGS)
def test_impossible_ids_and_carry_over(meaning: str) -> None:
    """SUBS: MASK, PAD and ids outside the field have probability 0; a token that is not masked predicts itself."""
    process = process_of("absorbing", TWO, meaning)
    space = process.space
    x = torch.tensor([[1, 3, 4, 2, 4]])  # node 1, MASK; MASK, edge 2, MASK
    raw = torch.randn(1, 5, space.vocab).masked_fill(~space.usable(), -torch.inf)
    reading = process.read(raw, State.of(x), noise_of(0.5))
    log_p = reading.log_clean()
    assert log_p.exp()[0, 0].tolist() == [0, 1, 0, 0, 0]
    assert log_p.exp()[0, 3].tolist() == [0, 0, 1, 0, 0]
    torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(1, 5))
    assert (log_p.isneginf() | space.clean())[0].all()
    assert not log_p[0, [1, 2, 4]][:, :].isnan().any()
    if meaning != "score":
        torch.testing.assert_close(log_p[0, 1, :3], raw[0, 1, :3].log_softmax(-1))
    assert (reading.log_score().gather(-1, x[..., None]) == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_reading_is_at_least_float32(dtype: torch.dtype) -> None:
    for meaning in MEANINGS:
        process = process_of("uniform", ONE, meaning)
        reading = process.read(
            torch.randn(2, 3, 4, dtype=dtype), State.of(torch.zeros(2, 3, dtype=torch.long)), noise_of(0.5, 2)
        )
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert reading.log_clean().dtype == reading.log_score().dtype == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meaning", MEANINGS)
def test_gradients_are_finite(kind: str, meaning: str) -> None:
    """Also through -inf on impossible ids, at padding, and at both ends of the noise."""
    process = process_of(kind, TWO, meaning, geometric(1e-4, 20))
    clean = Clean.of(torch.tensor([[0, 4, 1, 0, 0]] * 4), valid=torch.tensor([[True, False, True, False, False]] * 4))
    noised = process.corrupt(clean, torch.tensor([0.0, 0.1, 0.5, 1.0]))
    raw = torch.randn(4, 5, process.space.vocab).masked_fill(~process.space.usable(), -torch.inf).requires_grad_()
    reading = process.read(raw, noised.state, noised.noise)
    for form in (reading.log_clean(), reading.log_score(), reading.log_context()):
        finite = torch.where(form.isfinite(), form, 0.0)
        (grad,) = torch.autograd.grad((finite * torch.randn_like(finite)).sum(), raw, retain_graph=True)
        assert grad.isfinite().all()


@st.composite
def situations(draw: Any) -> tuple[TokenProcess, Clean]:
    """Any small space, process and meaning, with random padding and known positions."""

    def field(i: int) -> Field:
        size = draw(st.integers(2, 5))
        special = draw(st.permutations(range(size)))
        mask = special[0] if draw(st.booleans()) and size > 2 else None
        pad = special[1] if draw(st.booleans()) and size > 2 else None
        return Field(f"f{i}", draw(st.integers(1, 3)), size, mask, pad)

    space = TokenSpace(tuple(field(i) for i in range(draw(st.integers(1, 3)))))
    torch.manual_seed(draw(st.integers(0, 1000)))
    process = process_of(draw(st.sampled_from(KINDS)), space, draw(st.sampled_from(MEANINGS)))
    shape = (draw(st.integers(1, 3)), space.length)
    odds = space.clean().double().expand(space.length, -1)
    x0 = torch.stack([torch.multinomial(odds, 1)[:, 0] for _ in range(shape[0])])
    valid, known = torch.rand(shape) < 0.7, torch.rand(shape) < 0.3
    pads = torch.cat([torch.full((f.length,), f.pad if f.pad is not None else 0) for f in space.fields])
    return process, Clean.of(torch.where(valid, x0, pads), valid, known)


@given(situations(), st.booleans())
def test_fixed_values_never_change(situation: tuple[TokenProcess, Clean], per_position: bool) -> None:
    process, clean = situation
    shape = clean.x0.shape if per_position else clean.x0.shape[:1]
    t = torch.rand(shape).clamp_min(0.05)
    noised = process.corrupt(clean, t)
    allowed = (process.clean.on("cpu") | (process.table.on("cpu") > 0)).expand(clean.x0.shape[1], -1)

    def check(x: Tensor) -> None:
        assert torch.equal(x[clean.fixed], clean.x0[clean.fixed])
        assert (allowed.expand(len(x), -1, -1).gather(-1, x[..., None])[..., 0] | clean.fixed).all()

    check(noised.state.x)
    assert not (noised.wanted & clean.fixed).any()
    assert torch.equal(noised.fixed, clean.fixed)
    assert not noised.state.hidden.any()
    if (process.table.on("cpu") > 0)[~process.clean.on("cpu")].any():  # absorbing
        masks = torch.cat([torch.full((f.length,), f.mask if f.mask is not None else -1) for f in process.space.fields])
        assert torch.equal(noised.wanted, (noised.state.x == masks) & ~clean.fixed)
    start = process.prior(clean)
    check(start.x)
    for state in (noised.state, start):
        raw = torch.randn(*clean.x0.shape, process.space.vocab)
        pred = process.read(raw, state, noised.noise)
        later = process.step(state, pred, noised.noise, process.schedule(0.6 * t), clean)
        check(later.x)
        last = process.finish(later, process.read(raw, later, process.schedule(0.6 * t)), clean)
        check(last)
        good = process.clean.on("cpu").expand(clean.x0.shape[1], -1).expand(len(last), -1, -1)
        assert (good.gather(-1, last[..., None])[..., 0] | clean.fixed).all()


def test_plain_construction_refuses() -> None:
    clock = Clock(log_linear())
    with pytest.raises(ValueError, match='did you mean "plug-in"'):
        TokenProcess(ONE, even_prior(ONE), clock, "plug_in")
    with pytest.raises(ValueError, match="sum to 1"):
        TokenProcess(ONE, 2 * even_prior(ONE), clock)
    with pytest.raises(ValueError, match="no MASK"):
        mask_prior(ONE)
    with pytest.raises(ValueError, match="needs 4 frequencies"):
        frequency_prior(ONE, {"text": [1.0]})
