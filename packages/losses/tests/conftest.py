"""Token processes over any space, for tests of losses."""

from collections.abc import Callable

import pytest

from dither.processes.schedules.sigma import Geometric
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.priors import even_prior, frequency_prior, mask_prior
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.protocols import Schedule
from dither.registry.contracts.spaces import Field, TokenSpace


@pytest.fixture(scope="session")
def process_of() -> Callable[..., TokenProcess]:
    """A process by the name of its prior; marginal has frequencies 1, 3, 5 .. of the clean ids."""

    def clean(field: Field) -> int:
        return field.size - (field.mask is not None) - (field.pad is not None)

    def build(
        kind: str,
        space: TokenSpace,
        predict: str = "posterior",
        schedule: Schedule | None = None,
    ) -> TokenProcess:
        space = space.with_mask() if kind in ("absorbing", "hybrid") else space
        odd = {
            field.name: [1.0 + 2 * i for i in range(clean(field))]
            for field in space.fields
        }
        priors = {
            "absorbing": mask_prior,
            "uniform": even_prior,
            "marginal": lambda s: frequency_prior(s, odd),
        }
        priors["hybrid"] = lambda s: 0.7 * mask_prior(s) + 0.3 * even_prior(s)
        return TokenProcess(
            space,
            priors[kind](space),
            TimestepSampling(schedule or Geometric().build()),
            predict,
        )

    return build
