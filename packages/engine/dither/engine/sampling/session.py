"""The model as samplers see it, and the drawing of samples.

Letters: B batch, N samples, L length, M features. `X` is the shape of a sample: `B L` or `B L M`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry.flow.protocols import Denoiser
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import TokenSpace

from ..config.options import Guidance
from ..training.diffusion import Diffusion, linear_head
from ..training.randomness import Stream, seed_generators
from .row_prediction import Branch, ModelCalls, RowHead, RowwisePrediction, guided

__all__ = ["Session", "draw", "walk"]


class Session:
    """The model for one batch of samples: `session(state, t)` is a prediction; finished positions are cached.

    A state that is shorter than the sample continues the cached positions; only a sample with a single field can come
    in pieces. Under guidance the model is called twice, with two caches; a sample without the condition is not guided.
    `like` gives valid positions and conditions.
    """

    def __init__(self, system: Diffusion, like: Clean, calls: ModelCalls | None = None) -> None:
        self.system, self.calls = system, calls or ModelCalls()
        self.weight = 1.0 if system.guidance is None else system.guidance.weight
        without = _unconditional(like, system.guidance)
        self.branches = [Branch(part, None) for part in (like, without) if part is not None]
        self._rowwise = bool(getattr(system.process, "reads_rows", False))
        linear = linear_head(system) if self._rowwise else None
        self._head = None if linear is None else RowHead(linear, system.precision)

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Denoise: return the prediction for a state at time t."""
        system, process = self.system, self.system.process
        branches = [replace(branch, clean=self._piece(state.x, branch)) for branch in self.branches]
        if self._rowwise:
            return RowwisePrediction(system, state, t, branches, self.weight, self._head, self.calls)
        self.calls.rows += len(state.x) * len(branches)
        if len(branches) == 1:
            return system.denoise(state, t, branches[0].clean, branches[0].cache)
        with_, without = (system.raw(state, t, branch.clean, branch.cache) for branch in branches)
        raw = guided(with_, without, self.weight)
        return process.read(raw, state, process.schedule(t))

    def append(self, x: Shaped[Tensor, "B L *M"]) -> None:
        """Append finished positions to the KV cache, at t = 0; later calls see them as context."""
        system, t = self.system, torch.zeros(len(x), device=x.device)
        for i, branch in enumerate(self.branches):
            cache = cast(Denoiser, system.model).new_cache() if branch.cache is None else branch.cache
            system.call(system.trunk, State.of(x), t, self._piece(x, branch), cache=cache, keep=True)
            self.branches[i] = replace(branch, cache=cache, start=branch.start + x.shape[1])

    def _piece(self, x: Tensor, branch: Branch) -> Clean:
        """Return the part of the sample that x is, after the cached positions."""
        like, start, length, whole = branch.clean, branch.start, x.shape[1], branch.clean.x0.shape[1]
        if length == whole and not start:
            return like
        space = self.system.process.space
        if isinstance(space, TokenSpace) and len(space.fields) > 1:
            raise ValueError(f"a sample of several fields cannot be drawn in pieces: {space}")
        if start + length > whole:
            raise ValueError(f"positions {start}..{start + length} of a sample that has {whole}")
        return like.slice_positions(start, start + length)


def _unconditional(clean: Clean, guidance: Guidance | None) -> Clean | None:
    """Return the batch without the condition of guidance; None if it has no such condition or the weight is 1."""
    if guidance is None or guidance.weight == 1 or guidance.condition not in clean.cond:
        return None
    return replace(clean, cond={name: value for name, value in clean.cond.items() if name != guidance.condition})


@torch.no_grad()
def walk(system: Diffusion, like: Clean, calls: ModelCalls | None = None) -> Iterator[Shaped[Tensor, "B L *M"]]:
    """Run the sampler for one batch; yield every state, the clean sample last."""
    was_training = system.training
    system.eval()
    try:
        yield from system.sampler(system.process, Session(system, like, calls), like)
    finally:
        system.train(was_training)


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

    The result is a function of the weights, `like`, the seed, the batch size (by default all) and the device only.
    Samples of a batch share one stream of random numbers; batch i has the stream of (seed, i). `watch` is called with
    every state of the first batch; `calls` counts model calls.
    """
    device = next(system.model.parameters()).device
    size = batch_size or max(len(like.valid), 1)
    done = []
    for index, start in enumerate(range(0, len(like.valid), size)):
        seed_generators(device, Stream.DRAWING, seed, index)
        x = None
        for state in walk(system, like[start : start + size].to(device), calls):
            if stopped():
                return None
            x = state
            if watch is not None and not index:
                watch(state)
        assert x is not None, "a sampler yields the clean sample last"
        done.append(x.cpu())
    return torch.cat(done) if done else like.x0
