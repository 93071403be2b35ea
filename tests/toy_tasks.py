"""A one-file plugin with five tasks so small that hundreds of systems train on them in seconds.

The labelled ones declare conditions of each sample: its kind, and coordinates. The kind decides the distribution of
the sample, so that a model that uses the label differs measurably from one that does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dither.registry import (
    Condition,
    FeatureSpace,
    Field,
    Group,
    Space,
    Spec,
    TokenSpace,
    hookimpl,
)
from dither.registry.contracts.protocols import Metrics, Task
from dither.registry.kinds import RewardSpec, TaskSpec

CONDITIONS = (Condition("kind", 2, ("low", "high")), Condition("centre"))
SPACES: dict[str, Space] = {
    "toy-features": FeatureSpace(6, 4, (Group("left", 0, 2), Group("right", 2, 4))),
    "toy-graph": TokenSpace(
        (Field("nodes", 3, 5, mask=3, pad=4), Field("edges", 3, 4, mask=2, pad=3))
    ),
    "toy-text": TokenSpace((Field("text", 8, 5),)),
    "labelled-features": FeatureSpace(6, 4, conditions=CONDITIONS),
    "labelled-text": TokenSpace((Field("text", 8, 6),), CONDITIONS),
}


@dataclass(frozen=True)
class Toy:
    """Random samples of a space; the last positions of every third one are padding, the first of every second known."""

    space: Any

    def size(self, split: str) -> int:
        return 64

    def batch(self, split: str, rows: Sequence[int]) -> Any:
        import torch

        from dither.registry.contracts.records import Clean

        space, rows = self.space, torch.as_tensor(list(rows))
        generator = torch.Generator().manual_seed(len(split))
        valid = torch.ones(64, space.length, dtype=torch.bool)
        valid[::3, -1] = False
        if isinstance(space, FeatureSpace):
            x0 = (
                torch.randn(64, space.length, space.width, generator=generator)
                * valid[..., None]
            )
        else:
            clean = space.clean().expand(space.length, -1).float()
            x0 = torch.stack(
                [
                    torch.multinomial(clean, 1, generator=generator)[:, 0]
                    for _ in range(64)
                ]
            )
            x0 = torch.where(
                valid, x0, space.table(lambda field: torch.tensor(field.pad or 0))
            )
        known = torch.zeros_like(x0, dtype=torch.bool)
        known[::2, 0] = True
        return Clean(x0[rows], valid[rows], known[rows])

    def like(self, n: int, seed: int) -> Any:
        return self.batch("valid", range(n))


@dataclass(frozen=True)
class LabelledTask(Toy, Task):
    """Low samples are ids 0..2 or numbers about -1, high ones ids 3..5 or numbers about 1."""

    def batch(self, split: str, rows: Sequence[int]) -> Any:
        import torch

        from dither.registry.contracts.records import Clean

        rows = torch.as_tensor(list(rows), dtype=torch.int64)
        generator = torch.Generator().manual_seed(len(split))
        kind = torch.arange(64) % 2
        if isinstance(self.space, FeatureSpace):
            x0 = (
                2.0 * kind[:, None, None]
                - 1
                + 0.3 * torch.randn(64, 6, 4, generator=generator)
            )
        else:
            x0 = 3 * kind[:, None] + torch.randint(0, 3, (64, 8), generator=generator)
        centre = 10_000 + torch.randint(
            200, 90_000, x0.shape[:2], generator=generator
        ).cumsum(1)
        return Clean.of(x0[rows], kind=kind[rows], centre=centre[rows])

    def like(self, n: int, seed: int) -> Any:
        return self.batch("valid", [row % 64 for row in range(n)])

    def metrics(self) -> Any:
        return NoMetrics()

    def baselines(
        self, split: str = "valid", samples: int | None = None
    ) -> dict[str, float]:
        return {}

    def sample_metrics(self, samples: Any, like: Any) -> dict[str, float]:
        high = (
            (samples.float() > (0 if isinstance(self.space, FeatureSpace) else 2.5))
            .flatten(1)
            .float()
            .mean(1)
        )
        return {
            "high": high.mean().item(),
            "label_accuracy": (high.round() == like.cond["kind"]).float().mean().item(),
        }

    def plots(self, samples: Any, like: Any) -> list[Any]:
        return []


class NoMetrics(Metrics):
    """No metrics except the loss."""

    def update(self, clean: Any, noised: Any, pred: Any, measured: Any) -> None:
        pass

    def compute(self) -> dict[str, float]:
        return {}


class ToyTask(TaskSpec):
    """A task with the space of its name."""

    def space(self) -> Space:
        return SPACES[self.name]

    def build(self) -> Any:
        return (Toy if self.name.startswith("toy") else LabelledTask)(SPACES[self.name])


def named(key: str, doc: str) -> type[ToyTask]:
    """Return the task of a name."""

    class Named(ToyTask):
        name: ClassVar[str] = key

    Named.__doc__ = doc
    return Named


class ToyReward(RewardSpec):
    """The mean of ids or numbers."""

    name = "toy-mean"

    def build(self, space: Space) -> Any:
        return lambda x, like: x.float().flatten(1).mean(1)


@hookimpl
def register_components() -> list[type[Spec]]:
    return [
        ToyReward,
        named("toy-features", "Six positions of four numbers."),
        named("toy-graph", "Three nodes and three edges."),
        named("toy-text", "Eight ids of five."),
        named("labelled-features", "Six positions of four numbers, of two kinds."),
        named("labelled-text", "Eight ids of six, of two kinds."),
    ]
