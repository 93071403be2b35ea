"""Task, process, model and loss as one module: the data flow of training in one short function.

Letters: B batch, L length, M features, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.distributions import DistributionHead
from dither.registry.flow.fused_loss import FUSED_FROM, FusedLoss
from dither.registry.flow.protocols import (
    BoundedProcess,
    Denoiser,
    ImportanceSampledProcess,
    Loss,
    PredictionMetric,
    Process,
    SampleMetric,
    Sampler,
    Task,
)
from dither.registry.flow.records import Clean, Context, Measured, Noised, State
from dither.registry.flow.spaces import TokenSpace
from dither.registry.plugins.catalog import Catalog

from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.options import Guidance, condition_labels
from .block_diffusion import BlockDiffusion
from .randomness import Stream, seed_generators

__all__ = ["Diffusion", "fused_head"]

SHAPE_CHANGING = ("skip_unrequested", "merge_masked", "drop_padding")
"""Switches of a model that drop positions from a batch, so that the shapes of its blocks vary from step to step."""


class Diffusion(nn.Module):
    """A diffusion system.

    Args:
        task: The data.
        process: The forward process and its reverse steps.
        model: An nn.Module with the methods of `Denoiser`.
        loss: What training minimises.
        sampler: Draws samples.
        precision: bfloat16 runs the model, and only the model, under autocast.
        bound: Whether the loss is the diffusion part of a bound on -log p(x_0).
        blocks: Blocks of block diffusion; None to noise whole samples.
        guidance: Classifier-free guidance; None for none.
        labels: Condition labels of all samples, by condition.
        metrics: Metrics besides those of the task.
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
        metrics: Sequence[PredictionMetric | SampleMetric] = (),
    ) -> None:
        super().__init__()
        self.task, self.process, self.model, self.loss, self.sampler = task, process, model, loss, sampler
        self.precision: Literal["float32", "tf32", "bfloat16"] = precision
        self.bound, self.blocks = bound, blocks
        self.guidance, self.labels, self.metrics = guidance, labels or {}, tuple(metrics)
        self._trunk: Callable[..., Tensor] | None = None
        self._compiled = False
        self._estimating = (
            process if isinstance(process, ImportanceSampledProcess) else None
        )  # the check takes 10 microseconds

    @classmethod
    def build(cls, experiment: Experiment, catalog: Catalog | None = None, task: Task | None = None) -> Self:
        """Build the components of an experiment on the CPU; initial weights are a function of its seed.

        With a catalog, exceptions name the plugin of the component that failed. `task` replaces the experiment's own.
        """
        with annotate_build_errors(catalog):
            task = experiment.task.build() if task is None else task
            facts = experiment.process.facts(task.space)
            process = experiment.process.build(task.space)
            seed_generators(torch.device("cpu"), Stream.WEIGHTS, experiment.seed)
            model = experiment.model.build(process.space)
            loss, sampler = experiment.loss.build(facts), experiment.sampler.build()
            blocks = BlockDiffusion.of(facts.space, experiment.model.facts())
            metrics = [metric.build(task.space) for metric in experiment.evaluate.metrics]
        labels = condition_labels(experiment.sample, facts.space)
        precision, bound, guidance = experiment.train.precision, experiment.loss.bound, experiment.sample.guidance
        return cls(task, process, model, loss, sampler, precision, bound, blocks, guidance, labels, metrics)

    def with_model(self, model: nn.Module) -> Diffusion:
        """Return the same system around another model, such as the average of its weights."""
        components = self.task, self.process, model, self.loss, self.sampler
        options = self.precision, self.bound, self.blocks, self.guidance, self.labels
        return Diffusion(*components, *options, self.metrics).train(model.training)

    def forward(self, clean: Clean, t: Float[Tensor, "B *L"] | None = None, noised: Noised | None = None) -> Measured:
        """Clean -> Noised -> Prediction -> Measured; `t` and `noised` are drawn unless given, as by `prepare`."""
        if t is None or noised is None:
            clean, t, noised = self.prepare(clean, t)
        linear = fused_head(self)
        if linear is not None:
            return self.fused_loss(linear, clean, t, noised)
        return self.loss(self.denoise(requested(noised), t, clean, context=self.context(clean)), noised)

    def prepare(
        self, clean: Clean, t: Float[Tensor, "B *L"] | None = None
    ) -> tuple[Clean, Float[Tensor, "B *L"], Noised]:
        """Draw everything random about a batch outside the model: times, noise, and dropped conditions.

        The draws cover the whole batch, so results do not depend on how it is split into micro-batches or ranks.
        """
        t = self.times(len(clean.valid), clean.valid.device) if t is None else t
        t, noised = self.noise(clean, t)
        drop_conditions = getattr(self.model, "drop_conditions", None)
        if drop_conditions is not None and self.training:
            clean = replace(clean, cond=dict(drop_conditions(clean.cond)))
        return clean, t, noised

    def times(self, n: int, device: Any = None) -> Float[Tensor, "n *L"]:
        """Draw training times: one per sample, or per position with one value per block."""
        return self.process.times(n, device) if self.blocks is None else self.blocks.times(self.process, n, device)

    def noise(self, clean: Clean, t: Float[Tensor, "B *L"]) -> tuple[Float[Tensor, "B *L"], Noised]:
        """Return the times that the model receives and the noised batch; `t` as `times` draws it."""
        if self.blocks is not None:
            return self.blocks.noise(self.process, clean, t)
        if self._estimating is not None and t.ndim == 1:
            return self._estimating.estimate(clean, t)
        return t, self.process.corrupt(clean, t)

    def denoise(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """State and time -> prediction, in float32 outside the model. Of `clean`, only valid and cond are used."""
        return self.process.read(self.raw(state, t, clean, cache, context), state, self.process.schedule(t))

    def raw(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """Return the model output in float32: raw values `B L V`, or the distribution that its head defines."""
        head = getattr(self.model, "head", None)
        distribution = head if isinstance(head, DistributionHead) else None
        call: Callable[..., Tensor] = self.model if distribution is None else self.trunk
        raw = self._call(call, state, t, clean, context, cache=cache)
        raw = raw.float() if self.precision == "bfloat16" else raw
        return raw if distribution is None else distribution.distribution(raw)

    def context(self, clean: Clean) -> Context | None:
        """Return the clean sample at t = 0, to which blocks attend; None without block diffusion."""
        if self.blocks is None:
            return None
        return Context(State.of(clean.x0), self.process.level(torch.zeros(len(clean.x0), device=clean.x0.device)))

    def fused_loss(self, linear: nn.Linear, clean: Clean, t: Float[Tensor, "B *L"], noised: Noised) -> Measured:
        """Return the loss with head and loss in one kernel, so that logits `B L V` are never held as a whole."""
        h = self._call(self.trunk, requested(noised), t, clean, self.context(clean))
        half = self.precision == "bfloat16"
        return cast(FusedLoss, self.loss).fused(h, linear, self.process, noised, t, half=half)

    def bounded(self, clean: Clean, measured: Measured) -> Measured:
        """Complete a loss that is the diffusion part of a bound on -log p(x_0); return any other unchanged."""
        process, blocks, context = self.process, self.blocks, self.context(clean)
        if not (self.bound and isinstance(process, BoundedProcess)):
            return measured
        if blocks is None:
            return process.bound(clean, measured, lambda state, t: self.denoise(state, t, clean))

        def denoise(state: State, t: Float[Tensor, " BN"]) -> Any:
            raw = self.raw(blocks.state(state), blocks.spread(t), clean, context=context)
            return process.read(blocks.rows(raw), state, process.schedule(t))

        return blocks.bound(process, clean, measured, denoise)

    def like(self, n: int, seed: int) -> Clean:
        """Return the task's start of `n` samples, with the requested condition labels."""
        like = self.task.like(n, seed)
        labels = {
            name: like.valid.new_full((len(like.valid),), label, dtype=torch.int64)
            for name, label in self.labels.items()
        }
        return replace(like, cond=like.cond | labels) if labels else like

    @property
    def trunk(self) -> Callable[..., Tensor]:
        """The model without its head, compiled if training compiles it separately."""
        return self._trunk or cast(Denoiser, self.model).trunk

    def _call(
        self,
        call: Callable[..., Tensor],
        state: State,
        t: Float[Tensor, "B *L"],
        clean: Clean,
        context: Context | None,
        **options: Any,
    ) -> Tensor:
        """Call the model or its trunk under autocast."""
        if context is not None:
            options["context"] = context
        with self.autocast(state):
            return call(state, self.process.level(t), clean.valid, clean.cond, **options)

    def autocast(self, state: State) -> AbstractContextManager[Any]:
        """Return the context in which the model runs."""
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(state.x.device.type, torch.bfloat16)

    def compile_model(self, blocks: bool = False) -> None:
        """Compile the model, and its trunk separately where training calls only that; or each block separately.

        With `blocks`, optimisations that change shapes from step to step, such as skipping padding, are switched off.

        Raises:
            Refused: The model has no blocks.
        """
        self._compiled = True
        if not blocks:
            self.model.compile()
            separate = fused_head(self) or isinstance(getattr(self.model, "head", None), DistributionHead)
            self._trunk = torch.compile(cast(Denoiser, self.model).trunk) if separate else None
            return
        if not hasattr(self.model, "blocks"):
            what = f"{type(self.model).__name__} has no blocks to compile; set train.compile = true"
            raise Refused(Problem(what, ("train", "compile"), code="misfit"))
        for name in SHAPE_CHANGING:
            if hasattr(self.model, name):
                setattr(self.model, name, False)
        for block in cast(Iterable[nn.Module], self.model.blocks):
            block.compile()

    def eager(self) -> AbstractContextManager[Any]:
        """Return a context without compiled code, for evaluation and sampling.

        Shapes seen first decide how later shapes are compiled; a resumed run sees others first.
        """
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters by submodule, shared ones counted once; those of the model itself are "own"."""
        seen: set[int] = set()

        def count(module: nn.Module, recurse: bool) -> int:
            new = {id(p): p.numel() for p in module.parameters(recurse) if id(p) not in seen}
            seen.update(new)
            return sum(new.values())

        counts = {"own": count(self.model, False)}
        counts |= {name: count(child, True) for name, child in self.model.named_children()}
        return {name: number for name, number in counts.items() if number}


def requested(noised: Noised) -> State:
    """Return the state, marked with the positions whose prediction the loss uses; the model may skip the others."""
    mask = noised.target_mask
    return replace(noised.state, requested=mask.flatten(2).any(2) if mask.ndim > 2 else mask)


def fused_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map in the head of a model if its loss can be fused with it.

    None for a loss without a fused form, several fields, a small vocabulary, a head that is not one linear map, and
    FSDP, which gathers weights only inside the model.
    """
    space, linear = system.process.space, getattr(getattr(system.model, "head", None), "linear", None)
    if not isinstance(space, TokenSpace) or len(space.fields) > 1 or space.vocab < FUSED_FROM:
        return None
    if not isinstance(system.loss, FusedLoss) or not isinstance(linear, nn.Linear):
        return None
    return None if hasattr(linear.weight, "full_tensor") or hasattr(system.model, "unshard") else linear
