"""All components of this package pass the conformance kit, recommended checks included."""

import torch

from dither.testing import conformance

torch.set_num_threads(1)


@conformance.parametrize(plugin="processes", strict=True)
def test_conformance(case):
    case.run()
