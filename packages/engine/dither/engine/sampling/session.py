"""The model as samplers see it, and the drawing of samples.

Letters: B batch, N samples or chosen positions, L length, M features, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast, overload

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.config.errors import NonFiniteOutput, Problem, Refused
from dither.registry.contracts.protocols import (
    Denoiser,
    FinishesPositions,
    TokenProcess,
)
from dither.registry.contracts.records import Clean, Noise, State, over
from dither.registry.contracts.spaces import Space, TokenSpace
from dither.registry.contracts.tensors import at_least_float32
from dither.registry.spec.base import shown

from ..training.device import to_device
from ..training.diffusion import Diffusion, linear_head
from ..training.randomness import Stream, preserved_generators, seed_generators
from .classifier_free_guidance import apply_guidance, rescale

__all__ = ["ModelCalls", "Session", "draw", "walk"]


@dataclass
class ModelCalls:
    """Counter of the rows that went through the model: samples times calls."""

    rows: int = 0


@dataclass(frozen=True)
class Branch:
    """Inputs of a model call: valid and cond of `clean`, and a cache of `start` positions."""

    clean: Clean
    cache: Any
    start: int = 0


class Session:
    """The model as a sampler calls it, for one batch of samples: `session(state, t)` is a prediction.

    `like` gives valid positions and conditions. Under classifier-free guidance the model is called
    twice, with and without the condition; a batch without the condition is not guided.

    Finished positions are cached: a state that is shorter than the sample continues the cached
    positions, or replaces them after `refresh`. Only a sample with a single field can come in
    pieces.

    A model with self-conditioning is given its last prediction of all positions, `previous`. Under
    guidance that is the guided one; it does not outlast `append` and `refresh`, after which a state
    is of other positions.
    """

    previous: Float[Tensor, "B L V"] | None = None

    def __init__(
        self, system: Diffusion, like: Clean, calls: ModelCalls | None = None
    ) -> None:
        self.system = system
        self.calls = calls or ModelCalls()
        self.scale = 1.0
        self.branches = [Branch(like, None)]
        # The next call reads the prediction of all positions.
        self._head = None if system.self_conditioning else _row_head(system)

        guidance = system.guidance
        if guidance is None or guidance.condition not in like.cond:
            return
        # A weight of 1 is the conditional model itself, at half the cost.
        if guidance.weight != 1:
            cond = dict(like.cond)
            del cond[guidance.condition]
            self.scale = guidance.weight
            self.branches.append(Branch(replace(like, cond=cond), None))

    def __call__(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        at: Bool[Tensor, "B L"] | None = None,
    ) -> Any:
        """Run the model on a state at time t; return its prediction.

        With `at`, return the prediction of these positions only, as one sample of N: `1 N V`.
        """
        system = self.system
        process = system.process
        noise = process.schedule(t)
        # No position is requested: the prediction of a batch of no samples, without the model.
        if at is not None and not at.any():
            vocab = _vocab(process.space)
            raw = torch.zeros(0, state.x.shape[1], vocab, device=at.device)
            return process.read(raw, state[:0], noise[:0]).at(at[:0])

        if system.self_conditioning:
            state = replace(state, previous=self.previous)
        raw = self._guided_raw(state, t, at)

        # A head or process that depends on the position has predicted all of them.
        if at is None or self._head is None:
            prediction = process.read(raw, state, noise)
            if system.self_conditioning:
                self._keep(prediction, at)
            return prediction if at is None else prediction.at(at)
        rows = State.of(state.x[at][None])
        sigma = over(noise.sigma, state.x).expand(at.shape)[at]
        rate = over(noise.rate, state.x).expand(at.shape)[at]
        return process.read(raw, rows, Noise(sigma[None], rate[None]))

    def _keep(self, prediction: Any, at: Bool[Tensor, "B L"] | None) -> None:
        """Keep a prediction for the next call."""
        x0 = self.system.expected_x0(prediction).detach()
        if at is not None:
            # A sample without requested positions was not to be predicted: its distribution must
            # not depend on the others of its batch.
            before = torch.zeros_like(x0) if self.previous is None else self.previous
            x0 = torch.where(over(at.any(1), x0), x0, before)
        self.previous = x0

    def _guided_raw(
        self,
        state: State,
        t: Float[Tensor, "B *L"],
        at: Bool[Tensor, "B L"] | None,
    ) -> Any:
        """Run the model with and, under guidance, without the condition; return its raw output.

        `B L V`; with `at` `1 N V`, if the head can be applied to single positions.
        """
        system = self.system
        head = None if at is None else self._head
        branches = self.branches
        inside = self._guided_times(t)
        if inside is not None and not inside.any():
            branches = branches[:1]

        raws = []
        for branch in branches:
            clean = self._piece(state.x, branch)
            self.calls.rows += len(state.x)
            if head is None:
                raw = system.raw(state, t, clean, branch.cache)
            else:
                requested = replace(state, requested=at)
                h = system.call(system.trunk, requested, t, clean, cache=branch.cache)
                raw = head(h[at])[None]
            raws.append(raw)

        if len(raws) == 1:
            return raws[0]
        if inside is not None and at is not None and head is not None:
            # Of the chosen positions: B *L -> 1 N
            inside = over(inside, at).expand(at.shape)[at][None]
        return self._guide(raws[0], raws[1], inside)

    def _guided_times(self, t: Float[Tensor, "B *L"]) -> Bool[Tensor, "B *L"] | None:
        """Return which times are in the guidance interval; None if all are."""
        guidance = self.system.guidance
        # Reading times waits for the device.
        whole = guidance is None or (guidance.start, guidance.stop) == (0, 1)
        if guidance is None or whole or len(self.branches) == 1:
            return None
        return (t >= guidance.start) & (t <= guidance.stop)

    def _guide(
        self, cond: Tensor, uncond: Tensor, inside: Bool[Tensor, "B *L"] | None
    ) -> Tensor:
        """Return guided output; outside of the interval, and of predicted variances, that with the condition."""
        guidance = self.system.guidance
        assert guidance is not None
        space = self.system.process.space
        raw = apply_guidance(cond, uncond, self.scale)
        if not isinstance(space, TokenSpace):
            width = space.width
            values = raw[..., :width]
            if guidance.rescale:
                valid = self._piece(values, self.branches[0]).valid
                values = rescale(values, cond[..., :width], guidance.rescale, valid)
            raw = torch.cat([values, cond[..., width:]], -1)
        if inside is None:
            return raw
        return torch.where(over(inside, raw), raw, cond)

    def append(self, x: Shaped[Tensor, "B L *M"]) -> None:
        """Append finished positions to the KV cache, at t = 0; later calls see them as context."""
        self.previous = None
        for i, branch in enumerate(self.branches):
            cache = branch.cache
            if cache is None:
                cache = cast(Denoiser, self.system.model).new_cache()
            self._append_to(cache, x, self._piece(x, branch))
            stop = branch.start + x.shape[1]
            self.branches[i] = replace(branch, cache=cache, start=stop)

    def _append_to(self, cache: Any, x: Shaped[Tensor, "B L *M"], clean: Clean) -> None:
        system = self.system
        model = system.model
        # Without it, an autoregressive model is called twice for each position.
        if isinstance(model, FinishesPositions) and model.finish(x, clean.valid, cache):
            return
        t = torch.zeros(len(x), device=x.device)
        system.call(system.trunk, State.of(x), t, clean, cache=cache, keep=True)
        self.calls.rows += len(x)

    def drop(self, count: int) -> None:
        """Forget the first `count` positions in the KV cache; later calls do not attend to them."""
        for branch in self.branches:
            branch.cache.drop(count)

    def refresh(
        self, x: Shaped[Tensor, "B L"], t: Float[Tensor, "B *L"], start: int
    ) -> None:
        """Cache the keys and values of a whole state at time t.

        Later states are its positions from `start` on.
        """
        system = self.system
        self.previous = None
        for i, branch in enumerate(self.branches):
            cache = cast(Denoiser, system.model).new_cache()
            clean = branch.clean
            # Known tokens are clean; the others have the noise of time t.
            state = replace(State.of(x), noisy=~clean.known)
            system.call(system.trunk, state, t, clean, cache=cache, keep=True)
            cache.rewind(start)
            self.branches[i] = replace(branch, cache=cache, start=start)
            self.calls.rows += len(x)

    def _piece(self, x: Tensor, branch: Branch) -> Clean:
        """Return the part of the sample that x is, after the cached positions."""
        like = branch.clean
        start = branch.start
        stop = start + x.shape[1]
        length = like.x0.shape[1]
        if start == 0 and stop == length:
            return like

        space = self.system.process.space
        if isinstance(space, TokenSpace) and len(space.fields) > 1:
            message = f"a sample of several fields cannot be drawn in pieces: {space}"
            raise ValueError(message)
        if stop > length:
            message = f"positions {start}..{stop} of a sample that has {length}"
            raise ValueError(message)
        return like.slice_positions(start, stop)


def _vocab(space: Space) -> int:
    if not isinstance(space, TokenSpace):
        raise TypeError(
            f"single positions are predicted for tokens only, not for {space}"
        )
    return space.vocab


class _RowHead:
    """A head that is one linear map, cast once to the precision of its products.

    Its output is float32 or more.
    """

    def __init__(self, linear: nn.Linear, precision: str) -> None:
        dtype = torch.bfloat16 if precision == "bfloat16" else linear.weight.dtype
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def __call__(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        raw = functional.linear(h.to(self.weight.dtype), self.weight, self.bias)
        return at_least_float32(raw)


def _row_head(system: Diffusion) -> _RowHead | None:
    """Return the head as a function of single positions; None if there is none."""
    process = system.process
    linear = linear_head(system)
    # FSDP gathers the weights of the head inside the model only.
    if linear is None or system.sharded or not isinstance(process, TokenProcess):
        return None
    # Several rows of the prior are one for each position.
    if len(process.prior_probs()) > 1:
        return None
    return _RowHead(linear, system.precision)


@torch.no_grad()
def walk(
    system: Diffusion, like: Clean, calls: ModelCalls | None = None
) -> Iterator[Shaped[Tensor, "B L *M"]]:
    """Run the sampler for one batch; yield every state, the clean sample last."""
    was_training = system.training
    system.eval()
    try:
        states = system.sampler(system.process, Session(system, like, calls), like)
        if not isinstance(states, Iterable):
            message = (
                f"the sampler of {system.sampler.__module__} returned {shown(states)}, "
                "expected states"
            )
            raise Refused(Problem(message, ("sampler",), code="plugin-failed"))
        yield from states
    finally:
        system.train(was_training)


MAX_BATCH = {"cpu": 250, "cuda": 1000}
"""Most samples of a batch by default."""
MAX_PROBABILITIES = 1 << 27
"""Most probabilities `B L V` of a batch by default: 0.5 GiB for each tensor of a prediction."""


@overload
def draw(
    system: Diffusion,
    like: Clean,
    seed: int,
    batch_size: int | None = None,
    *,
    watch: Callable[[Tensor], object] | None = None,
    calls: ModelCalls | None = None,
) -> Shaped[Tensor, "N L *M"]: ...


@overload
def draw(
    system: Diffusion,
    like: Clean,
    seed: int,
    batch_size: int | None = None,
    stopped: Callable[[], bool] = ...,
    watch: Callable[[Tensor], object] | None = None,
    calls: ModelCalls | None = None,
) -> Shaped[Tensor, "N L *M"] | None: ...


def draw(
    system: Diffusion,
    like: Clean,
    seed: int,
    batch_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[Tensor], object] | None = None,
    calls: ModelCalls | None = None,
) -> Shaped[Tensor, "N L *M"] | None:
    """Draw samples, and return them on the CPU; None once `stopped` returns True.

    The result is a function of the weights, `like`, the seed, the batch size and the device only;
    torch's generators are restored at the end.
    Samples of a batch share one stream of random numbers; batch i has the stream of (seed, i).

    Args:
        system: The system that draws.
        like: Fixed values, valid positions and conditions of the samples.
        seed: Seed of all batches.
        batch_size: Samples of a batch; by default all, at most `MAX_BATCH` and, for tokens, as many
            as `MAX_PROBABILITIES` allows.
        stopped: Checked before every step.
        watch: Called with every state of the first batch.
        calls: Counts model calls.

    Raises:
        NonFiniteOutput: The model predicts NaN or inf.
    """
    device = system.device
    size = batch_size or _default_batch(system.process.space, like, device)
    batches = []
    with preserved_generators(device), system.keep_casts():
        for index, start in enumerate(range(0, len(like.valid), size)):
            seed_generators(device, Stream.DRAWING, seed, index)
            batch = like[start : start + size]
            x = None
            # Before the copy, as reading values from the device would wait for it.
            for state in walk(system, to_device(batch.mark_unpadded(), device), calls):
                if stopped():
                    return None
                x = state
                if watch is not None and index == 0:
                    watch(state)

            _check_shape(system, x, batch)
            drawn = cast(Tensor, x).cpu()
            if not drawn.isfinite().all():
                raise NonFiniteOutput("a sample contains NaN or inf")
            batches.append(drawn)
    return torch.cat(batches) if batches else like.x0


def _default_batch(space: Space, like: Clean, device: torch.device) -> int:
    """Return the number of samples drawn together, limited by the size of a prediction."""
    limit = MAX_BATCH.get(device.type, MAX_BATCH["cpu"])
    if isinstance(space, TokenSpace):
        per_sample = like.valid.shape[1] * space.vocab
        limit = min(limit, MAX_PROBABILITIES // per_sample)
    return max(min(limit, len(like.valid)), 1)


def _check_shape(system: Diffusion, x: Any, like: Clean) -> None:
    """Raise Refused unless a sampler ended with one state of the shape of `like`."""
    expected = like.x0.shape
    if isinstance(x, Tensor) and x.shape == expected:
        return
    last = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
    message = (
        f"the sampler of {system.sampler.__module__} ended with {last}, "
        f"expected shape {tuple(expected)}"
    )
    raise Refused(Problem(message, ("sampler",), code="plugin-failed"))
