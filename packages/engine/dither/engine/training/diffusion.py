"""Task, process, model and loss put together: the whole data flow of training in one short function.

Letters: B batch, L length, M features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.distributions import DistributionHead
from dither.registry.flow.fused_loss import FUSED_FROM, FusedLoss
from dither.registry.flow.protocols import BoundedProcess, Denoiser, EstimatingProcess, Loss, Process, Sampler, Task
from dither.registry.flow.records import Clean, Context, Measured, Noised, State
from dither.registry.flow.spaces import TokenSpace
from dither.registry.plugins.catalog import Catalog

from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.options import Guidance, condition_labels
from .block_diffusion import BlockDiffusion
from .randomness import Stream, seed_generators

__all__ = ["Diffusion", "fused_head"]

OMISSIONS = ("skip_padding", "skip_unasked", "join_hidden")
"""What a model may leave out of a batch, which makes the shapes of its blocks others from step to step."""


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
        blocks: The blocks that the model is trained on, each behind the clean ones before it; None for whole samples.
        guidance: How samples are led by a condition; None for not at all.
        labels: Labels that all samples are asked to have, by condition.
    """

    def __init__(
        self,
        task: Task,
        process: Process,
        model: nn.Module,
        loss: Loss,
        sampler: Sampler,
        precision: Literal["float32", "tf32", "bfloat16"] = "float32",
        bound: bool = False,
        blocks: BlockDiffusion | None = None,
        guidance: Guidance | None = None,
        labels: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.task, self.process, self.model, self.loss, self.sampler = task, process, model, loss, sampler
        self.precision: Literal["float32", "tf32", "bfloat16"] = precision
        self.bound, self.blocks = bound, blocks
        self.guidance, self.labels = guidance, labels or {}
        self._trunk: Callable[..., Tensor] | None = None
        self._compiled = False
        self._estimating = process if isinstance(process, EstimatingProcess) else None  # to ask takes 10 microseconds

    @classmethod
    def build(cls, experiment: Experiment, catalog: Catalog | None = None, task: Task | None = None) -> Self:
        """Build what an experiment names, on the CPU; the weights follow from its seed.

        Where a part fails, a note says which, and whose it is if a catalogue is given. A task may stand in for its own.
        """
        with annotate_build_errors(catalog):
            task = experiment.task.build() if task is None else task
            facts = experiment.process.facts(task.space)
            process = experiment.process.build(task.space)
            seed_generators(torch.device("cpu"), Stream.WEIGHTS, experiment.seed)
            model = experiment.model.build(process.space)
            loss, sampler = experiment.loss.build(facts), experiment.sampler.build()
            blocks = BlockDiffusion.of(facts.space, experiment.model.facts())
        parts = task, process, model, loss, sampler
        asked = experiment.sample.guidance, condition_labels(experiment.sample, facts.space)
        return cls(*parts, experiment.train.precision, experiment.loss.bound, blocks, *asked)

    def with_model(self, model: nn.Module) -> Diffusion:
        """Return the same system around another model, such as an average of its weights."""
        parts = self.task, self.process, model, self.loss, self.sampler
        settings = self.precision, self.bound, self.blocks, self.guidance, self.labels
        return Diffusion(*parts, *settings).train(model.training)

    def like(self, n: int, seed: int) -> Clean:
        """What `n` samples are drawn from, as the task has it, under the labels that are asked for."""
        like = self.task.like(n, seed)
        labels = {
            name: like.valid.new_full((len(like.valid),), label, dtype=torch.int64)
            for name, label in self.labels.items()
        }
        return replace(like, cond=like.cond | labels) if labels else like

    def forward(self, clean: Clean, t: Float[Tensor, "B *L"] | None = None, noised: Noised | None = None) -> Measured:
        """Clean batch -> loss per position, at random times unless they are given; or what `prepare` made of it."""
        if noised is None:
            clean, t, noised = self.prepare(clean, t)
        assert t is not None, "what is noised was noised to some time"
        state = replace(
            noised.state,
            requested=noised.target_mask.flatten(2).any(2) if noised.target_mask.ndim > 2 else noised.target_mask,
        )
        linear, context = fused_head(self), self.context(clean)
        if linear is None:
            return self.loss(self.denoise(state, t, clean, context=context), noised)
        h = self._trunk_of(state, t, clean, context)
        half = self.precision == "bfloat16"
        return cast(FusedLoss, self.loss).fused(h, linear, self.process, noised, t, half=half)

    def prepare(
        self, clean: Clean, t: Float[Tensor, "B *L"] | None = None
    ) -> tuple[Clean, Float[Tensor, "B *L"], Noised]:
        """Draw all that is random about a batch apart from the model: times, noise, and conditions that are left out.

        Of all three some rows may be taken, so that nothing depends on the parts that a batch is measured in.
        """
        t = self.times(len(clean.valid), clean.valid.device) if t is None else t
        t, noised = self.noise(clean, t)
        leave_out = getattr(self.model, "leave_out", None)
        if leave_out is not None and self.training:
            clean = replace(clean, cond=dict(leave_out(clean.cond)))
        return clean, t, noised

    def compile_model(self, blocks: bool = False) -> None:
        """Compile the model, and its trunk by itself where training asks for no more; or only its blocks, one by one.

        Shapes are then the same in every step: what a model leaves out on a CPU, such as padding, blocks cannot.

        Raises:
            Refused: It has no blocks.
        """
        self._compiled = True
        if blocks:
            if not hasattr(self.model, "blocks"):
                what = f"{type(self.model).__name__} has no blocks that can be compiled one by one"
                raise Refused(Problem(what, ("train", "compile")))
            for name in OMISSIONS:
                if hasattr(self.model, name):
                    setattr(self.model, name, False)
            for block in cast(Iterable[nn.Module], self.model.blocks):
                block.compile()
            return
        self.model.compile()
        apart = fused_head(self) or isinstance(getattr(self.model, "head", None), DistributionHead)
        self._trunk = torch.compile(cast(Denoiser, self.model).trunk) if apart else None

    def eager(self) -> AbstractContextManager[Any]:
        """A context in which nothing compiled runs: for what is done once, or in shapes that training does not have.

        What was compiled first decides what later shapes are compiled to, and a resumed run would begin with others.
        """
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()

    def _trunk_of(
        self, state: State, t: Float[Tensor, "B *L"], clean: Clean, context: Context | None
    ) -> Float[Tensor, "B L D"]:
        """Return what the head reads."""
        behind: dict[str, Any] = {} if context is None else {"context": context}
        trunk = self._trunk or cast(Denoiser, self.model).trunk
        with self.autocast(state):
            h: Tensor = trunk(state, self.process.level(t), clean.valid, clean.cond, **behind)
        return h

    def times(self, n: int, device: Any = None) -> Float[Tensor, "n *L"]:
        """Draw random training times: one per sample, or one per block, which each of its positions is told."""
        return self.process.times(n, device) if self.blocks is None else self.blocks.times(self.process, n, device)

    def noise(self, clean: Clean, t: Float[Tensor, "B *L"]) -> tuple[Float[Tensor, "B *L"], Noised]:
        """Return the times to tell the model, and states to measure the loss with; `t` as `times` draws it."""
        if self.blocks is not None:
            return self.blocks.noise(self.process, clean, t)
        if self._estimating is not None and t.ndim == 1:
            return self._estimating.estimate(clean, t)
        return t, self.process.corrupt(clean, t)

    def context(self, clean: Clean) -> Context | None:
        """What each block looks back at: the clean sample, at t = 0. None for a model of whole samples."""
        if self.blocks is None:
            return None
        return Context(State.of(clean.x0), self.process.level(torch.zeros(len(clean.x0), device=clean.x0.device)))

    def denoise(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """State and time -> prediction, in float32 outside the model. Of `clean` only valid and cond are looked at."""
        return self.process.read(self.raw(state, t, clean, cache, context), state, self.process.schedule(t))

    def raw(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """Return what the model says, in float32: raw values `B L V`, or the `Law` that its head tells."""
        behind = {} if context is None else {"context": context}
        head = getattr(self.model, "head", None)
        teller = head if isinstance(head, DistributionHead) else None
        call: Callable[..., Tensor] = self.model
        if teller is not None:
            call = self._trunk or cast(Denoiser, self.model).trunk
        with self.autocast(state):
            raw: Tensor = call(state, self.process.level(t), clean.valid, clean.cond, cache=cache, **behind)
        raw = raw.float() if self.precision == "bfloat16" else raw
        return raw if teller is None else teller.law(raw)

    def bounded(self, clean: Clean, measured: Measured) -> Measured:
        """Make a bound on -log p(x_0) out of a loss that is the diffusion part of one; leave any other as it is."""
        process, blocks, context = self.process, self.blocks, self.context(clean)
        if not (self.bound and isinstance(process, BoundedProcess)):
            return measured
        if blocks is None:
            return process.bound(clean, measured, lambda state, t: self.denoise(state, t, clean))

        def denoise(state: State, t: Float[Tensor, " BN"]) -> Any:
            raw = self.raw(blocks.state(state), blocks.spread(t), clean, context=context)
            return process.read(blocks.rows(raw), state, process.schedule(t))

        return blocks.bound(process, clean, measured, denoise)

    def autocast(self, state: State) -> AbstractContextManager[Any]:
        """The context in which the model runs."""
        if self.precision != "bfloat16":
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


def fused_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map that is the head of a system, where its loss can be measured from what that reads.

    None for the generic way: a loss without a fused form, several fields, a head that is no single map, few ids, or a
    model that is cut up among ranks, whose weights come together only inside it.
    """
    space, linear = system.process.space, getattr(getattr(system.model, "head", None), "linear", None)
    if not isinstance(space, TokenSpace) or len(space.fields) > 1 or space.vocab < FUSED_FROM:
        return None
    if not isinstance(system.loss, FusedLoss) or not isinstance(linear, nn.Linear):
        return None
    return None if hasattr(linear.weight, "full_tensor") or hasattr(system.model, "unshard") else linear
