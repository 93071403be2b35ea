"""Task, process, model and loss put together: the whole data flow of training in one short function.

Letters: B batch, L length, M features, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.catalog import Catalog
from dither.registry.flow import Clean, Measured, Noised, State
from dither.registry.parts import EstimatingProcess, Loss, Process, Sampler, Task

from .blame import noted
from .experiment import Experiment
from .randomness import Stream, seed_generators

__all__ = ["Diffusion"]


class Diffusion(nn.Module):
    """A diffusion system.

    Args:
        task: What the data is.
        process: Noise on the way in, steps on the way back.
        model: An nn.Module with the methods of `parts.Denoiser`.
        loss: What training minimises.
        sampler: How samples are drawn.
        precision: bfloat16 runs the model, and only the model, under autocast.
        bound: Whether the loss is the diffusion part of a bound on -log p(x_0).
    """

    def __init__(
        self,
        task: Task,
        process: Process,
        model: nn.Module,
        loss: Loss,
        sampler: Sampler,
        precision: Literal["float32", "bfloat16"] = "float32",
        bound: bool = False,
    ) -> None:
        super().__init__()
        self.task, self.process, self.model, self.loss, self.sampler = task, process, model, loss, sampler
        self.precision: Literal["float32", "bfloat16"] = precision
        self.bound = bound

    @classmethod
    def build(cls, experiment: Experiment, catalog: Catalog | None = None) -> Self:
        """Build what an experiment names, on the CPU; the weights follow from its seed.

        Where a part fails, a note says which, and whose it is if a catalogue is given.
        """
        with noted(catalog):
            task = experiment.task.build()
            facts = experiment.process.facts(task.space)
            process = experiment.process.build(task.space)
            seed_generators(torch.device("cpu"), Stream.WEIGHTS, experiment.seed)
            model = experiment.model.build(process.space)
            loss, sampler = experiment.loss.build(facts), experiment.sampler.build()
        return cls(task, process, model, loss, sampler, experiment.train.precision, experiment.loss.bound)

    def with_model(self, model: nn.Module) -> Diffusion:
        """Return the same system around another model, such as an average of its weights."""
        other = Diffusion(self.task, self.process, model, self.loss, self.sampler, self.precision, self.bound)
        return other.train(model.training)

    def forward(self, clean: Clean, t: Float[Tensor, "B *L"] | None = None) -> Measured:
        """Clean batch -> loss per position, at random times unless they are given."""
        t = self.process.times(len(clean.valid), clean.valid.device) if t is None else t
        t, noised = self.noise(clean, t)
        state = replace(
            noised.state, asked=noised.wanted.flatten(2).any(2) if noised.wanted.ndim > 2 else noised.wanted
        )
        return self.loss(self.denoise(state, t, clean), noised)

    def noise(self, clean: Clean, t: Float[Tensor, "B *L"]) -> tuple[Float[Tensor, "B *L"], Noised]:
        """Return the times to tell the model, and states to measure the loss with; `t` as `process.times` draws it."""
        if isinstance(self.process, EstimatingProcess) and t.ndim == 1:
            return self.process.estimate(clean, t)
        return t, self.process.corrupt(clean, t)

    def denoise(self, state: State, t: Float[Tensor, "B *L"], clean: Clean, cache: Any = None) -> Any:
        """State and time -> prediction, in float32 outside the model. Of `clean` only valid and cond are looked at."""
        with self.autocast(state):
            raw = self.model(state, self.process.level(t), clean.valid, clean.cond, cache=cache)
        raw = raw.float() if self.precision == "bfloat16" else raw
        return self.process.read(raw, state, self.process.schedule(t))

    def autocast(self, state: State) -> AbstractContextManager[Any]:
        """The context in which the model runs."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(state.x.device.type, torch.bfloat16)

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters by part of the model, each counted once; what the model holds itself is "own"."""
        seen: set[int] = set()

        def new(module: nn.Module, recurse: bool) -> int:
            fresh = {id(p): p.numel() for p in module.parameters(recurse) if id(p) not in seen}
            seen.update(fresh)
            return sum(fresh.values())

        counts = {"own": new(self.model, False)}
        counts |= {name: new(child, True) for name, child in self.model.named_children()}
        return {name: count for name, count in counts.items() if count}
