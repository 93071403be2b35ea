"""Tools of these tests: parts by name, a test of frequencies, and a denoiser that knows the joint distribution."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from dither.processes.schedules.alpha import log_linear
from dither.processes.specs import register_components
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.posterior import Posterior
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.processes.tokens.process import TokenProcess, even_prior, frequency_prior, mask_prior
from dither.registry.flow.protocols import Schedule
from dither.registry.flow.records import State
from dither.registry.flow.spaces import TokenSpace
from dither.registry.plugins.catalog import Catalog


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


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
        return float(chisquare(counts[possible].numpy(), expected.numpy()).pvalue) if possible.sum() > 1 else 1.0

    return test


@pytest.fixture(scope="session")
def process_of() -> Callable[..., TokenProcess]:
    """A process by the name of its prior; marginal has frequencies 1, 3, 5 .. of the clean ids."""

    def build(
        kind: str, space: TokenSpace, predict: str = "posterior", schedule: Schedule | None = None
    ) -> TokenProcess:
        space = space.with_mask() if kind in ("absorbing", "hybrid") else space
        counts = {f.name: f.size - (f.mask is not None) - (f.pad is not None) for f in space.fields}
        odd = {name: [1.0 + 2 * i for i in range(count)] for name, count in counts.items()}
        priors = {"absorbing": mask_prior, "uniform": even_prior, "marginal": lambda s: frequency_prior(s, odd)}
        priors["hybrid"] = lambda s: 0.7 * mask_prior(s) + 0.3 * even_prior(s)
        return TokenProcess(
            space, priors[kind](space), TimestepSampling(schedule or log_linear(1e-3), t_min=0.0), predict
        )

    return build


@pytest.fixture(scope="session")
def transition() -> Callable[[Tensor, float], Tensor]:
    """exp(sigma (1 prior^T - I)), the definition as a Markov chain: row x_0, column x_t."""

    def matrix(prior: Tensor, sigma: float) -> Tensor:
        n = len(prior)
        return torch.linalg.matrix_exp(sigma * (prior.double().expand(n, n) - torch.eye(n, dtype=torch.float64)))

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

    def __call__(self, state: State, t: Tensor) -> CategoricalPrediction:
        self.calls += 1
        noise = self.process.schedule(t.double())
        evidence = Posterior(state.x, noise, self.process.prior_probs(), self.process.clean.on("cpu"))
        past, width, ids = self.context.shape[1], state.x.shape[1], self.joint.shape[0]
        joint = (
            self.joint.sum(tuple(range(past + width, self.joint.ndim)))
            if self.joint.ndim > past + width
            else self.joint
        )
        sequences = torch.tensor(list(itertools.product(range(ids), repeat=past + width)))
        weight = joint.flatten().expand(len(state.x), -1).clone()
        for place in range(past):
            weight *= self.context[:, place, None] == sequences[:, place]
        likelihood = self.likelihood(evidence, state.x, ids)
        for place in range(width):
            weight *= likelihood[:, place][:, sequences[:, past + place]]
        clean = torch.zeros(*state.x.shape, self.process.space.vocab, dtype=torch.float64)
        for place in range(width):
            clean[:, place].index_add_(1, sequences[:, past + place], weight)
        return CategoricalPrediction((clean / clean.sum(-1, keepdim=True)).log(), "posterior", evidence)

    @staticmethod
    def likelihood(evidence: Posterior, x: Tensor, ids: int) -> Tensor:
        """q(x_t | x_0 = id) at every position, straight from the definition."""
        alpha = evidence.log_alpha.exp()[..., None]
        prior = evidence.prior.expand(x.shape[1], -1)
        landed = prior[torch.arange(x.shape[1]), x][..., None]
        return alpha * (torch.arange(ids) == x[..., None]) + (1 - alpha) * landed


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle
