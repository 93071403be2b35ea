"""The model as samplers see it, with its head applied only at the positions that are read, and the drawing of samples.

Letters: B batch, N samples or chosen positions, n those of one chunk, L length, M features, V
vocabulary, D width. `X` is the shape of a sample: `B L` or `B L M`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast, overload

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import Denoiser
from dither.registry.contracts.records import (
    Clean,
    Noise,
    State,
    none_chosen,
    over,
    prediction_rows,
)
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.spec.base import shown

from ..training.device import to_device
from ..training.diffusion import Diffusion, linear_head
from ..training.randomness import Stream, seed_generators

__all__ = ["ModelCalls", "RowHead", "RowwisePrediction", "Session", "draw", "guided", "walk"]


MIN_ROWWISE = 1 << 22
"""Numbers of raw output above which the head is applied to chosen positions only."""

CHUNK = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Numbers that the head computes at a time: fewer would read its weights too often, more would take
memory."""

CPU_PIECE = 1 << 20
"""Numbers of a chunk that are converted at a time on a CPU, so that they stay in its caches."""


def guided(
    cond: Float[Tensor, "..."], uncond: Float[Tensor, "..."], weight: float
) -> Float[Tensor, "..."]:
    """Return `uncond + weight * (cond - uncond)`, classifier-free guidance; an id that either excludes stays excluded.

    For features x_0, eps and velocity are each linear in the score at a given x_t, so this is
    guidance of the score (Ho and Salimans, 2022). For tokens raw output is log-probabilities up to
    a constant per position, or log ratios: p is proportional to cond^weight / uncond^(weight - 1)
    (Nisonoff et al., 2024; Schiff et al., 2024).
    """
    excluded = cond.isneginf() | uncond.isneginf()
    return torch.lerp(uncond, cond, weight).masked_fill(excluded, -torch.inf)


@dataclass
class ModelCalls:
    """Counter of the rows that went through the model: samples times calls."""

    rows: int = 0


