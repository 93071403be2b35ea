"""Task, process, model and loss as one module: the data flow of training in one short function.

Letters: B batch, L length, M features, V vocabulary, D width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import (
    FUSED_FROM,
    Denoiser,
    DistributionHead,
    DropsConditions,
    FusedLoss,
    LinearHead,
    Loss,
    PredictionMetric,
    Process,
    SampleMetric,
    Sampler,
    Task,
)
from dither.registry.contracts.records import (
    Clean,
    Context,
    FeaturePrediction,
    Measured,
    Noised,
    State,
    TokenPrediction,
    over,
)
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.contracts.times import as_times, require_clean
from dither.registry.plugins.catalog import Catalog

from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.options import Guidance, condition_labels
from .block_diffusion import BlockDiffusion
from .device import HALF, Precision, choose_precision
from .randomness import Stream, seed_generators

__all__ = ["Diffusion", "fused_head", "linear_head", "submodule"]

Times = Float[Tensor, "B *L"]
Denoise = Callable[[State, Float[Tensor, " B"]], Any]
"""State and time -> prediction."""

SELF_CONDITIONED = 0.5
"""Share of training samples that a model with self-conditioning sees with its own prediction."""


class Diffusion(nn.Module):
    """A diffusion system: `forward` is one training step up to the loss.

    Args:
        loss: Reported by evaluation.
        precision: bfloat16 and float16 run the model, and only the model, under autocast.
        bound: Whether `loss` is the diffusion part of a bound on -log p(x_0).
        denoises: Whether `loss` is least at the mean of x_0 given x_t.
        labels: Condition labels of all samples, by condition.
        metrics: Computed besides those of the task.
        known: Share of training samples with random known tokens.
        random_lengths: Share of training samples cut to a random length.
        self_conditioning: Whether the model reads its previous prediction.
        training_loss: Minimised by training; `loss` by default.
        experiment: Whose components these are; None for components of another origin.
    """

    def __init__(
        self,
        task: Task,
        process: Process,
        model: nn.Module,
        loss: Loss,
        sampler: Sampler,
        *,
        precision: Precision = "float32",
        bound: bool = False,
        denoises: bool = False,
        blocks: BlockDiffusion | None = None,
        guidance: Guidance | None = None,
        labels: Mapping[str, float] | None = None,
        metrics: Sequence[PredictionMetric | SampleMetric] = (),
        known: float = 0.0,
        random_lengths: float = 0.0,
        self_conditioning: bool = False,
        training_loss: Loss | None = None,
        experiment: Experiment | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        self.process = process
        self.model = model
        self.loss = loss
        self.sampler = sampler
        self.precision: Precision = precision
        self.bound = bound
        self.denoises = denoises
        self.blocks = blocks
        self.guidance = guidance
        self.labels = labels or {}
        self.metrics = tuple(metrics)
        self.known = known
        self.random_lengths = random_lengths
        self.self_conditioning = self_conditioning
        self.experiment = experiment
        # FSDP gathers the weights of the head inside the model only, so that no loss can use them.
        self.sharded = False

        self._training_loss = training_loss
        self._trunk: Callable[..., Tensor] | None = None
        self._compiled = False
        # A check of a protocol takes 10 us, so that those of each step are made here.
        self._predicts_distribution = isinstance(
            submodule(model, "head"), DistributionHead
        )
        self._drops_conditions = isinstance(model, DropsConditions)

    @classmethod
    def build(
        cls,
        experiment: Experiment,
        catalog: Catalog | None = None,
        task: Task | None = None,
    ) -> Self:
        """Build the components of an experiment on the CPU; initial weights are a function of its seed.

        With a catalog, exceptions name the plugin of the component that failed. `task` replaces the
        experiment's own.
        """
        with annotate_build_errors(catalog):
            if task is None:
                task = experiment.task.build()
            facts = experiment.process.facts(task.space)
            process = experiment.process.build(task.space)
            # After task and process, so that weights do not depend on what these draw.
            seed_generators(torch.device("cpu"), Stream.WEIGHTS, experiment.seed)
            model = experiment.model.build(process.space)
            loss = experiment.loss.build(facts)
            sampler = experiment.sampler.build()
            metrics = [
                metric.build(task.space) for metric in experiment.evaluate.metrics
            ]
        train = experiment.train
        return cls(
            task=task,
            process=process,
            model=model,
            loss=loss,
            sampler=sampler,
            precision=choose_precision(train.precision, model, train.device),
            bound=experiment.loss.bound,
            denoises=experiment.loss.denoises,
            blocks=BlockDiffusion.of(facts.space, experiment.model.facts()),
            guidance=experiment.sample.guidance,
            labels=condition_labels(experiment.sample, facts.space),
            metrics=metrics,
            known=train.known,
            random_lengths=train.random_lengths,
            self_conditioning=experiment.model.facts().self_conditioning,
            training_loss=experiment.loss.build_training(facts),
            experiment=experiment,
        )

    def with_model(self, model: nn.Module) -> Self:
        """Return the same system around another model, such as the average of its weights."""
        system = type(self)(
            task=self.task,
            process=self.process,
            model=model,
            loss=self.loss,
            sampler=self.sampler,
            precision=self.precision,
            bound=self.bound,
            denoises=self.denoises,
            blocks=self.blocks,
            guidance=self.guidance,
            labels=self.labels,
            metrics=self.metrics,
            known=self.known,
            random_lengths=self.random_lengths,
            self_conditioning=self.self_conditioning,
            training_loss=self._training_loss,
            experiment=self.experiment,
        )
        system.sharded = self.sharded
        return system.train(model.training)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def __repr__(self) -> str:
        """Return names of the components and the number of parameters, on one line."""
        name = type(self).__name__
        parameters = f"{sum(self.parameter_counts().values()):,} parameters"
        if self.experiment is None:
            return f"{name}({parameters} on {self.device})"
        components = ", ".join(self.experiment.component_names())
        return f"{name}({self.experiment.name}: {components}; {parameters} on {self.device})"

    @property
    def training_loss(self) -> Loss:
        """The loss that training minimises."""
        return self._training_loss or self.loss

    def forward(
        self, clean: Clean, t: float | Times | None = None, noised: Noised | None = None
    ) -> Measured:
        """Clean -> Noised -> Prediction -> Measured; `t` and `noised` are those of `prepare` unless given."""
        if t is None or noised is None:
            clean, t, noised = self.prepare(clean, t)
        t = as_times(t, clean)
        # The last block may skip positions without a target.
        target = noised.target_mask
        requested = target.flatten(2).any(2) if target.ndim > 2 else target
        state = replace(noised.state, requested=requested)
        context = self.context(clean)
        if noised.self_conditioned is not None:
            previous = self._first_pass(noised, t, clean, context)
            state = replace(state, previous=previous)

        head = fused_head(self)
        # Head and loss in one kernel: logits `B L V` never exist as a whole.
        if head is not None:
            h = self.call(self.trunk, state, t, clean, context)
            loss = cast(FusedLoss, self.training_loss)
            half = self.precision == "bfloat16"
            return loss.fused(
                h, head, self.process, noised, t, half=half, compiled=self._compiled
            )

        raw = self.raw(state, t, clean, context=context)
        prediction = self.process.read(raw, state, self.process.schedule(t))
        return self.training_loss(prediction, noised)

    def prepare(
        self, clean: Clean, t: float | Times | None = None
    ) -> tuple[Clean, Times, Noised]:
        """Draw everything random of a batch outside the model: lengths, known tokens, times, noise, dropped conditions.

        A single time is that of all samples; ValueError if it is outside [0, 1] or NaN, except on
        an accelerator, where finding it would synchronise.
        The draws cover the whole batch, so results do not depend on how it is split into
        micro-batches or ranks.
        """
        require_clean(clean)
        if self.random_lengths and self.training:
            clean = replace(
                clean, valid=random_lengths(clean.valid, self.random_lengths)
            )
        if self.known and self.training:
            clean = replace(
                clean, known=clean.known | random_known(clean.valid, self.known)
            )
        if t is None:
            t = self.times(len(clean.valid), clean.valid.device)
        t, noised = self.noise(clean, as_times(t, clean))
        if self._drops_conditions and clean.cond and self.training:
            model = cast(DropsConditions, self.model)
            clean = replace(clean, cond=dict(model.drop_conditions(clean.cond)))
        # Drawn last: all other draws of a batch are those of a model without self-conditioning.
        if self.self_conditioning and self.training:
            u = torch.rand(len(clean.valid), device=clean.valid.device)
            noised = replace(noised, self_conditioned=u < SELF_CONDITIONED)
        return clean, t, noised

    @torch.no_grad()
    def _first_pass(
        self, noised: Noised, t: Times, clean: Clean, context: Context | None
    ) -> Float[Tensor, "B L V"]:
        """Predict x_0 of the `self_conditioned` samples; zeros for the others.

        The pass is that of all samples, so that its shape and the collectives of ranks are fixed.
        """
        prediction = self.denoise(noised.state, t, clean, context=context)
        x0 = self.expected_x0(prediction)
        assert noised.self_conditioned is not None
        return torch.where(over(noised.self_conditioned, x0), x0, 0.0)

    def expected_x0(self, prediction: Any) -> Float[Tensor, "B L V"]:
        """Return a prediction as `State.previous` has it: probabilities of ids, or values."""
        if isinstance(self.process.space, TokenSpace):
            return cast(TokenPrediction, prediction).log_clean().exp()
        return cast(FeaturePrediction, prediction).x0

    def times(self, n: int, device: Any = None) -> Float[Tensor, "n *L"]:
        """Draw training times: one per sample, or per position with one value per block."""
        if self.blocks is not None:
            return self.blocks.times(self.process, n, device)
        return self.process.times(n, device)

    def stratified_times(self, n: int, strata: int) -> Float[Tensor, "n strata *L"]:
        """Draw times of n samples or of their blocks, each with one in every stratum, in order."""
        blocks = 1 if self.blocks is None else self.blocks.count
        times = [self.process.times(strata) for _ in range(n * blocks)]
        # n * N, K -> n * K, N
        table = torch.stack(times).view(n, blocks, strata).transpose(1, 2)
        if self.blocks is None:
            return table[..., 0]
        rows = self.blocks.spread(table.flatten())
        return rows.view(n, strata, -1)

    def noise(self, clean: Clean, t: Times) -> tuple[Times, Noised]:
        """Return the times that the model receives and the noised batch; `t` as `times` draws it."""
        if self.blocks is not None:
            return self.blocks.corrupt(self.process, clean, t)
        # An estimator chooses one time per sample; times per position are taken as they are.
        if t.ndim > 1:
            return t, self.process.corrupt(clean, t)
        return self.process.estimate(clean, t)

    def context(self, clean: Clean) -> Context | None:
        """Return the clean sample at t = 0, to which blocks attend; None without block diffusion."""
        if self.blocks is None:
            return None
        zero = torch.zeros(len(clean.x0), device=clean.x0.device)
        return Context(State.of(clean.x0), self.process.level(zero))

    def denoise(
        self,
        state: State,
        t: float | Times,
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """State and time -> prediction, in float32 outside the model. Of `clean`, only valid and cond are used."""
        t = as_times(t, clean)
        raw = self.raw(state, t, clean, cache, context)
        return self.process.read(raw, state, self.process.schedule(t))

    def raw(
        self,
        state: State,
        t: Times,
        clean: Clean,
        cache: Any = None,
        context: Context | None = None,
    ) -> Any:
        """Return the model output in float32: raw values `B L V`, or the distribution that its head defines."""
        model = self.trunk if self._predicts_distribution else self.model
        out = self.call(model, state, t, clean, context, cache)
        if self.precision in HALF:
            out = out.float()
        if not self._predicts_distribution:
            return out
        return cast(DistributionHead, self.model.head).distribution(out)

    def call(
        self,
        model: Callable[..., Tensor],
        state: State,
        t: Times,
        clean: Clean,
        context: Context | None = None,
        cache: Any = None,
        *,
        keep: bool = False,
    ) -> Tensor:
        """Call the model, or its trunk, under autocast; `keep` appends the positions to the cache."""
        # Positions that stay in the cache are clean, and known to be so without marks.
        if (
            isinstance(self.process.space, TokenSpace)
            and state.noisy is None
            and not keep
        ):
            state = replace(state, noisy=~clean.known)
        if clean.unpadded:
            state = replace(state, unpadded=True)

        # Only models that support it take an option, so that a simple one has four arguments.
        options: dict[str, Any] = {}
        if cache is not None:
            options["cache"] = cache
        if context is not None:
            options["context"] = context
        if keep:
            options["keep"] = True

        half = HALF.get(self.precision)
        with (
            nullcontext() if half is None else torch.autocast(state.x.device.type, half)
        ):
            return model(
                state, self.process.level(t), clean.valid, clean.cond, **options
            )

    def keep_casts(self) -> AbstractContextManager[Any]:
        """Return a context in which weights are cast to half precision once; they must not change in it."""
        # FSDP frees the weights of a layer after each call.
        if self.precision not in HALF or self.sharded:
            return nullcontext()
        # Autocast keeps what it has cast until the outermost of its contexts ends: without this
        # one, it casts all weights at every call, 28 % of that of a block after a KV cache.
        return torch.autocast(self.device.type, enabled=False)

    @property
    def trunk(self) -> Callable[..., Tensor]:
        """The model without its head, compiled if training compiles it separately."""
        return self._trunk or cast(Denoiser, self.model).trunk

    def bounded(self, clean: Clean, measured: Measured) -> Measured:
        """Complete a loss that is the diffusion part of a bound on -log p(x_0); return any other unchanged."""
        if not self.bound:
            return measured
        denoise = self.denoiser(clean)
        if self.blocks is None:
            return self.process.bound(clean, measured, denoise)
        return self.blocks.bound(self.process, clean, measured, denoise)

    def draw_bound(self, clean: Clean, t: Times) -> Measured:
        """Draw the bound on -log p(x_0) per position at times `t`, with the least variance that the process offers."""
        denoise = self.denoiser(clean)
        diffusion = self.draw_diffusion(clean, t, denoise)
        ends = self.draw_ends(clean, denoise)
        nats = diffusion.values + sum(ends.values())
        return Measured(nats, diffusion.weights, parts=diffusion.parts | ends)

    def draw_diffusion(self, clean: Clean, t: Times, denoise: Denoise) -> Measured:
        """Draw the bound without `draw_ends`; `denoise` is `denoiser(clean)`."""
        if self.blocks is None:
            return self.process.draw_diffusion(clean, t, self.loss, denoise)
        return self.blocks.draw_diffusion(self.process, clean, t, self.loss, denoise)

    def draw_ends(
        self, clean: Clean, denoise: Denoise
    ) -> dict[str, Float[Tensor, "B L"]]:
        """Draw the terms of the bound that `draw_diffusion` leaves out."""
        if self.blocks is None:
            return self.process.draw_ends(clean, denoise)
        return self.blocks.draw_ends(self.process, clean, denoise)

    def draw_whole_bound(
        self, clean: Clean, t: Times, denoise: Denoise
    ) -> Float[Tensor, "B L"] | None:
        """Draw the bound with its ends per position, if the process can with one call of the model."""
        if self.blocks is None:
            return self.process.draw_whole_bound(clean, t, denoise)
        return self.blocks.draw_whole_bound(self.process, clean, t, denoise)

    def draw_log_weight(self, clean: Clean) -> Float64[Tensor, "B N"] | None:
        """Return log w of a trajectory to each block of samples, or to each sample; None if the process has none."""
        denoise = self.denoiser(clean)
        if self.blocks is None:
            weights = self.process.draw_log_weight(clean, denoise)
            return None if weights is None else weights[:, None]
        rows = self.blocks.clean(clean)
        weights = self.process.draw_log_weight(rows, denoise)
        return None if weights is None else weights.view(-1, self.blocks.count)

    def denoiser(self, clean: Clean) -> Denoise:
        """Return the model as a function of state and time: of samples, or of their blocks."""
        blocks = self.blocks
        if blocks is None:
            return lambda state, t: self.denoise(state, t, clean)

        context = self.context(clean)

        def denoise(state: State, t: Float[Tensor, " BN"]) -> Any:
            raw = self.raw(
                blocks.state(state), blocks.spread(t), clean, context=context
            )
            return self.process.read(blocks.rows(raw), state, self.process.schedule(t))

        return denoise

    def like(self, n: int, seed: int) -> Clean:
        """Return the task's start of `n` samples, with the requested condition labels."""
        return self.with_labels(self.task.like(n, seed))

    def with_labels(self, like: Clean) -> Clean:
        """Return templates with the requested condition labels."""
        labels = {
            condition: torch.full(like.valid.shape[:1], label, device=like.valid.device)
            for condition, label in self.labels.items()
        }
        return replace(like, cond=like.cond | labels)

    def compile_model(self, mode: bool | str = True) -> None:
        """Compile the model, and its trunk separately where training calls only that; or each block separately."""
        self._compiled = True
        if mode != "blocks":
            self.model.compile()
            if self._predicts_distribution or fused_head(self) is not None:
                self._trunk = torch.compile(cast(Denoiser, self.model).trunk)
            return
        blocks = submodule(self.model, "blocks")
        if blocks is None:
            message = f"{type(self.model).__name__} has no blocks to compile; set train.compile = true"
            raise Refused(Problem(message, ("train", "compile"), code="misfit"))
        for block in cast(Iterable[nn.Module], blocks):
            block.compile()

    def eager(self) -> AbstractContextManager[Any]:
        """Return a context without compiled code, for evaluation and sampling.

        Shapes seen first decide how later shapes are compiled; a resumed run sees others first.
        """
        if not self._compiled:
            return nullcontext()
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance

    def parameter_counts(self) -> dict[str, int]:
        """Return the parameters of each submodule, shared ones counted once; those of the model itself are "own"."""
        counts: Counter[str] = Counter()
        for name, parameter in self.model.named_parameters():
            child, _, inner = name.partition(".")
            counts[child if inner else "own"] += parameter.numel()
        return dict(counts)


