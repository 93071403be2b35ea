"""What parts tell each other before anything is built. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .spaces import Space

__all__ = ["ModelFacts", "ProcessFacts"]


@dataclass(frozen=True)
class ProcessFacts:
    """What a loss or a sampler may ask of a process before anything is built.

    Attributes:
        name: Registered name of the process.
        space: What the model serves under this process, MASK included.
        predict: What the raw output means: posterior, plug-in, score; x0, eps, velocity.
        prior: Where everything has gone at t = 1.
    """

    name: str
    space: Space
    predict: str
    prior: Literal["mask", "uniform", "frequencies", "gaussian", "hidden"]


@dataclass(frozen=True)
class ModelFacts:
    """What a sampler may ask of a model before anything is built.

    Attributes:
        block_size: Positions per block under block-causal attention, or None where every position sees every other.
        cache: Whether it can remember finished positions (`new_cache`, and `cache=` of its forward).
    """

    block_size: int | None = None
    cache: bool = True
