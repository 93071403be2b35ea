"""Gaussian noise on part of a sample: its mask, clean values elsewhere, and the mask passed to the model."""

import pytest
import torch
from torch import Tensor

from dither.processes.features.gaussian import GaussianProcess
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import FeatureSpace, Group

SPACE = FeatureSpace(6, 4, (Group("motifs", 0, 3), Group("open", 3, 4)))


def process_of(predict: str = "x0", **options) -> GaussianProcess:
    return GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), predict, **options)


@pytest.mark.parametrize("mask", ["region", "element", "column", "block"])
def test_only_what_is_picked_has_noise(mask: str) -> None:
    process, n = process_of(mask=mask, ratio=0.5, block=2), 4_000
    clean = Clean.of(torch.randn(n, 6, 4), known=torch.rand(n, 6, 4) < 0.2)
    noised = process.corrupt(clean, torch.full((n,), 0.4))
    state = noised.state
    assert torch.equal(noised.target_mask, state.noisy)
    assert not state.masked.any()
    assert torch.equal(state.x[~state.noisy], clean.x0[~state.noisy])
    assert (state.x[state.noisy] != clean.x0[state.noisy]).all()
    assert not (state.noisy & clean.fixed).any()
    assert (noised.eps[~state.noisy] == 0).all()
    free = ~clean.fixed
    assert state.noisy[free].float().mean().item() == pytest.approx(0.5, abs=0.02)
    alpha = noised.noise.alpha(clean.x0)
    mixed = (alpha.sqrt() * clean.x0 + (1 - alpha).sqrt() * noised.eps)[state.noisy]
    torch.testing.assert_close(state.x[state.noisy], mixed)


def test_a_ratio_is_drawn_for_each_sample() -> None:
    noised = process_of(mask="element").corrupt(Clean.of(torch.randn(3_000, 6, 4)), torch.rand(3_000))
    shares = noised.target_mask.flatten(1).double().mean(1)
    assert shares.mean().item() == pytest.approx(0.5, abs=0.02)
    assert shares.var().item() == pytest.approx(1 / 12 + 1 / 6 / 24, rel=0.05)  # of an even ratio, and of 24 draws


@pytest.mark.parametrize("predict", ["x0", "eps", "velocity"])
def test_a_walk_draws_what_may_be_picked_given_the_rest(part, predict: str) -> None:
    """Columns that go together with a correlation of 0.8: the last, drawn given the others, has their conditional law.

    The exact denoiser: x_3 = 0.8 x_0 + 0.6 e, where e is standard normal: its mean is 0.8 x_0, its variance 0.36.
    """
    process = process_of(predict, mask="group", group="open")
    n = 2_000
    like = Clean.of(torch.randn(n, 6, 4))

    def session(state: State, t: Tensor):
        assert torch.equal(state.noisy, torch.tensor([False, False, False, True]).expand(n, 6, 4))
        noise = process.schedule(t)
        a, b = noise.alpha(state.x).sqrt(), noise.one_minus_alpha(state.x).sqrt()
        mean = 0.8 * state.x[..., :1]
        x0 = mean + 0.36 * a / (0.36 * a**2 + b**2) * (state.x - a * mean)
        eps = (state.x - a * x0) / b
        return process.read({"x0": x0, "eps": eps, "velocity": a * eps - b * x0}[predict], state, noise)

    for sampler in (
        {"use": "ddim", "steps": 200, "eta": 1.0, "spacing": "log-snr"},
        {"use": "dpm-solver", "steps": 50, "spacing": "log-snr"},
    ):
        options = dict(sampler)
        *_, x = part("sampler", options.pop("use"), **options).build()(process, session, like)
        assert torch.equal(x[..., :3], like.x0[..., :3])
        rest = x[..., 3] - 0.8 * x[..., 0]
        assert rest.mean().item() == pytest.approx(0, abs=0.025)
        assert rest.std().item() == pytest.approx(0.6, rel=0.03), sampler["use"]
        assert torch.corrcoef(torch.stack([rest.flatten(), x[..., 0].flatten()]))[0, 1].abs() < 0.03
