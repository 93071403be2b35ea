"""Tools of these tests: parts by name, a test of frequencies, and a denoiser that knows the joint distribution."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from dither.processes.features.gaussian import GaussianProcess
from dither.processes.flow_matching.process import FlowMatchingProcess
from dither.processes.schedules.alpha import LogLinear
from dither.processes.specs import register_components
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.priors import even_prior, frequency_prior, mask_prior
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.protocols import Schedule
from dither.registry.contracts.records import State
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.registry.plugins.catalog import Catalog


@pytest.fixture(scope="session")
def part() -> Callable[..., Any]:
    """Parse a part by kind and name."""
    catalog = Catalog()
    catalog.add("processes", register_components())

    def parse(kind: str, name: str, **options: Any) -> Any:
        return catalog.parse(kind, {"use": name, **options})

    return parse


@pytest.fixture(scope="session")
def likely() -> Callable[[Tensor, Tensor], float]:
    """Chi-square: the chance of frequencies at least as far from `probabilities`; 0 if something impossible came."""

    def test(drawn: Tensor, probabilities: Tensor) -> float:
        probabilities = probabilities.double()
        counts = torch.bincount(drawn.flatten(), minlength=len(probabilities)).double()
        possible = probabilities > 0
        if counts[~possible].any() or len(counts) > len(probabilities):
            return 0.0
        expected = probabilities[possible] * counts.sum() / probabilities.sum()
        return (
            float(chisquare(counts[possible].numpy(), expected.numpy()).pvalue)
            if possible.sum() > 1
            else 1.0
        )

    return test


@pytest.fixture(scope="session")
def process_of() -> Callable[..., TokenProcess]:
    """A process by the name of its prior; marginal has frequencies 1, 3, 5 .. of the clean ids."""

    def build(
        kind: str,
        space: TokenSpace,
        predict: str = "posterior",
        schedule: Schedule | None = None,
    ) -> TokenProcess:
        space = space.with_mask() if kind in ("absorbing", "hybrid") else space
        counts = {
            f.name: f.size - (f.mask is not None) - (f.pad is not None)
            for f in space.fields
        }
        odd = {
            name: [1.0 + 2 * i for i in range(count)] for name, count in counts.items()
        }
        priors = {
            "absorbing": mask_prior,
            "uniform": even_prior,
            "marginal": lambda s: frequency_prior(s, odd),
        }
        priors["hybrid"] = lambda s: 0.7 * mask_prior(s) + 0.3 * even_prior(s)
        return TokenProcess(
            space,
            priors[kind](space),
            TimestepSampling(schedule or LogLinear().build(), t_min=0.0),
            predict,
        )

    return build


@pytest.fixture(scope="session")
def transition() -> Callable[[Tensor, float], Tensor]:
    """exp(sigma (1 prior^T - I)), the definition as a Markov chain: row x_0, column x_t."""

    def matrix(prior: Tensor, sigma: float) -> Tensor:
        n = len(prior)
        return torch.linalg.matrix_exp(
            sigma * (prior.double().expand(n, n) - torch.eye(n, dtype=torch.float64))
        )

    return matrix


class Oracle:
    """A session whose model is exact: p(x_0 | x_t) by enumeration of a joint over sequences of clean ids 0 .. K-1.

    Remembered positions are known to be clean, and later positions are summed out, as under block-causal attention.
    """

    def __init__(self, process: TokenProcess, joint: Tensor) -> None:
        self.process, self.joint = process, joint.double() / joint.sum()
        self.context = torch.zeros(1, 0, dtype=torch.long)
        self.calls = 0

    def append(self, x: Tensor) -> None:
        self.context = torch.cat([self.context.expand(len(x), -1), x], 1)

    def __call__(
        self, state: State, t: Tensor, at: Tensor | None = None
    ) -> CategoricalPrediction:
        pred = self.predict(state, t)
        return pred if at is None else pred.at(at)

    def predict(self, state: State, t: Tensor) -> CategoricalPrediction:
        self.calls += 1
        noise = self.process.schedule(t.double())
        evidence = Posterior(
            state.x, noise, self.process.prior_at(noise), self.process.clean.on(None)
        )
        past, width, ids = self.context.shape[1], state.x.shape[1], self.joint.shape[0]
        joint = (
            self.joint.sum(tuple(range(past + width, self.joint.ndim)))
            if self.joint.ndim > past + width
            else self.joint
        )
        sequences = torch.tensor(
            list(itertools.product(range(ids), repeat=past + width))
        )
        weight = joint.flatten().expand(len(state.x), -1).clone()
        for place in range(past):
            weight *= self.context[:, place, None] == sequences[:, place]
        likelihood = self.likelihood(evidence, state.x, ids)
        for place in range(width):
            weight *= likelihood[:, place][:, sequences[:, past + place]]
        clean = torch.zeros(
            *state.x.shape, self.process.space.vocab, dtype=torch.float64
        )
        for place in range(width):
            clean[:, place].index_add_(1, sequences[:, past + place], weight)
        return CategoricalPrediction(
            (clean / clean.sum(-1, keepdim=True)).log(), "posterior", evidence
        )

    @staticmethod
    def likelihood(evidence: Posterior, x: Tensor, ids: int) -> Tensor:
        """q(x_t | x_0 = id) at every position, straight from the definition."""
        alpha = evidence.log_alpha.exp()[..., None]
        prior = evidence.prior.expand(*x.shape, -1)
        landed = prior.gather(2, x[..., None])
        return alpha * (torch.arange(ids) == x[..., None]) + (1 - alpha) * landed


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle


class Normal:
    """The exact denoiser of independent normal values, with mean 3 and standard deviation 0.5."""

    def __init__(self, process: GaussianProcess) -> None:
        self.process = process

    def __call__(self, state: State, t: Tensor) -> Any:
        noise = self.process.schedule(t)
        a, b = self.process.scales(noise, state.x)
        x0 = 3 + 0.25 * a / (0.25 * a**2 + b**2) * (state.x - 3 * a)
        eps = (state.x - a * x0) / b.clamp_min(1e-12)
        velocity = (
            eps - x0
            if isinstance(self.process, FlowMatchingProcess)
            else a * eps - b * x0
        )
        return self.process.read(
            {"x0": x0, "eps": eps, "velocity": velocity}[self.process.predict],
            state,
            noise,
        )


@pytest.fixture(scope="session")
def normal() -> type[Normal]:
    return Normal


@pytest.fixture(scope="session")
def text_process(part: Callable[..., Any]) -> Callable[..., TokenProcess]:
    """A process over one field of some length and vocabulary; marginal has frequencies 1, 2, 3 .."""

    def build(kind: str, length: int, ids: int, **options: Any) -> TokenProcess:
        if kind == "marginal":
            options["frequencies"] = {"text": [1.0 + i for i in range(ids)]}
        process: TokenProcess = part("process", kind, **options).build(
            TokenSpace((Field("text", length, ids),))
        )
        return process

    return build


class Recorder:
    """A session that records states and times, with the same logits at every state, or another session's answers."""

    def __init__(
        self, process: TokenProcess, logits: Tensor | None = None, session: Any = None
    ) -> None:
        self.process, self.logits, self.session = process, logits, session
        self.states, self.times = list[Tensor](), list[Tensor]()

    def __call__(
        self, state: State, t: Tensor, at: Tensor | None = None
    ) -> CategoricalPrediction:
        self.states.append(state.x)
        self.times.append(t)
        if self.session is not None:
            return self.session(state, t, at)
        logits = torch.nn.functional.pad(
            self.logits, (0, self.process.space.vocab - self.logits.shape[-1])
        )
        pred = self.process.read(
            logits.expand(len(state.x), -1, -1), state, self.process.schedule(t)
        )
        return pred if at is None else pred.at(at)


@pytest.fixture(scope="session")
def recorder() -> type[Recorder]:
    return Recorder
