"""A one-file plugin with three tasks so small that hundreds of systems train on them in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dither.registry import FeatureSpace, Field, Group, Space, Spec, TokenSpace, hookimpl
from dither.registry.kinds import TaskSpec

SPACES: dict[str, Space] = {
    "toy-features": FeatureSpace(6, 4, (Group("left", 0, 2), Group("right", 2, 4))),
    "toy-graph": TokenSpace((Field("nodes", 3, 5, mask=3, pad=4), Field("edges", 3, 4, mask=2, pad=3))),
    "toy-text": TokenSpace((Field("text", 8, 5),)),
}


@dataclass(frozen=True)
class Toy:
    """Random samples of a space; the last positions of every third one are padding, the first of every second known."""

    space: Space

    def size(self, split: str) -> int:
        return 64

    def batch(self, split: str, rows: Sequence[int]) -> Any:
        import torch

        from dither.registry.flow.records import Clean

        space, rows = self.space, torch.as_tensor(list(rows))
        generator = torch.Generator().manual_seed(len(split))
        valid = torch.ones(64, space.length, dtype=torch.bool)
        valid[::3, -1] = False
        if isinstance(space, FeatureSpace):
            x0 = torch.randn(64, space.length, space.width, generator=generator) * valid[..., None]
        else:
            clean = space.clean().expand(space.length, -1).float()
            x0 = torch.stack([torch.multinomial(clean, 1, generator=generator)[:, 0] for _ in range(64)])
            x0 = torch.where(valid, x0, space.table(lambda field: torch.tensor(field.pad or 0)))
        known = torch.zeros_like(x0, dtype=torch.bool)
        known[::2, 0] = True
        return Clean(x0[rows], valid[rows], known[rows])

    def like(self, n: int, seed: int) -> Any:
        return self.batch("valid", range(n))


class ToyFeatures(TaskSpec):
    """Six positions of four numbers."""

    name: ClassVar[str] = "toy-features"

    def space(self) -> Space:
        return SPACES[self.name]

    def build(self) -> Any:
        return Toy(SPACES[self.name])


class ToyGraph(TaskSpec):
    """Three nodes and three edges."""

    name: ClassVar[str] = "toy-graph"

    def space(self) -> Space:
        return SPACES[self.name]

    def build(self) -> Any:
        return Toy(SPACES[self.name])


class ToyText(TaskSpec):
    """Eight ids of five."""

    name: ClassVar[str] = "toy-text"

    def space(self) -> Space:
        return SPACES[self.name]

    def build(self) -> Any:
        return Toy(SPACES[self.name])


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer the tasks."""
    return [ToyFeatures, ToyGraph, ToyText]
