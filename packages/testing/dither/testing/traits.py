"""What parts promise, and who has which trait. No torch here.

A trait is declared, never guessed: by `Spec.traits()`, or by what the kind has a place for, such as `serves`, `bound`
and `facts()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dither.registry import Space, Spec, TokenSpace
from dither.registry.config.errors import nearest

__all__ = ["DECLARED_TRAITS", "IMPLIED_TRAITS", "may_declare", "traits_of", "unknown_traits"]

DECLARED_TRAITS = {
    ("block", "zero-init"): "as it is built, it hands on what it is given",
    ("block", "equivariant"): "it knows no positions: what is permuted before it is permuted behind it",
    ("block", "requested"): "it takes requested=, and does there what it does without; elsewhere it may do less",
    ("block", "weighted-keys"): "it adds a mask of numbers to the logits of keys, so that log n makes one count as n",
    ("block", "positions"): "it takes positions=, where each position lies, of which distances alone matter to it",
    ("block", "cache"): "behind the cache of a block-causal model, pieces give what the whole gives",
    ("embedding", "tables"): "its `tables`, one for each field, may be the weights of a head",
    ("embedding", "alike"): "positions of a sample that are hidden as a whole all have one and the same vector",
    ("condition", "constant"): "its output is the same for any noise level and conditions",
    ("condition", "level-free"): "it does not look at the noise level, nor does a model that has no other condition",
    ("model", "level-free"): "it does not look at the noise level",
    ("head", "maps"): "its `maps`, one for each field, may have the tables of an embedding as weights",
    ("sampler", "exact-law"): "told the truth, it draws from the truth, however its options stand",
    ("task", "disjoint-splits"): "no sample is in two of its splits",
}
"""What a Spec of a kind may promise in `traits()`."""
IMPLIED_TRAITS = {
    "tokens": "a sample is ids (`serves`)",
    "features": "a sample is numbers (`serves`)",
    "one-field": "all positions of a sample are of one sort, so that it may come in pieces",
    "block-causal": "a model whose `facts()` name a block size",
    "bound": "a loss whose mean is the diffusion part of a bound on -log p(x_0) (`bound`)",
}
"""What the kind of a part has a place for."""


def traits_of(spec: Any, space: Space | None) -> frozenset[str]:
    """Return what a part declares where it stands."""
    found = set(spec.traits())
    if space is not None:
        found.add(space.data)
        if not isinstance(space, TokenSpace) or len(space.fields) == 1:
            found.add("one-field")
    if spec.kind == "model" and spec.facts().block_size is not None:
        found.add("block-causal")
    if spec.kind == "loss" and spec.bound:
        found.add("bound")
    return frozenset(found)


def may_declare(spec: type[Spec], needs: Iterable[str]) -> bool:
    """Whether a class declares, with some options, all that a check needs."""
    every = {"tokens", "features"}
    absent = every - set(getattr(spec, "serves", every))
    if not getattr(spec, "bound", False):
        absent.add("bound")
    if spec.traits is Spec.traits:
        absent |= {trait for kind, trait in DECLARED_TRAITS if kind == spec.kind}
    return absent.isdisjoint(needs)


def unknown_traits(spec: Spec) -> list[str]:
    """Return a sentence for each trait that a Spec promises and no check looks after."""
    known = [trait for kind, trait in DECLARED_TRAITS if kind == spec.kind]
    found = []
    for trait in sorted(spec.traits() - set(known)):
        close = nearest(trait, known)
        hint = f'; did you mean "{close}"?' if close else f"; a {spec.kind} may promise {', '.join(known) or 'nothing'}"
        found.append(f'"{trait}" is promised, but no check of a {spec.kind} looks after it{hint}')
    return found
