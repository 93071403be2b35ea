"""Every random draw of a run: generators seeded from (seed, step), without state that is carried along.

So a resumed run equals an uninterrupted one, and an evaluation or sampling in between changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import torch
from torch import Tensor

__all__ = ["Stream", "mix_seed", "preserved_generators", "seed_generators"]

MASK = (1 << 64) - 1


class Stream(IntEnum):
    """Purpose of a random stream; different purposes never share a seed by design."""

    WEIGHTS = 0
    STEP = 1
    EVALUATION = 2
    DRAWING = 3
    LORA = 4


def mix_seed(*numbers: int) -> int:
    """Mix numbers into a 64-bit seed with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    # The number of parts counts, so that (1,) and (1, 0) differ.
    state = len(numbers)
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def seed_generators(device: torch.device, stream: Stream, *numbers: int) -> None:
    """Seed torch's generators on the CPU and on `device`.

    `torch.manual_seed` does the same for every possible device, and takes 0.28 ms instead of 0.003
    ms.
    """
    seed = mix_seed(stream, *numbers)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        _cuda_generator(device).manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Restore torch's generators on the CPU and on `device` at the end of the block.

    A training loop that evaluates or samples in between would otherwise draw the same noise after
    each evaluation.
    """
    restored: list[tuple[Callable[[Tensor], object], Tensor]] = [
        (torch.default_generator.set_state, torch.default_generator.get_state())
    ]
    if device.type == "cuda":
        generator = _cuda_generator(device)
        restored.append((generator.set_state, generator.get_state()))
    elif device.type == "mps":
        restored.append((torch.mps.set_rng_state, torch.mps.get_rng_state()))
    try:
        yield
    finally:
        for set_state, state in restored:
            set_state(state)


def _cuda_generator(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
