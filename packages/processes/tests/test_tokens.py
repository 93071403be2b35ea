"""Token processes on tiny spaces: forward laws by enumeration, meanings, and what must never change."""

import pytest
import torch

from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.sigma import geometric, linear_sigma
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.process import TokenProcess, even_prior, frequency_prior, mask_prior
from dither.registry.flow.records import Clean, Noise, State
from dither.registry.flow.spaces import Field, TokenSpace

KINDS = ("absorbing", "uniform", "marginal", "hybrid")
MEANINGS = ("posterior", "plug-in", "score")
TWO = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4, pad=0)))
ONE = TokenSpace((Field("text", 3, 4),))


def noise_of(sigma: float, rows: int = 1) -> Noise:
    return Noise(torch.full((rows,), sigma, dtype=torch.float64), torch.ones(rows, dtype=torch.float64))


@pytest.mark.parametrize("space", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_priors(process_of, kind: str, space: TokenSpace) -> None:
    process = process_of(kind, space)
    table = process.prior_probs()
    clean = process.space.clean()
    torch.testing.assert_close(table.sum(-1), torch.ones(len(table), dtype=torch.float64))
    if kind == "absorbing":
        masks = [f.mask for f in process.space.fields for _ in range(f.length)][: len(table)]
        assert table.argmax(-1).tolist() == masks
        assert (table.max(-1).values == 1).all()
    elif kind == "hybrid":
        even, masks = (process_of(name, space).prior_probs() for name in ("uniform", "absorbing"))
        padded = torch.nn.functional.pad(even, (0, masks.shape[1] - even.shape[1]))
        torch.testing.assert_close(table, 0.3 * padded + 0.7 * masks)
    else:
        assert torch.equal(table > 0, clean)
        spread = table.max(-1).values / torch.where(clean, table, 1).min(-1).values
        assert (spread == 1).all() if kind == "uniform" else (spread > 2).all()


@pytest.mark.parametrize("meaning", MEANINGS)
def test_impossible_ids_and_carry_over(process_of, meaning: str) -> None:
    """SUBS: MASK, PAD and ids outside the field have probability 0; a token that is not masked predicts itself."""
    process = process_of("absorbing", TWO, meaning)
    space = process.space
    x = torch.tensor([[1, 3, 4, 2, 0]])  # node 1, MASK; MASK, edge 2, PAD
    raw = torch.randn(1, 5, space.vocab).masked_fill(~space.usable(), -torch.inf)
    raw[0, 4, 0] = -torch.inf  # a head may say so of PAD itself
    reading = process.read(raw, State.of(x), noise_of(0.5))
    log_p = reading.log_clean()
    assert log_p.exp()[0, 0].tolist() == [0, 1, 0, 0, 0]
    assert log_p.exp()[0, 3].tolist() == [0, 0, 1, 0, 0]
    torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(1, 5))
    assert log_p.exp()[0, 4].tolist() == [1, 0, 0, 0, 0]
    assert (log_p.isneginf() | space.clean())[0, :4].all()
    if meaning != "score":
        torch.testing.assert_close(log_p[0, 1, :3], raw[0, 1, :3].log_softmax(-1))
    assert (reading.log_score().gather(-1, x[..., None]) == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_reading_is_at_least_float32(process_of, dtype: torch.dtype) -> None:
    for meaning in MEANINGS:
        process = process_of("uniform", ONE, meaning)
        reading = process.read(
            torch.randn(2, 3, 4, dtype=dtype), State.of(torch.zeros(2, 3, dtype=torch.long)), noise_of(0.5, 2)
        )
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert reading.log_clean().dtype == reading.log_score().dtype == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("meaning", MEANINGS)
@pytest.mark.parametrize("schedule", [geometric(1e-4, 20), log_linear(1e-3)])
def test_gradients_are_finite(process_of, kind: str, meaning: str, schedule) -> None:
    """Also through -inf on impossible ids, at padding, and at both ends of the noise (0 in log-linear)."""
    process = process_of(kind, TWO, meaning, schedule)
    clean = Clean.of(torch.tensor([[0, 4, 1, 0, 0]] * 4), valid=torch.tensor([[True, False, True, False, False]] * 4))
    noised = process.corrupt(clean, torch.tensor([0.0, 0.1, 0.5, 1.0]))
    raw = torch.randn(4, 5, process.space.vocab).masked_fill(~process.space.usable(), -torch.inf).requires_grad_()
    reading = process.read(raw, noised.state, noised.noise)
    for form in (reading.log_clean(), reading.log_score(), reading.log_context()):
        assert not form.isnan().any()
        finite = torch.where(form.isfinite(), form, 0.0)
        (grad,) = torch.autograd.grad((finite * torch.randn_like(finite)).sum(), raw, retain_graph=True)
        assert grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_signal_left_at_all(process_of, kind: str) -> None:
    """At sigma = 900 exp(-sigma) is 0: unmasked tokens stay, and nothing is NaN."""
    process = process_of(kind, ONE, schedule=linear_sigma(1000.0))
    like = Clean.of(torch.randint(0, 4, (50, 3)))
    now, then = (process.schedule(torch.full((50,), t, dtype=torch.float64)) for t in (0.9, 0.8))
    state = State.of(like.x0)
    pred = process.read(torch.randn(50, 3, process.space.vocab), state, now)
    x = process.step(state, pred, now, then, like).x
    assert not pred.log_clean().isnan().any()
    assert torch.equal(x, like.x0) == (kind == "absorbing")


def test_plain_construction_refuses() -> None:
    clock = TimestepSampling(log_linear())
    with pytest.raises(ValueError, match="sum to 1"):
        TokenProcess(ONE, 2 * even_prior(ONE), clock)
    with pytest.raises(ValueError, match="no MASK"):
        mask_prior(ONE)
    with pytest.raises(ValueError, match="needs 4 frequencies"):
        frequency_prior(ONE, {"text": [1.0]})