def submodule(model: nn.Module, name: str) -> nn.Module | None:
    """Return a direct submodule of a model, such as "head" or "blocks", or None."""
    return dict(model.named_children()).get(name)


def random_lengths(valid: Bool[Tensor, "B L"], share: float) -> Bool[Tensor, "B L"]:
    """Keep the first n valid positions in a `share` of samples, n uniform (LLaDA, Nie et al., 2025)."""
    u = torch.rand(len(valid), 2, 1, device=valid.device)
    # u is below 1, so that n is at most the number of valid positions.
    n = (u[:, 0] * valid.sum(1, keepdim=True)).floor() + 1
    cut = (u[:, 1] < share) & (valid.cumsum(1) > n)
    return valid & ~cut


def random_known(valid: Bool[Tensor, "B L"], share: float) -> Bool[Tensor, "B L"]:
    """Draw known positions in a `share` of samples: a prefix, a suffix, both ends, or each with one probability."""
    rows, length = valid.shape
    u = torch.rand(rows, 4, 1, device=valid.device)
    # Where a position is among the valid ones, in (0, 1).
    place = (valid.cumsum(1) - 0.5) / valid.sum(1, keepdim=True).clamp_min(1)
    low = u[:, :2].amin(1)
    high = u[:, :2].amax(1)

    prefix = place < u[:, 0]
    suffix = place > u[:, 0]
    ends = (place < low) | (place > high)
    scattered = torch.rand(rows, length, device=valid.device) < u[:, 0]

    # All four are computed, so that no branch waits for the device.
    kinds = torch.stack([prefix, suffix, ends, scattered], 1)
    kind = (4 * u[:, 2, 0]).long()
    chosen = kinds[torch.arange(rows, device=valid.device), kind]
    return chosen & (u[:, 3] < share) & valid


def linear_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map that is the head of a model over a single token field; None for any other head."""
    space = system.process.space
    head = submodule(system.model, "head")
    if not isinstance(space, TokenSpace) or len(space.fields) > 1:
        return None
    if isinstance(head, LinearHead) and isinstance(head.linear, nn.Linear):
        return head.linear
    return None


def fused_head(system: Diffusion) -> nn.Linear | None:
    """Return the linear map in the head of a model if its loss can be fused with it.

    None for a loss without a fused form, a small vocabulary, and sharded weights.
    """
    space = system.process.space
    if not isinstance(space, TokenSpace) or space.vocab < FUSED_FROM or system.sharded:
        return None
    if not isinstance(system.training_loss, FusedLoss):
        return None
    return linear_head(system)
