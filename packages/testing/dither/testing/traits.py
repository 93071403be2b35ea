"""Traits: properties that components declare by `Spec.traits()` or attributes of a kind, and checks verify.

They are never guessed. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dither.registry import Space, Spec, TokenSpace
from dither.registry.config.errors import did_you_mean
from dither.registry.kinds import LossSpec, OverSpace

__all__ = [
    "DECLARED_TRAITS",
    "IMPLIED_TRAITS",
    "may_declare",
    "traits_of",
    "unknown_traits",
]

DECLARED_TRAITS = {
    "block": {
        "zero-init": "a new block is the identity",
        "equivariant": "permuting the input permutes the output: no positions",
        "weighted-keys": "adds a float mask to the logits of keys, so that log n makes a key count as n",
        "positions": "accepts positions=, coordinates of which only the distances matter",
        "grid-positions": "accepts positions=, column and row of which only the distances matter",
        "requested": "accepts requested=, a mask of positions whose output is used; others may be skipped",
        "cache": "in a block-causal model, blocks with a cache equal the whole",
    },
    "embedding": {
        "tables": "has `tables`, one per field, that a head may share",
        "unmarked-masks": "masked features look like zeros",
        "known": "known tokens are marked, from State.noisy",
        "identical-masked": "all fully masked positions of a sample have the same vector",
        "position-free": "permuting the positions of a field permutes the output",
    },
    "position": {
        "position-free": "all positions have the same vector",
    },
    "condition": {
        "position-free": "the same for all positions of one noise level",
        "constant": "its output is the same for any noise level and conditions",
        "level-free": "ignores the noise level; so does a model that has no other condition",
    },
    "model": {
        "level-free": "ignores the noise level",
    },
    "head": {
        "maps": "has `maps`, one per field, whose weights may be those of an embedding",
        "probabilities": "values are probabilities of 0 and 1 data",
    },
    "sampler": {
        "exact-distribution": "with an exact model, samples are exact for all options",
    },
    "loss": {
        "own-jumps": "a bound for other jumps than the steps of the process: exact only if tokens become MASK",
    },
    "task": {
        "disjoint-splits": "no sample is in two splits",
    },
}
"""Traits that `Spec.traits()` may return, by kind."""
IMPLIED_TRAITS = {
    "tokens": "samples are ids (`serves`)",
    "features": "samples are numbers (`serves`)",
    "one-field": "all positions have one vocabulary, so that a sample may be split",
    "block-causal": "a model whose `facts()` have a block size",
    "bound": "a loss whose mean is the diffusion part of a bound on -log p(x_0) (`bound`)",
}
"""Traits that follow from attributes of a component."""


def traits_of(spec: Any, space: Space | None) -> frozenset[str]:
    """Return the declared and implied traits of a component for a space."""
    traits = set(spec.traits())
    if space is not None:
        traits.add(space.data)
        if not isinstance(space, TokenSpace) or len(space.fields) == 1:
            traits.add("one-field")
    if spec.kind == "model" and spec.facts().block_size is not None:
        traits.add("block-causal")
    if spec.kind == "loss" and spec.bound:
        traits.add("bound")
    return frozenset(traits)


def may_declare(spec: type[Spec], needs: Iterable[str]) -> bool:
    """Whether a class can have all these traits with some options."""
    data = {"tokens", "features"}
    # A class that serves one type of data cannot have the trait of the other.
    absent = data - spec.serves if issubclass(spec, OverSpace) else set()
    if not (issubclass(spec, LossSpec) and spec.bound):
        absent.add("bound")
    # Traits may depend on options, so only a class without `traits` of its own has none.
    if spec.traits is Spec.traits:
        absent |= DECLARED_TRAITS.get(spec.kind, {}).keys()
    return absent.isdisjoint(needs)


def unknown_traits(spec: Spec) -> list[str]:
    """Return one sentence per declared trait that no check verifies."""
    known = [*DECLARED_TRAITS.get(spec.kind, {})]
    messages = []
    for trait in sorted(spec.traits() - set(known)):
        hint = did_you_mean(
            trait, known, f"traits of a {spec.kind}: {', '.join(known) or 'none'}"
        )
        messages.append(f'unknown trait "{trait}"; {hint}')
    return messages
