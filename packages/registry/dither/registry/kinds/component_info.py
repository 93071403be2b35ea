"""What parts tell each other before anything is built. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..flow.spaces import Space, TokenSpace

__all__ = ["ModelFacts", "ProcessFacts"]


@dataclass(frozen=True)
class ProcessFacts:
    """What a loss or a sampler may ask of a process before anything is built.

    Attributes:
        name: Registered name of the process.
        space: What the model serves under this process, MASK included.
        predict: What the raw output means: posterior, plug-in, score; x0, eps, velocity.
        prior: Where everything has gone at t = 1.
        timeless: Whether states say nothing of time; see `TimelessProcess`.
        masked_share: Share of the positions of every noised sample that is masked as a whole; 0 where it is not always
            the same.
        masked: Whether noise is added only to what a mask picks, beside values that stay clean.
    """

    name: str
    space: Space
    predict: str
    prior: Literal["mask", "uniform", "frequencies", "gaussian", "hidden"]
    timeless: bool = False
    masked_share: float = 0.0
    masked: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """What a sampler may ask of a model before anything is built.

    Attributes:
        block_size: Positions per block under block-causal attention, or None where every position sees every other.
            A model that names one takes `context=`: over tokens of a single field it is trained block by block, each
            behind the clean ones before it.
        cache: Whether it can remember finished positions (`new_cache`, and `cache=` of its forward).
        dropped_conditions: Conditions that training drops at random, which classifier-free guidance requires.
    """

    block_size: int | None = None
    cache: bool = True
    dropped_conditions: tuple[str, ...] = ()

    def trained_blocks(self, space: Space) -> int | None:
        """Return the size of the blocks that a model over this space is trained on; None for whole samples.

        Where a sample is not tokens of a single field, block-causal attention says only what a position sees.
        """
        return self.block_size if isinstance(space, TokenSpace) and len(space.fields) == 1 else None
