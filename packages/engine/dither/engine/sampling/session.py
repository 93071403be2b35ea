"""What a sampler talks to, and the drawing of samples.

Letters: B batch, N samples, L length, M features. `X` is the shape of a sample: `B L` or `B L M`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast
from weakref import ref

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry.flow.protocols import Denoiser, PatientProcess
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import TokenSpace

from ..training.diffusion import Diffusion
from ..training.randomness import Stream, seed_generators
from .classifier_free_guidance import unconditional
from .lazy_output import GuidedLazyOutput, LazyOutput, ModelCalls, RowHead

__all__ = ["Session", "draw", "walk"]


class Session:
    """The model, the meaning of its output, and its memory of finished positions, for one batch of samples.

    A state that is shorter than the sample stands behind the remembered positions. Only a sample with a single field
    can come in pieces like that. Where the process can wait, the model is called when a prediction is first asked: a
    step that moves nothing costs no call, and exactly the same comes out. Under guidance the model is called twice, and
    has two memories; a sample of which the condition is not told is not guided.

    Args:
        system: What denoises.
        like: Which positions are valid, and the conditions.
        spent: Where calls are counted.
    """

    def __init__(self, system: Diffusion, like: Clean, spent: ModelCalls | None = None) -> None:
        self.system, self.like, self.spent = system, like, spent or ModelCalls()
        self.plain = unconditional(like, system.guidance)
        self.weight = 1.0 if system.guidance is None else system.guidance.weight
        self.cache: Any = None
        self.plain_cache: Any = None
        self.start = 0
        self._pending: Callable[[], LazyOutput | GuidedLazyOutput | None] = lambda: None

    @cached_property
    def _head(self) -> RowHead | None:
        return RowHead.of(self.system)

    def __call__(self, state: State, t: Float[Tensor, "B *L"]) -> Any:
        """Denoise: a state at time t -> a prediction."""
        system, process = self.system, self.system.process
        if self.plain is None and not isinstance(process, PatientProcess):
            self.spent.rows += len(state.x)
            return system.denoise(state, t, self._piece(state.x, self.like), self.cache)
        told = self._later(state, t, self.like, self.cache)
        raw: LazyOutput | GuidedLazyOutput = told
        if self.plain is not None:
            raw = GuidedLazyOutput(told, self._later(state, t, self.plain, self.plain_cache), self.weight)
        if not isinstance(process, PatientProcess):
            return process.read(raw.whole(), state, process.schedule(t))
        self._pending = ref(raw)
        return process.read_later(raw, raw.state, process.schedule(t))

    def append(self, x: Shaped[Tensor, "B L *M"]) -> None:
        """Put finished positions behind those already remembered, at t = 0; later calls see them as context."""
        pending = self._pending()
        if pending is not None:  # somebody may still ask it, and it is to see the memory as it was
            pending.call()
        self.cache = self._remembered(x, self.like, self.cache)
        if self.plain is not None:
            self.plain_cache = self._remembered(x, self.plain, self.plain_cache)
        self.start += x.shape[1]

    def _later(self, state: State, t: Float[Tensor, "B *L"], like: Clean, cache: Any) -> LazyOutput:
        return LazyOutput(self.system, state, t, self._piece(state.x, like), cache, self._head, self.spent)

    def _remembered(self, x: Shaped[Tensor, "B L *M"], like: Clean, cache: Any) -> Any:
        """Return a memory with finished positions in it."""
        system, piece, model = self.system, self._piece(x, like), cast(Denoiser, self.system.model)
        cache = model.new_cache() if cache is None else cache
        state, level = State.of(x), system.process.level(torch.zeros(len(x), device=x.device))
        with system.autocast(state):
            model.trunk(state, level, piece.valid, piece.cond, cache=cache, keep=True)
        return cache

    def _piece(self, x: Tensor, like: Clean) -> Clean:
        length, whole = x.shape[1], like.x0.shape[1]
        if length == whole and not self.start:
            return like
        space = self.system.process.space
        if isinstance(space, TokenSpace) and len(space.fields) > 1:
            raise ValueError(f"a sample of several fields cannot come in pieces: {space}")
        if self.start + length > whole:
            raise ValueError(f"positions {self.start}..{self.start + length} of a sample that has {whole}")
        return like.slice_positions(self.start, self.start + length)


@torch.no_grad()
def walk(system: Diffusion, like: Clean, spent: ModelCalls | None = None) -> Iterator[Shaped[Tensor, "B L *M"]]:
    """Walk the process back for one batch; yield every state on the way, and the clean sample last."""
    was_training = system.training
    system.eval()
    try:
        yield from system.sampler(system.process, Session(system, like, spent), like)
    finally:
        system.train(was_training)


def draw(
    system: Diffusion,
    like: Clean,
    seed: int,
    batch_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[Tensor], object] | None = None,
    spent: ModelCalls | None = None,
) -> Shaped[Tensor, "N L *M"] | None:
    """Draw samples.

    The result is a function of the weights, `like`, the seed, the batch size and the device, and of nothing that was
    drawn before. Within a batch the samples share one stream of random numbers; batch i has the stream of (seed, i).

    Args:
        system: What draws.
        like: What sampling starts from, as `Task.like` gives it, on any device.
        seed: Of the drawing.
        batch_size: Samples at a time; by default all.
        stopped: Asked before every step; once it is true, drawing ends with nothing.
        watch: Told of every state of the first batch.
        spent: Where calls of the model are counted.

    Returns:
        The samples on the CPU, or None where it was stopped.
    """
    device = next(system.model.parameters()).device
    size = batch_size or max(len(like.valid), 1)
    done = []
    for index, start in enumerate(range(0, len(like.valid), size)):
        seed_generators(device, Stream.DRAWING, seed, index)
        x = None
        for state in walk(system, like[start : start + size].to(device), spent):
            if stopped():
                return None
            x = state
            if watch is not None and not index:
                watch(state)
        assert x is not None, "a sampler yields the clean sample last"
        done.append(x.cpu())
    return torch.cat(done) if done else like.x0
