"""Kernels that only pay on a CPU. The environment variable `DITHER_CPU_KERNELS=0` turns all of them off.

Gains on one training step of GET (12 blocks of width 768, 901 tokens), each kernel against torch's own:

    tiled_attention   bfloat16   1.15x
    dropout           float32    2.5x on the operation itself

`merge_identical` is exact algebra of the denoiser rather than a kernel, and stays on.
"""

from __future__ import annotations

import os

__all__ = ["ENABLED"]

ENABLED = os.environ.get("DITHER_CPU_KERNELS", "1") != "0"
"""Whether the kernels of this folder are used; read once, when dither is imported."""
