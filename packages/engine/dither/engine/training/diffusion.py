"""Task, process, model and loss as one module: the data flow of training in one short function.

Letters: B batch, L length, M features, V vocabulary, D width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import (
    FUSED_FROM,
    BoundedProcess,
    Denoiser,
    DistributionHead,
    DropsConditions,
    FusedLoss,
    ImportanceSampledProcess,
    Loss,
    PredictionMetric,
    Process,
    SampleMetric,
    Sampler,
    Task,
)
from dither.registry.contracts.records import Clean, Context, Measured, Noise, Noised, State
from dither.registry.contracts.spaces import Space, TokenSpace
from dither.registry.kinds import ModelFacts
from dither.registry.plugins.catalog import Catalog

from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.options import Guidance, condition_labels
from .device import choose_device
from .randomness import Stream, seed_generators

__all__ = ["BlockDiffusion", "Diffusion", "choose_precision", "fused_head", "linear_head"]

Times = Float[Tensor, "B *L"]
Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class BlockDiffusion:
    """The division of samples of length L into N blocks of size S, noised independently (BD3-LM, Arriola et al., 2025).

    Given the blocks before it, a block is a sample of its own, so a process receives blocks as the
    rows of a batch, and its times, estimators and bound hold for a block. A shorter last block is
    padded with invalid positions.
    """

    length: int
    size: int

    @classmethod
    def of(cls, space: Space, model: ModelFacts) -> Self | None:
        """Return the blocks that a model over this space is trained on, or None."""
        size = model.trained_blocks(space)
        return (
            None if size is None or not isinstance(space, TokenSpace) else cls(space.length, size)
        )

    @property
    def count(self) -> int:
        """Blocks of a sample, N."""
        return -(-self.length // self.size)

    def rows(self, x: Shaped[Tensor, "B L *V"]) -> Shaped[Tensor, "BN S *V"]:
        """Split samples into blocks; a shorter last block repeats its last position."""
        if self.length % self.size:
            x = x[
                :, torch.arange(self.count * self.size, device=x.device).clamp_max(self.length - 1)
            ]
        return x.reshape(-1, self.size, *x.shape[2:])

    def whole(self, rows: Shaped[Tensor, "BN S *V"]) -> Shaped[Tensor, "B L *V"]:
        """Join blocks into samples, the inverse of `rows`."""
        return rows.reshape(-1, self.count * self.size, *rows.shape[2:])[:, : self.length]

    def spread(self, values: Shaped[Tensor, " BN"]) -> Shaped[Tensor, "B L"]:
        """Repeat the value of each block at its positions."""
        return self.whole(values[:, None].expand(-1, self.size))

    def times(self, process: Process, n: int, device: Any = None) -> Float[Tensor, "n L"]:
        """Draw times for n samples, one per block, stratified over all blocks and then shuffled."""
        t = process.times(n * self.count, device)
        return self.spread(t[torch.randperm(len(t), device=device)])

    def block_times(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, " BN"]:
        """Return the time of each block: that of its first position, or of its sample."""
        t = t[:, None].expand(-1, self.length) if t.ndim == 1 else t
        return t[:, :: self.size].flatten()

    def clean(self, clean: Clean) -> Clean:
        """Split clean samples into blocks, without conditions, which a process does not use."""
        inside = torch.arange(self.count * self.size, device=clean.valid.device) < self.length
        valid = self.rows(clean.valid) & inside.view(self.count, -1).repeat(len(clean.valid), 1)
        return Clean(self.rows(clean.x0), valid, self.rows(clean.known))

    def noised(self, rows: Noised) -> Noised:
        """Join noised blocks into samples, with a noise level per position."""
        noise = Noise(self.spread(rows.noise.sigma), self.spread(rows.noise.rate))
        target_mask, valid, fixed = (
            self.whole(mask) for mask in (rows.target_mask, rows.valid, rows.fixed)
        )
        return Noised(
            self.whole(rows.x0),
            self.state(rows.state),
            noise,
            target_mask,
            valid,
            fixed,
            rows.prior,
        )

    def state(self, rows: State) -> State:
        return State(self.whole(rows.x), self.whole(rows.masked))

    def noise(
        self, process: Process, clean: Clean, t: Float[Tensor, "B *L"]
    ) -> tuple[Float[Tensor, "B L"], Noised]:
        """Noise each block independently; return the times that the model receives, per position, and the states."""
        rows = self.clean(clean)
        times = self.block_times(t)
        if isinstance(process, ImportanceSampledProcess):
            times, noised = process.estimate(rows, times)
        else:
            noised = process.corrupt(rows, times)
        return self.spread(times), self.noised(noised)

    def bound(
        self,
        process: BoundedProcess,
        clean: Clean,
        measured: Measured,
        denoise: Callable[[State, Float[Tensor, " BN"]], Any],
    ) -> Measured:
        """Return the bound on -log p(x_0), summed over blocks given the blocks before them.

        `measured` is the loss per position; `denoise` predicts from state and times of blocks.
        """
        loss = Measured(self.rows(measured.values), self.rows(measured.weights))
        bound = process.bound(self.clean(clean), loss, denoise)
        parts = {name: self.whole(part) for name, part in bound.parts.items()}
        return Measured(self.whole(bound.values), self.whole(bound.weights), parts=parts)


class Diffusion(nn.Module):
    """A diffusion system. `precision` bfloat16 runs the model, and only the model, under autocast.

    `training_loss` is minimised; `loss`, by default the same, is what evaluation reports. `bound`
    says whether `loss` is the diffusion part of a bound on -log p(x_0). `labels` are condition
    labels of all samples, by condition; `metrics` are computed besides those of the task; `known`
    is the share of training samples with random known tokens.
    """

    def __init__(
        self,
        task: Task,
        process: Process,
        model: nn.Module,
        loss: Loss,
        sampler: Sampler,
        precision: Precision = "float32",
        bound: bool = False,
        blocks: BlockDiffusion | None = None,
        guidance: Guidance | None = None,
        labels: Mapping[str, int] | None = None,
        metrics: Sequence[PredictionMetric | SampleMetric] = (),
        known: float = 0.0,
        training_loss: Loss | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        self.process = process
        self.model = model
        self.loss = loss
        self.sampler = sampler
        self.precision: Precision = precision
        self.bound = bound
        self.blocks = blocks
        self.guidance = guidance
        self.labels = labels or {}
        self.metrics = tuple(metrics)
        self._training_loss = training_loss
        self.known = known
        self._marks_known = isinstance(process.space, TokenSpace)
        self._trunk: Callable[..., Tensor] | None = None
        self._compiled = False
        self._noise_is_that_of_t = blocks is None and getattr(process, "estimator", None) == "time"
        self._importance = (
            process if isinstance(process, ImportanceSampledProcess) else None
        )  # a check takes 10 us

    @classmethod
    def build(
        cls, experiment: Experiment, catalog: Catalog | None = None, task: Task | None = None
    ) -> Self:
        """Build the components of an experiment on the CPU; initial weights are a function of its seed.

        With a catalog, exceptions name the plugin of the component that failed. `task` replaces the
        experiment's own.
        """
        with annotate_build_errors(catalog):
            task = experiment.task.build() if task is None else task
            facts = experiment.process.facts(task.space)
            process = experiment.process.build(task.space)
            seed_generators(torch.device("cpu"), Stream.WEIGHTS, experiment.seed)
            model = experiment.model.build(process.space)
            loss = experiment.loss.build(facts)
            sampler = experiment.sampler.build()
            blocks = BlockDiffusion.of(facts.space, experiment.model.facts())
            metrics = [metric.build(task.space) for metric in experiment.evaluate.metrics]
        labels = condition_labels(experiment.sample, facts.space)
        precision = choose_precision(experiment.train.precision, model, experiment.train.device)
        bound = experiment.loss.bound
        guidance = experiment.sample.guidance
        parts = (
            task,
            process,
            model,
            loss,
            sampler,
            precision,
            bound,
            blocks,
            guidance,
            labels,
            metrics,
        )
        return cls(*parts, experiment.train.known, experiment.loss.build_training(facts))

    @property
    def training_loss(self) -> Loss:
        """The loss that training minimises."""
        return self._training_loss or self.loss

    def with_model(self, model: nn.Module) -> Diffusion:
        """Return the same system around another model, such as the average of its weights."""
        components = (
            self.task,
            self.process,
            model,
            self.loss,
            self.sampler,
            self.precision,
            self.bound,
            self.blocks,
        )
        rest = self.guidance, self.labels, self.metrics, self.known, self._training_loss
        return Diffusion(*components, *rest).train(model.training)

    def forward(
        self, clean: Clean, t: Times | None = None, noised: Noised | None = None
    ) -> Measured:
        """Clean -> Noised -> Prediction -> Measured; `t` and `noised` are drawn unless given, as by `prepare`."""
        if t is None or noised is None:
            clean, t, noised = self.prepare(clean, t)
        if (linear := fused_head(self)) is not None:  # prediction and loss in one kernel
            return self._fused_loss(linear, clean, t, noised)
        raw = self.raw(noised.state, t, clean, context=self.context(clean))
        noise = noised.noise if self._noise_is_that_of_t else self.process.schedule(t)
        prediction = self.process.read(raw, noised.state, noise)
        return self.training_loss(prediction, noised)

    def prepare(self, clean: Clean, t: Times | None = None) -> tuple[Clean, Times, Noised]:
        """Draw everything random about a batch outside the model: times, noise, and dropped conditions.

        The draws cover the whole batch, so results do not depend on how it is split into
        micro-batches or ranks.
        """
        if self.known and self.training:
            clean = replace(clean, known=clean.known | random_known(clean.valid, self.known))
        device = clean.valid.device
        t, noised = self.noise(clean, self.times(len(clean.valid), device) if t is None else t)
        if self.training and clean.cond and isinstance(self.model, DropsConditions):
            clean = replace(clean, cond=dict(self.model.drop_conditions(clean.cond)))
        return clean, t, noised

    def times(self, n: int, device: Any = None) -> Float[Tensor, "n *L"]:
        """Draw training times: one per sample, or per position with one value per block."""
        return (
            self.process.times(n, device)
            if self.blocks is None
            else self.blocks.times(self.process, n, device)
        )

    def noise(self, clean: Clean, t: Times) -> tuple[Times, Noised]:
        """Return the times that the model receives and the noised batch; `t` as `times` draws it."""
        if self.blocks is not None:
            return self.blocks.noise(self.process, clean, t)
        if self._importance is not None and t.ndim == 1:
            return self._importance.estimate(clean, t)
        return t, self.process.corrupt(clean, t)

    def denoise(
        self,
        state: State,
        t: Times,
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """State and time -> prediction, in float32 outside the model. Of `clean`, only valid and cond are used."""
        return self.process.read(
            self.raw(state, t, clean, cache, context), state, self.process.schedule(t)
        )

    def raw(
        self,
        state: State,
        t: Times,
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """Return the model output in float32: raw values `B L V`, or the distribution that its head defines."""
        head = getattr(self.model, "head", None)
        if isinstance(head, DistributionHead):
            h = self.call(self.trunk, state, t, clean, context, cache)
            return head.distribution(h.float() if self.precision == "bfloat16" else h)
        raw = self.call(self.model, state, t, clean, context, cache)
        return raw.float() if self.precision == "bfloat16" else raw

    def context(self, clean: Clean) -> Context | None:
        """Return the clean sample at t = 0, to which blocks attend; None without block diffusion."""
        if self.blocks is None:
            return None
        return Context(
            State.of(clean.x0),
            self.process.level(torch.zeros(len(clean.x0), device=clean.x0.device)),
        )

    def _fused_loss(
        self,
        linear: nn.Linear,
        clean: Clean,
        t: Times,
        noised: Noised,
    ) -> Measured:
        """Return the loss with head and loss in one kernel, so that logits `B L V` are never held as a whole."""
        h = self.call(self.trunk, noised.state, t, clean, self.context(clean))
        half = self.precision == "bfloat16"
        return cast(FusedLoss, self.training_loss).fused(
            h, linear, self.process, noised, t, half=half
        )

    def bounded(self, clean: Clean, measured: Measured) -> Measured:
        """Complete a loss that is the diffusion part of a bound on -log p(x_0); return any other unchanged."""
        process = self.process
        blocks = self.blocks
        context = self.context(clean)
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
        shape = (len(like.valid),)
        labels = {
            k: like.valid.new_full(shape, label, dtype=torch.int64)
            for k, label in self.labels.items()
        }
        return replace(like, cond=like.cond | labels) if labels else like

    @property
    def trunk(self) -> Callable[..., Tensor]:
        """The model without its head, compiled if training compiles it separately."""
        return self._trunk or cast(Denoiser, self.model).trunk

    def call(
        self,
        model: Callable[..., Tensor],
        state: State,
        t: Times,
        clean: Clean,
        context: Context | None = None,
        cache: Any = None,
        **options: Any,
    ) -> Tensor:
        """Call the model, or its trunk, under autocast."""
        if (
            self._marks_known and state.noisy is None and not options.get("keep")
        ):  # the context has no marks
            state = replace(state, noisy=~clean.known)
        options |= {} if cache is None else {"cache": cache}
        options |= {} if context is None else {"context": context}
        half = self.precision == "bfloat16"
        with torch.autocast(state.x.device.type, torch.bfloat16) if half else nullcontext():
            return model(state, self.process.level(t), clean.valid, clean.cond, **options)

    def compile_model(self, mode: bool | str = True) -> None:
        """Compile the model, and its trunk separately where training calls only that; or each block."""
        self._compiled = True
        if mode != "blocks":
            self.model.compile()
            separate = fused_head(self) or isinstance(
                getattr(self.model, "head", None), DistributionHead
            )
            self._trunk = torch.compile(cast(Denoiser, self.model).trunk) if separate else None
            return
        if not hasattr(self.model, "blocks"):
            what = f"{type(self.model).__name__} has no blocks to compile; set train.compile = true"
            raise Refused(Problem(what, ("train", "compile"), code="misfit"))
        for block in cast(Iterable[nn.Module], self.model.blocks):
            block.compile()

    def eager(self) -> AbstractContextManager[Any]:
        """Return a context without compiled code, for evaluation and sampling.

        Shapes seen first decide how later shapes are compiled; a resumed run sees others first.
        """
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()

    def parameter_counts(self) -> dict[str, int]:
        """Return the parameters of each submodule, shared ones counted once; those of the model itself are "own"."""
        counts: Counter[str] = Counter()
        for name, parameter in self.model.named_parameters():
            child, _, inner = name.partition(".")
            counts[child if inner else "own"] += parameter.numel()
        return dict(counts)


LARGE_MATRIX = 1 << 18
"""Elements of the largest linear layer from which on bfloat16 pays on a CPU."""


def largest_layer(model: nn.Module) -> int:
    """Return the number of weights of the largest linear layer, without reading any."""
    return max(
        (m.in_features * m.out_features for m in model.modules() if isinstance(m, nn.Linear)),
        default=0,
    )


def choose_precision(
    option: Precision | Literal["auto"], model: nn.Module, device: str
) -> Precision:
    """Return `train.precision`; for "auto" bfloat16 where it is faster than float32."""
    if option != "auto":
        return option
    kind = choose_device(device).type
    if kind == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    has_bf16 = getattr(
        torch.cpu, "_is_avx512_bf16_supported", lambda: False
    )  # all CPUs with AMX have these too
    return (
        "bfloat16"
        if kind == "cpu" and largest_layer(model) >= LARGE_MATRIX and has_bf16()
        else "float32"
    )


def random_known(valid: Bool[Tensor, "B L"], share: float) -> Bool[Tensor, "B L"]:
    """Draw known positions in a `share` of samples: a prefix, a suffix, both ends, or each with one probability."""
    rows, length = valid.shape
    u = torch.rand(rows, 4, 1, device=valid.device)
    place = (valid.cumsum(1) - 0.5) / valid.sum(1, keepdim=True).clamp_min(1)
    low = u[:, :2].amin(1)
    high = u[:, :2].amax(1)
    scattered = torch.rand(rows, length, device=valid.device) < u[:, 0]
    kinds = torch.stack(
        [place < u[:, 0], place > u[:, 0], (place < low) | (place > high), scattered], 1
    )
    kind = (4 * u[:, 2, 0]).long()
    return kinds[torch.arange(rows, device=valid.device), kind] & (u[:, 3] < share) & valid


def linear_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map that is the head of a model over a single token field; None for any other head."""
    space = system.process.space
    linear = getattr(getattr(system.model, "head", None), "linear", None)
    single = isinstance(space, TokenSpace) and len(space.fields) == 1
    return linear if single and isinstance(linear, nn.Linear) else None


def fused_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map in the head of a model if its loss can be fused with it.

    None for a loss without a fused form, a small vocabulary, and FSDP, which gathers weights only
    inside the model.
    """
    space = system.process.space
    if (
        not isinstance(space, TokenSpace)
        or space.vocab < FUSED_FROM
        or (linear := linear_head(system)) is None
    ):
        return None
    sharded = hasattr(system.model, "unshard") or hasattr(linear.weight, "full_tensor")
    return linear if isinstance(system.training_loss, FusedLoss) and not sharded else None
