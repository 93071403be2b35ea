"""A one-file plugin with two tasks that tell something beside each sample: its kind, and where its positions lie.

The kind decides what the sample is, so that a model that uses the label differs measurably from one that does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dither.registry import Condition, FeatureSpace, Field, Space, Spec, TokenSpace, hookimpl
from dither.registry.kinds import TaskSpec

TOLD = (Condition("kind", 2, ("low", "high")), Condition("centre"))
SPACES: dict[str, Space] = {
    "labelled-features": FeatureSpace(6, 4, conditions=TOLD),
    "labelled-text": TokenSpace((Field("text", 8, 6),), TOLD),
}


@dataclass(frozen=True)
class LabelledTask:
    """Low samples are ids 0..2 or numbers about -1, high ones ids 3..5 or numbers about 1."""

    space: Any

    def size(self, split: str) -> int:
        return 64

    def batch(self, split: str, rows: Sequence[int]) -> Any:
        import torch

        from dither.registry.flow.records import Clean

        rows = torch.as_tensor(list(rows), dtype=torch.int64)
        generator = torch.Generator().manual_seed(len(split))
        kind = torch.arange(64) % 2
        if isinstance(self.space, FeatureSpace):
            x0 = 2.0 * kind[:, None, None] - 1 + 0.3 * torch.randn(64, 6, 4, generator=generator)
        else:
            x0 = 3 * kind[:, None] + torch.randint(0, 3, (64, 8), generator=generator)
        centre = 10_000 + torch.randint(200, 90_000, x0.shape[:2], generator=generator).cumsum(1)
        return Clean.of(x0[rows], kind=kind[rows], centre=centre[rows])

    def like(self, n: int, seed: int) -> Any:
        return self.batch("valid", [row % 64 for row in range(n)])

    def metrics(self) -> Any:
        return Nothing()

    def baselines(self) -> dict[str, float]:
        return {}

    def sample_metrics(self, samples: Any, like: Any) -> dict[str, float]:
        high = (samples.float() > (0 if isinstance(self.space, FeatureSpace) else 2.5)).flatten(1).float().mean(1)
        return {"high": high.mean().item(), "label_accuracy": (high.round() == like.cond["kind"]).float().mean().item()}

    def plots(self, samples: Any, like: Any) -> list[Any]:
        return []


class Nothing:
    """Figures of a task that has none beside the loss."""

    def update(self, clean: Any, noised: Any, pred: Any, measured: Any) -> None:
        pass

    def compute(self) -> dict[str, float]:
        return {}


class LabelledFeatures(TaskSpec):
    """Six positions of four numbers, of two kinds."""

    name: ClassVar[str] = "labelled-features"

    def space(self) -> Space:
        return SPACES[self.name]

    def build(self) -> Any:
        return LabelledTask(SPACES[self.name])


class LabelledText(TaskSpec):
    """Eight ids of six, of two kinds."""

    name: ClassVar[str] = "labelled-text"

    def space(self) -> Space:
        return SPACES[self.name]

    def build(self) -> Any:
        return LabelledTask(SPACES[self.name])


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer the tasks."""
    return [LabelledFeatures, LabelledText]