class RowHead:
    """A head that is one linear map, converted to the precision of its products once; the result is float32 or more."""

    def __init__(self, linear: nn.Linear, precision: str) -> None:
        dtype = torch.bfloat16 if precision == "bfloat16" else linear.weight.dtype
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def __call__(self, h: Float[Tensor, "N D"]) -> Iterator[Float[Tensor, "1 n V"]]:
        """Yield raw output in chunks of positions."""
        size = max(1, CHUNK.get(h.device.type, CHUNK["cpu"]) // len(self.weight))
        for part in torch.split(h.to(self.weight.dtype), size):
            raw = functional.linear(part, self.weight, self.bias)[None]
            yield raw.to(torch.promote_types(raw.dtype, torch.float32))


@dataclass(frozen=True)
class Branch:
    """Inputs of one call of the model: valid and cond of `clean`, and a cache of `start` finished positions."""

    clean: Clean
    cache: Any
    start: int = 0


class RowwisePrediction:
    """A `RowPrediction` of a token process. The model is called on first use: never if nothing is read.

    Under guidance of a `weight` there is a conditional and an unconditional branch. `head` is the
    head if it can be applied to single positions; `calls` counts calls.
    """

    def __init__(
        self,
        system: Diffusion,
        state: State,
        t: Float[Tensor, "B *L"],
        branches: list[Branch],
        weight: float,
        head: RowHead | None,
        calls: ModelCalls,
    ) -> None:
        self.system = system
        self.t = t
        self.branches = branches
        self.weight = weight
        self.calls = calls
        self.state = replace(state, x=state.x.clone())  # the caller may write to its own
        rowwise = head is not None and state.x.numel() * len(head.weight) > MIN_ROWWISE
        self.head = head if rowwise else None
        self.chosen_only = rowwise
        self.predict = getattr(system.process, "predict", None)
        self._h: list[Tensor] | None = None
        self._requested: Tensor | None = None

    def log_clean(self) -> Float[Tensor, "B L V"]:
        return cast(Tensor, self.whole().log_clean())

    def log_context(self) -> Float[Tensor, "B L V"]:
        return cast(Tensor, self.whole().log_context())

    def log_score(self) -> Float[Tensor, "B L V"]:
        return cast(Tensor, self.whole().log_score())

    def warped(self, warp: Callable[[Tensor], Tensor]) -> RowwisePrediction:
        """Return a prediction of the same output, with `warp` applied to log p(x_0 | the other positions)."""
        return _Warped(self, warp)

    def whole(self) -> Any:
        return self._whole

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Any]:
        """Yield predictions of the chosen positions in order, each as one sample `1 n V`."""
        if none_chosen(where):
            return
        if self.head is None:
            yield from prediction_rows(self._whole, where)
            return
        noise = self.system.process.schedule(self.t)
        start = 0
        sigma, rate = (
            over(part, self.state.x).expand(where.shape)[where][None]
            for part in (noise.sigma, noise.rate)
        )
        x = self.state.x[where][None]
        for raw in self._raw_rows(where):
            part = slice(start, start + raw.shape[1])
            yield self.system.process.read(
                raw, State.of(x[:, part]), Noise(sigma[:, part], rate[:, part])
            )
            start = part.stop

    def _raw_rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "1 n V"]]:
        first = self._h is None
        head = cast(RowHead, self.head)
        if self._h is None or (
            self._requested is not None and bool((where & ~self._requested).any())
        ):
            self._run_trunk(where if first else None)
        assert self._h is not None
        for raws in zip(*(head(h[where]) for h in self._h), strict=True):
            raw = raws[0] if len(raws) == 1 else guided(raws[0], raws[1], self.weight)
            size = max(1, CPU_PIECE // raw.shape[-1]) if raw.device.type == "cpu" else raw.shape[1]
            yield from torch.split(raw, size, 1)

    @cached_property
    def _whole(self) -> Any:
        system = self.system
        state = self.state
        if self.head is not None:
            everywhere = torch.ones_like(state.x, dtype=torch.bool)
            raw = torch.cat(list(self._raw_rows(everywhere)), 1).view(*state.x.shape, -1)
        else:
            self._count_calls()
            raws = [
                system.raw(state, self.t, branch.clean, branch.cache) for branch in self.branches
            ]
            raw = raws[0] if len(raws) == 1 else guided(raws[0], raws[1], self.weight)
        return system.process.read(raw, state, system.process.schedule(self.t))

    def _run_trunk(self, requested: Bool[Tensor, "B L"] | None) -> None:
        """Call the model up to its head; it may skip positions that are not requested."""
        system = self.system
        state = replace(self.state, requested=requested)
        self._count_calls()
        self._h = [
            system.call(system.trunk, state, self.t, b.clean, cache=b.cache) for b in self.branches
        ]
        self._requested = requested

    def _count_calls(self) -> None:
        if any(
            branch.cache is not None and branch.cache.length != branch.start
            for branch in self.branches
        ):
            raise RuntimeError(
                "the cache has changed since this prediction was requested; read it before `append`"
            )
        self.calls.rows += len(self.state.x) * len(self.branches)


class _Warped(RowwisePrediction):
    def __init__(self, inner: RowwisePrediction, warp: Callable[[Tensor], Tensor]) -> None:
        self.inner = inner
        self.warp = warp
        self.predict = "plug-in"
        self.chosen_only = inner.chosen_only

    def whole(self) -> Any:
        return self.inner.whole().warped(self.warp)

    def rows(self, where: Bool[Tensor, "B L"]) -> Iterator[Any]:
        for rows in self.inner.rows(where):
            yield rows.warped(self.warp)


class Session:
    """The model for one batch of samples: `session(state, t)` is a prediction; finished positions are cached.

    A state that is shorter than the sample continues the cached positions, or replaces them after
    `refresh`; only a sample with a single field can come in pieces. Under guidance the model is
    called twice, with two caches; a sample without the condition is not guided. `like` gives valid
    positions and conditions.
    """

    def __init__(self, system: Diffusion, like: Clean, calls: ModelCalls | None = None) -> None:
        self.system = system
        self.calls = calls or ModelCalls()
        self.weight = 1.0 if system.guidance is None else system.guidance.weight
        self.branches = [Branch(like, None)]
        if (
            system.guidance is not None
            and self.weight != 1
            and system.guidance.condition in like.cond
        ):
            cond = {
                name: value
                for name, value in like.cond.items()
                if name != system.guidance.condition
            }
            self.branches.append(Branch(replace(like, cond=cond), None))
        self._rowwise = bool(getattr(system.process, "reads_rows", False))
        linear = linear_head(system) if self._rowwise else None
        self._head = None if linear is None else RowHead(linear, system.precision)

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Denoise: return the prediction for a state at time t."""
        system = self.system
        process = self.system.process
        branches = [replace(branch, clean=self._piece(state.x, branch)) for branch in self.branches]
        if self._rowwise:
            return RowwisePrediction(
                system, state, t, branches, self.weight, self._head, self.calls
            )
        self.calls.rows += len(state.x) * len(branches)
        if len(branches) == 1:
            return system.denoise(state, t, branches[0].clean, branches[0].cache)
        with_, without = (system.raw(state, t, branch.clean, branch.cache) for branch in branches)
        raw = guided(with_, without, self.weight)
        return process.read(raw, state, process.schedule(t))

    def append(self, x: Shaped[Tensor, "B L *M"]) -> None:
        """Append finished positions to the KV cache, at t = 0; later calls see them as context."""
        system = self.system
        t = torch.zeros(len(x), device=x.device)
        for i, branch in enumerate(self.branches):
            cache = (
                cast(Denoiser, system.model).new_cache() if branch.cache is None else branch.cache
            )
            system.call(
                system.trunk, State.of(x), t, self._piece(x, branch), cache=cache, keep=True
            )
            self.branches[i] = replace(branch, cache=cache, start=branch.start + x.shape[1])

    def refresh(self, x: Shaped[Tensor, "B L"], t: Float[Tensor, "B *L"], start: int) -> None:
        """Cache the keys and values of a whole state at time t; later states are its positions from `start` on."""
        system = self.system
        for i, branch in enumerate(self.branches):
            cache = cast(Denoiser, system.model).new_cache()
            clean = branch.clean
            state = replace(State.of(x), noisy=~clean.known)
            system.call(system.trunk, state, t, clean, cache=cache, keep=True)
            cache.rewind(start)
            self.branches[i] = replace(branch, cache=cache, start=start)
        self.calls.rows += len(x) * len(self.branches)

    def _piece(self, x: Tensor, branch: Branch) -> Clean:
        """Return the part of the sample that x is, after the cached positions."""
        like = branch.clean
        start = branch.start
        length = x.shape[1]
        whole = branch.clean.x0.shape[1]
        if length == whole and not start:
            return like
        space = self.system.process.space
        if isinstance(space, TokenSpace) and len(space.fields) > 1:
            raise ValueError(f"a sample of several fields cannot be drawn in pieces: {space}")
        if start + length > whole:
            raise ValueError(f"positions {start}..{start + length} of a sample that has {whole}")
        return like.slice_positions(start, start + length)


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
            message = f"the sampler of {system.sampler.__module__} returned {shown(states)}, expected states"
            raise Refused(Problem(message, ("sampler",), code="plugin-failed"))
        yield from states
    finally:
        system.train(was_training)


MAX_BATCH = {"cpu": 250, "cuda": 1000}
"""Most samples of a batch by default."""


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
    """Draw samples, and return them on the CPU; None once `stopped`, checked before every step, returns True.

    The result is a function of the weights, `like`, the seed, the batch size (all, at most
    `MAX_BATCH`) and the device only. Samples of a batch share one stream of random numbers; batch i
    has the stream of (seed, i). `watch` is called with every state of the first batch; `calls`
    counts model calls.
    """
    device = next(system.model.parameters()).device
    size = batch_size or min(max(len(like.valid), 1), MAX_BATCH.get(device.type, MAX_BATCH["cpu"]))
    done = []
    for index, start in enumerate(range(0, len(like.valid), size)):
        seed_generators(device, Stream.DRAWING, seed, index)
        x = None
        for state in walk(system, to_device(like[start : start + size], device), calls):
            if stopped():
                return None
            x = state
            if watch is not None and not index:
                watch(state)
        expected = like.x0[start : start + size].shape
        if not isinstance(x, Tensor) or x.shape != expected:
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            message = f"the sampler of {system.sampler.__module__} ended with {found}, expected shape {tuple(expected)}"
            raise Refused(Problem(message, ("sampler",), code="plugin-failed"))
        done.append(x.cpu())
    return torch.cat(done) if done else like.x0
