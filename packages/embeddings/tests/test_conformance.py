"""Our own parts pass the kit that every plugin can run: options, shapes, masks, levels, caches, gradients, seeds."""

import torch

from dither.testing import parametrize

torch.set_num_threads(1)


@parametrize(plugin="embeddings")
def test_conformance(case):
    case.run()
