"""How likely it is that rooms of given types come in given numbers, types of different rooms being independent.

The numbers are counted room by room: f[n, a, b, ...] is the chance that so far a rooms are of the first types, b of the
second, and so on. Exact, for any overlap of the types. Letters: N diagrams, R room slots, L tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..vocabulary import NODE_SIZE
from .rules import Count

__all__ = ["Counting", "countings"]

STATES: Final = 512
"""Most numbers that are followed together; more counts than that are taken as independent of each other."""


def countings(rules: Sequence[Count], slots: int) -> list[Counting]:
    """Put counts together, as many as can be followed at once."""
    groups: list[list[Count]] = []
    for rule in rules:
        if groups and prod(_width(one, slots) for one in (*groups[-1], rule)) <= STATES:
            groups[-1].append(rule)
        else:
            groups.append([rule])
    return [Counting(group, slots) for group in groups]


def _width(rule: Count, slots: int) -> int:
    """Return how many numbers matter: up to `high`, or up to `low` where there is no end."""
    return (rule.low if rule.high >= slots else rule.high) + 1


class Counting:
    """The chance that all of some counts are met.

    Args:
        rules: The counts.
        slots: Room slots.
    """

    def __init__(self, rules: Sequence[Count], slots: int) -> None:
        self.rules, self.slots = list(rules), slots
        self.widths = [_width(rule, slots) for rule in rules]
        told = [tuple(c for c, rule in enumerate(rules) if v in rule.types) for v in range(NODE_SIZE)]
        self.steps = [(), *sorted(set(told) - {()})]
        """For each kind of room, the counts that it adds to; the first kind adds to none."""
        self.kind_of = torch.tensor([self.steps.index(step) for step in told])

    def log_chance(self, believed: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the chance by what the token `at` becomes, the other rooms being as believed."""
        vocab, kinds = believed.shape[-1], len(self.steps)
        kind_of = self.kind_of.to(at.device)
        member = torch.nn.functional.one_hot(kind_of, kinds).to(believed.dtype)
        rooms = believed[:, : self.slots, :NODE_SIZE] @ member
        own = torch.arange(self.slots, device=at.device) == at[:, None]
        aside = torch.nn.functional.one_hot(torch.zeros_like(at), kinds).to(rooms.dtype)
        rooms = torch.where(own[..., None], aside[:, None], rooms)
        counted = self._count(rooms)
        met = torch.stack([self._met(self._moved(counted, step)) for step in self.steps], 1)
        by_id = torch.nn.functional.pad(met[:, kind_of], (0, vocab - NODE_SIZE))
        return torch.where((at < self.slots)[:, None], by_id, met[:, :1]).log()

    def _count(self, rooms: Float[Tensor, "N R kinds"]) -> Float[Tensor, "N *widths"]:
        shape = (len(rooms), *[1] * len(self.widths))
        counted = rooms.new_zeros(len(rooms), *self.widths)
        counted.flatten(1)[:, 0] = 1
        for room in rooms.unbind(1):
            counted = sum(
                (
                    self._moved(counted, step) * chance.reshape(shape)
                    for step, chance in zip(self.steps, room.unbind(1), strict=True)
                ),
                torch.zeros_like(counted),
            )
        return counted

    def _moved(self, counted: Float[Tensor, "N *widths"], step: tuple[int, ...]) -> Float[Tensor, "N *widths"]:
        """Add one to some numbers; what exceeds the largest number allowed is dropped."""
        for c in step:
            axis, last = c + 1, self.widths[c] - 1
            moved = torch.zeros_like(counted)
            moved.narrow(axis, 1, last).copy_(counted.narrow(axis, 0, last))
            if self.rules[c].high >= self.slots:  # no end: the last number stands for all from there on
                moved.select(axis, last).add_(counted.select(axis, last))
            counted = moved
        return counted

    def _met(self, counted: Float[Tensor, "N *widths"]) -> Float[Tensor, " N"]:
        for c, rule in enumerate(self.rules):
            axis = c + 1
            counted = counted.narrow(axis, min(rule.low, self.widths[c]), max(self.widths[c] - rule.low, 0))
        return counted.flatten(1).sum(1)
