"""Likelihoods of Gaussian diffusion and flow matching against mixtures of normals, of known denoiser and density."""

import math
from itertools import product

import pytest
import torch
from torch.distributions import MultivariateNormal

from dither.processes.features.likelihood import bin_nats
from dither.registry import FeatureSpace, Group, default_catalog
from dither.registry.contracts.records import Clean, State

SPACE = FeatureSpace(1, 2, groups=(Group("first", 0, 1), Group("second", 1, 2)))
EYE = torch.eye(2, dtype=torch.float64)
PROCESSES = {
    "cosine": {"use": "gaussian", "schedule": "cosine"},
    "linear-beta": {"use": "gaussian", "schedule": "linear-beta", "predict": "eps"},
    "flow-matching": {"use": "flow-matching"},
}


def build(table, space=SPACE):
    return default_catalog().parse("process", table).build(space)


class Mixture:
    """A mixture of normals over the two values of a position, and its exact denoiser."""

    def __init__(self, weights, means, covariances):
        self.weights = torch.tensor(weights, dtype=torch.float64)
        self.means = torch.tensor(means, dtype=torch.float64)
        self.covariances = torch.tensor(covariances, dtype=torch.float64)

    def components(self, x, a, b):
        """Return the log-weights of x in each component, and covariances, of a x_0 + b eps."""
        covariances = a[..., None] ** 2 * self.covariances + b[..., None] ** 2 * EYE
        normals = MultivariateNormal(a * self.means, covariances, validate_args=False)
        return normals.log_prob(x) + self.weights.log(), covariances

    def log_density(self, x):
        ones = torch.ones(len(x), 1, 1, dtype=x.dtype)
        return self.components(x, ones, 0 * ones)[0].logsumexp(1)

    def mean_given(self, x, a, b):
        """Return E[x_0 | a x_0 + b eps = x]."""
        log, covariances = self.components(x, a, b)
        gain = a[..., None] * self.covariances @ torch.linalg.inv(covariances)
        shift = (x - a * self.means)[..., None]
        means = self.means + (gain @ shift)[..., 0]
        return (log.softmax(1)[..., None] * means).sum(1, keepdim=True)

    def denoiser(self, process, shift=0.0):
        """Return the model whose x_0 is off by `shift`."""

        def denoise(state: State, t):
            noise = process.schedule(t)
            a, b = process.scales(noise, state.x)
            x0 = self.mean_given(state.x, a, b) + shift
            if process.predict == "velocity":
                return process.read((state.x - x0) / b, state, noise)
            raw = x0 if process.predict == "x0" else (state.x - a * x0) / b
            return process.read(raw, state, noise)

        return denoise

    def sample(self, count):
        component = torch.multinomial(self.weights, count, replacement=True)
        normal = MultivariateNormal(self.means, self.covariances + 1e-12 * EYE)
        return normal.sample((count,))[torch.arange(count), component][:, None]


TWO = Mixture(
    [0.3, 0.7],
    [[-1.5, 0.5], [0.7, -0.4]],
    [[[0.2, 0.1], [0.1, 0.3]], [[0.5, -0.2], [-0.2, 0.15]]],
)


def bounds(process, x, denoise, draws=1, **options):
    """Return bounds on log p of each value of each sample, the mean over stratified times."""
    clean = Clean.of(x.repeat_interleave(draws, 0))
    t = process.times(len(clean.x0)).double()
    # Times of a sample are spread evenly.
    t = t.view(draws, len(x)).T.flatten()
    values = process.draw_value_bounds(clean, t, denoise, **options)
    return -values.view(len(x), draws, *x.shape[1:]).mean(1)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_bound_of_an_exact_denoiser_is_the_density(name):
    process = build(PROCESSES[name])
    torch.manual_seed(0)
    x = TWO.sample(4000)
    truth = TWO.log_density(x)
    gaps = truth - bounds(process, x, TWO.denoiser(process)).sum((1, 2))
    error = gaps.std().item() / math.sqrt(len(x))
    assert error < 0.1
    assert abs(gaps.mean().item()) < 3 * error
    # Any other denoiser has a lower bound.
    wrong = bounds(process, x, TWO.denoiser(process, shift=0.02)).sum((1, 2))
    assert (truth - wrong).mean() > 5 * error


