"""A system with the verbs of its user: sample, evaluate, predict, log-likelihood.

Letters: B batch, N samples, L length, M features, D width.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from dither.registry.contracts.protocols import Split
from dither.registry.contracts.records import Clean, State

from ..sampling.session import draw
from ..training.diffusion import Diffusion
from ..training.evaluation import evaluate
from ..training.likelihood import LogLikelihood, log_likelihood
from ..training.randomness import mix_seed

__all__ = ["System", "SystemModel"]

MAX_BATCH = 256
"""Samples of a batch of an evaluation."""


class System(Diffusion):
    """A diffusion system as `dither.load` returns it; `System.build(experiment)` has initial weights."""

    def sample(
        self, n: int, *, seed: int = 0, batch_size: int | None = None
    ) -> Shaped[Tensor, "N L *M"]:
        """Draw n samples, on the CPU: a function of weights, seed and batch size."""
        return draw(self, self.like(n, seed), seed, batch_size)

    def evaluate(
        self, split: Split = "valid", samples: int = 1024, seed: int = 0
    ) -> dict[str, float]:
        """Return loss and metrics on the first samples of a split, as `dither evaluate` does."""
        metrics = evaluate(
            self,
            samples=samples,
            batch_size=min(samples, MAX_BATCH),
            seed=seed,
            split=split,
        )
        return metrics or {}

    def predict(self, x: Any, *, seed: int = 0, **labels: str) -> Any:
        """Return the task's predictions for inputs of the user, both in the units of the data.

        For get-region: `system.predict(motifs, cell="K562")`, motifs `N L M`, returns `N L K`.
        Refused if the task does not implement `predict_values`.
        """
        return self.task.predict_values(SystemModel(self, seed), x, **labels)

    def log_likelihood(
        self,
        ids: Shaped[Tensor, "B L"],
        known: Bool[Tensor, "B L"] | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> LogLikelihood:
        """Return lower bounds on the log-likelihood of ids given the `known` ones, in nats, with 95 % intervals.

        `samples` is the number of draws of noise for each row.
        """
        return log_likelihood(self, ids, known, samples, seed)


class SystemModel:
    """A system as the `TrainedModel` that the methods and commands of its task receive."""

    def __init__(self, system: Diffusion, seed: int = 0) -> None:
        self.system = system.eval()
        self.seeds = (mix_seed(seed, number) for number in count())
        self.device = next(system.model.parameters()).device
        self.task = system.task

    def sample(self, like: Clean, seed: int | None = None) -> Shaped[Tensor, "N L *M"]:
        """Draw one sample for each row; without a seed, each call has random numbers of its own."""
        return draw(self.system, like, next(self.seeds) if seed is None else seed)

    def log_likelihood(
        self,
        ids: Shaped[Tensor, "B L"],
        known: Bool[Tensor, "B L"] | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> LogLikelihood:
        """Return lower bounds on the log-likelihood of ids; see `System.log_likelihood`."""
        return log_likelihood(self.system, ids, known, samples, seed)

    def mean(self, clean: Clean) -> Float[Tensor, "B L M"]:
        clean, state, t = self._start(clean)
        x0: Tensor = self.system.denoise(state, t, clean).x0
        return x0.cpu()

    def log_clean(self, clean: Clean) -> Float[Tensor, "B L V"]:
        clean, state, t = self._start(clean)
        context = self.system.context(clean)
        log: Tensor = self.system.denoise(state, t, clean, context=context).log_clean()
        return log.cpu()

    def hidden(self, clean: Clean) -> Float[Tensor, "B L D"]:
        clean, state, t = self._start(clean)
        with torch.no_grad():
            return self.system.call(self.system.trunk, state, t, clean).float().cpu()

    def _start(self, clean: Clean) -> tuple[Clean, State, Float[Tensor, " B"]]:
        clean = clean.to(self.device)
        process = self.system.process
        time = 1.0
        if process.fixed_time is not None:
            time = process.fixed_time
        t = torch.full((len(clean.valid),), time, device=self.device)
        return clean, process.prior(clean), t
