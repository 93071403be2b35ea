"""Facts of processes and models that other components check before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .spaces import Space, TokenSpace

__all__ = ["ModelFacts", "ProcessFacts"]


@dataclass(frozen=True)
class ProcessFacts:
    """Properties of a process for losses and samplers.

    Attributes:
        name: Registered name of the process.
        space: The space the model must serve, MASK included.
        predict: Meaning of the raw output: posterior, plug-in, score; x0, eps, velocity, flow-velocity.
        prior: The distribution at t = 1: all on MASK, uniform over clean ids, their frequencies, a mixture of MASK and
            clean ids; Gaussian noise; hidden features.
        timeless: Whether states are independent of time; see `TimelessProcess`.
        masked: Whether noise is added only to a mask's selection, next to values that stay clean.
        linear_path: Whether the factors of x_0 and Gaussian noise add up to 1 (flow matching), not their squares.
    """

    name: str
    space: Space
    predict: str
    prior: Literal["mask", "uniform", "frequencies", "mixture", "gaussian", "hidden"]
    timeless: bool = False
    masked: bool = False
    linear_path: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model for samplers.

    Attributes:
        block_size: Positions per block under block-causal attention; None for full attention. A model with a block size
            takes `context=`: over tokens of a single field it is trained block by block, each after the clean ones.
        cache: Whether it supports a key-value cache (`new_cache`, and `cache=` of its forward).
        dropped_conditions: Conditions that training drops at random, which classifier-free guidance requires.
        reads_known: Whether the model distinguishes known tokens from noised ones (`State.noisy`).
    """

    block_size: int | None = None
    cache: bool = True
    dropped_conditions: tuple[str, ...] = ()
    reads_known: bool = False

    def trained_blocks(self, space: Space) -> int | None:
        """Return the block size of training over this space, or None if it is trained on whole samples.

        For features or several fields, block-causal attention only restricts what a position attends to.
        """
        return self.block_size if isinstance(space, TokenSpace) and len(space.fields) == 1 else None