def test_prior_and_scale_of_the_bound():
    """Data far from 0, of which the last time has a signal, and of twice the deviation."""
    process = build({"use": "gaussian", "schedule": "log-linear", "zero_snr": False})
    for scale, mean in ((1.0, 30.0), (2.0, 0.0)):
        normal = Mixture([1.0], [[mean, -mean]], [(scale**2 * EYE).tolist()])
        torch.manual_seed(0)
        x = normal.sample(40)
        found = bounds(process, x, normal.denoiser(process), draws=400).sum((1, 2))
        truth = normal.log_density(x)
        # KL(q(x_1 | x_0) || N(0, 1)) with alpha = .001 at t = 1 is what the sampler loses.
        prior = (1e-3 * x.square() + 0.999 - 1 - math.log(0.999)).sum((1, 2)) / 2
        assert (truth - prior - found).mean().item() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_flow_has_the_density_of_the_data(name):
    process = build(PROCESSES[name] | {"t_min": 1e-5})
    torch.manual_seed(0)
    clean = Clean.of(TWO.sample(20))
    truth = TWO.log_density(clean.x0)
    denoise = TWO.denoiser(process)
    found = process.flow_log_density(clean, denoise, steps=50, probes=2)
    assert found.shape == (20, 1)
    errors = (found[:, 0] - truth).abs()
    assert errors.max() < 4e-3
    if name == "flow-matching":
        # Heun's method is of second order.
        coarse = process.flow_log_density(clean, denoise, steps=25, probes=2)
        assert (coarse[:, 0] - truth).abs().max() > 3 * errors.max()


def test_hutchinson_probes_estimate_the_trace():
    process = build(PROCESSES["flow-matching"], FeatureSpace(3, 2))
    scale = torch.tensor([[0.5, 1.0], [2.0, 0.3], [1.0, 1.5]], dtype=torch.float64)
    mixing = torch.eye(6, dtype=torch.float64) + 0.1

    def denoise(state, t):
        x0 = (state.x * scale).flatten(1) @ mixing
        return process.read(state.x - x0.view_as(state.x), state, process.schedule(t))

    torch.manual_seed(0)
    clean = Clean.of(torch.randn(2, 3, 2, dtype=torch.float64))
    exact = process.flow_log_density(clean, denoise, steps=8, probes=6)
    many = clean.apply(lambda value: value.repeat_interleave(100, 0))
    drawn = process.flow_log_density(many, denoise, steps=8, probes=5)
    assert drawn.shape == (200, 5)
    drawn = drawn.view(2, 500)
    errors = drawn.std(1) / math.sqrt(500)
    assert (errors > 0).all()
    assert ((drawn.mean(1) - exact[:, 0]).abs() < 4 * errors).all()


