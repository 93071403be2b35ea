"""Where every random draw of a run comes from: numbers mixed into a seed, and nothing remembered.

Each step seeds the generators anew from (seed, step, rank). So a resumed run equals one that was never stopped, and an
evaluation or a drawing in between shifts nothing.
"""

from __future__ import annotations

from enum import IntEnum

import torch

__all__ = ["Stream", "mix_seed", "seed_generators"]

MASK = (1 << 64) - 1


class Stream(IntEnum):
    """What randomness is for; different streams never share a seed by design."""

    WEIGHTS = 0
    STEP = 1
    EVALUATION = 2
    DRAWING = 3
    LORA = 4


def mix_seed(*numbers: int) -> int:
    """Mix numbers into one of 64 bits, by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    state = len(numbers)
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def seed_generators(device: torch.device, stream: Stream, *numbers: int) -> None:
    """Seed torch's generators on the CPU and on `device`.

    `torch.manual_seed` does the same for every device that there might be, and takes 0.28 ms; this takes 0.003.
    """
    seed = mix_seed(stream, *numbers)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
