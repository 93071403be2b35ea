"""A one-file plugin as a third party writes it: bits of which a share is 1, and that share, in percent, as a number."""

from collections.abc import Iterator, Sequence
from typing import Any

from dither.registry import (
    Condition,
    Field,
    NumberRange,
    Space,
    Spec,
    TokenSpace,
    hookimpl,
)
from dither.registry.contracts.protocols import Metrics, Picture, Task
from dither.registry.kinds import TaskSpec

SPACE = TokenSpace(
    (Field("bits", 8, 2),), (Condition("percent", number=NumberRange(50, 25, 0, 100)),)
)
COUNT = 256


class Loss(Metrics):
    """No metrics except the loss."""

    def update(self, clean: Any, noised: Any, pred: Any, measured: Any) -> None:
        pass

    def compute(self) -> dict[str, float]:
        return {}


class Bits(Task):
    """Independent bits."""

    space = SPACE

    def size(self, split: str) -> int:
        return COUNT

    def batch(self, split: str, rows: Sequence[int]) -> Any:
        import torch

        from dither.registry.contracts.records import Clean

        generator = torch.Generator().manual_seed(len(split))
        share = torch.rand(COUNT, 1, generator=generator)
        bits = torch.rand(COUNT, 8, generator=generator) < share
        index = torch.as_tensor(list(rows), dtype=torch.int64)
        percent = 100 * bits.float().mean(1)
        return Clean.of(bits.long()[index], percent=percent[index])

    def like(self, n: int, seed: int) -> Any:
        return self.batch("valid", [row % COUNT for row in range(n)])

    def metrics(self) -> Metrics:
        return Loss()

    def baselines(
        self, split: str = "valid", samples: int | None = None
    ) -> dict[str, float]:
        return {}

    def sample_metrics(self, samples: Any, like: Any) -> dict[str, float]:
        percent = 100 * samples.float().mean(1)
        return {
            "percent": percent.mean().item(),
            "requested": like.cond["percent"].mean().item(),
        }

    def decode(self, samples: Any, like: Any) -> list[list[int]]:
        decoded: list[list[int]] = samples.tolist()
        return decoded

    def plots(self, samples: Any, like: Any) -> Iterator[Picture]:
        yield Picture("bits", text=str(samples.tolist()))


class BitsSpec(TaskSpec):
    """Bits and their share of ones."""

    name = "bits"

    def space(self) -> Space:
        return SPACE

    def build(self) -> Any:
        return Bits()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [BitsSpec]