def test_probabilities_of_quantised_data_are_those_of_their_bins():
    """Values on a grid: bounds of an exact denoiser sum to 1, and uniform noise of the flow costs more."""
    process = build(PROCESSES["cosine"] | {"t_min": 1e-3})
    values = (-1.0, 0.0, 1.0)
    points = torch.tensor(list(product(values, values)), dtype=torch.float64)
    probabilities = torch.tensor([9.0, 1, 2, 3, 4, 5, 6, 7, 8]).double() / 45
    grid = Mixture(probabilities.tolist(), points.tolist(), (0 * EYE).tolist())
    found = bounds(
        process, points[:, None], grid.denoiser(process), draws=600, bins=torch.ones(2)
    )
    gaps = found.sum((1, 2)) - probabilities.log()
    assert abs(gaps.mean().item()) < 3 * gaps.std().item() / 3 < 0.5

    # Errors far below the width of a bin cost little, as noise below it is left out.
    off = bounds(
        process,
        points[:, None],
        grid.denoiser(process, shift=0.05),
        draws=600,
        bins=torch.ones(2),
    )
    assert 0 < (found - off).sum((1, 2)).mean() < 2

    # Of a normal distribution at 0: the mean of log p over a bin, and the density of the other column;
    # the noise of an eighth of a bin costs .015.
    normal = Mixture([1.0], [[0.0, 0.0]], [EYE.tolist()])
    zeros = Clean.of(torch.zeros(400, 1, 2, dtype=torch.float64))
    denoise = normal.denoiser(process)
    for widths in ([1.0, 1.0], [1.0, 0.0]):
        bins = torch.tensor(widths)
        log = process.flow_log_density(zeros, denoise, steps=10, probes=2, bins=bins)
        expected = -math.log(2 * math.pi) - bins.square().sum() / 24
        expected += bins[bins > 0].log().sum()
        assert log.mean().item() == pytest.approx(expected.item(), abs=0.03)


@pytest.mark.parametrize("mask", [{}, {"mask": "group", "group": "first"}])
def test_known_values_and_columns_without_noise_do_not_count(mask):
    """Given the second column the first one is a known normal distribution."""
    process = build({"use": "gaussian", "schedule": "cosine", "t_min": 1e-4} | mask)
    torch.manual_seed(0)
    x = torch.randn(1000, 1, 2, dtype=torch.float64)
    x[..., 0] = 0.8 * x[..., 1] + 0.6 * x[..., 0]
    known = torch.tensor([False, not mask]).expand(x.shape)
    clean = Clean.of(x, known=known)

    def denoise(state, t):
        noise = process.schedule(t)
        a, b = process.scales(noise, state.x)
        mean = 0.8 * state.x[..., 1:]
        gain = a * 0.36 / (a**2 * 0.36 + b**2)
        x0 = state.x.clone()
        x0[..., :1] = mean + gain * (state.x[..., :1] - a * mean)
        return process.read(x0, state, noise)

    mean, scale = 0.8 * x[:, 0, 1], 0.6
    truth = torch.distributions.Normal(mean, scale).log_prob(x[:, 0, 0])
    flow = process.flow_log_density(clean[:20], denoise, steps=50, probes=2)
    assert torch.allclose(flow[:, 0], truth[:20], atol=5e-3)
    values = process.draw_value_bounds(clean, process.times(1000), denoise)
    assert not values[..., 1].any()
    gaps = truth + values[:, 0, 0]
    assert abs(gaps.mean().item()) < 3 * gaps.std().item() / math.sqrt(1000)


def test_training_steps_of_predicted_variances_are_spread_over_time():
    process = build(
        {"use": "learned-variance", "schedule": "linear-beta", "predict": "x0"}
    )
    normal = Mixture([1.0], [[0.0, 0.0]], [EYE.tolist()])

    def denoise(state, t):
        noise = process.schedule(t)
        x0 = process.scales(noise, state.x)[0] * state.x
        return process.read(torch.cat([x0, x0], -1), state, noise)

    torch.manual_seed(0)
    x = normal.sample(2000)
    gaps = normal.log_density(x) - bounds(process, x, denoise).sum((1, 2))
    error = gaps.std().item() / math.sqrt(len(x))
    assert abs(gaps.mean().item()) < 3 * error < 0.3


def test_bins_have_the_mass_of_a_normal_distribution():
    error = torch.tensor([0.0, 0.3, -0.3, 2.0, 40.0], dtype=torch.float64)
    found = bin_nats(error, torch.tensor(0.2).double(), torch.full((1,), 0.5))
    normal = torch.distributions.Normal(error[:3], 0.2)
    mass = normal.cdf(torch.tensor(0.25)) - normal.cdf(torch.tensor(-0.25))
    assert torch.allclose(found[:3], -mass.log())
    assert 19_000 < found[4] < 20_000
