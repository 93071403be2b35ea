"""Our own parts pass the kit that every plugin can run, recommended checks included."""

import torch

from dither.testing import conformance

torch.set_num_threads(1)


ANEW = "the sampler of the seed draws all positions anew at each step, given the others as they were"


@conformance.parametrize(
    plugin="processes", strict=True, expected_failures={("sampler:seed-004", "samples_exact_distribution"): ANEW}
)
def test_conformance(case):
    case.run()
