"""A metric of samples. Letters: N samples, L length."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dither.registry import Space, Spec, hookimpl
from dither.registry.kinds import TOKENS, MetricSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import SampleMetric
    from dither.registry.contracts.records import Clean


class ExampleMetric(MetricSpec):
    """Share of samples that occur only once."""

    name = "example-metric"
    serves = TOKENS

    def build(self, space: Space) -> SampleMetric:
        """Return a function of samples `N L` and the templates they were drawn from."""

        def metric(samples: Tensor, like: Clean) -> dict[str, float]:
            counts = list(Counter(map(tuple, samples.tolist())).values())
            return {"unique_samples": counts.count(1) / max(len(samples), 1)}

        return metric


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleMetric]
