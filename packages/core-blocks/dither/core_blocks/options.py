"""What the blocks of a transformer have in common: their options, and how heads divide a width. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from dither.registry import Misfit

__all__ = [
    "CENTRE",
    "FEW",
    "RECOMPUTE_MIN_WIDTH",
    "TILED_MAX_WEIGHTS",
    "Affine",
    "Implementation",
    "MLPName",
    "NormName",
    "QKVBias",
    "Rope",
    "misfit_heads",
]

CENTRE = "centre"
"""The condition that says where positions lie, such as along a chromosome: one number for each (`B L`)."""
FEW = 64
"""Up to so many keys, plain matrix products beat the fused kernel on a CPU."""
TILED_MAX_WEIGHTS = 1 << 24
"""Up to so many attention weights, of all heads and samples, a CPU keeps them in bfloat16."""
RECOMPUTE_MIN_WIDTH = 768
"""From such a width on, a CPU keeps what norms and nonlinearities are given and computes them again on the way back."""
MAX_LISTED_HEADS = 1024
"""Up to so many heads, a message lists what is possible."""

NormName = Literal["layer", "rms"]
Affine = bool | Literal["scale"]
MLPName = Literal["gelu", "gelu-tanh", "swiglu"]
Implementation = Literal["auto", "sdpa", "math"]
QKVBias = bool | Literal["qv"]
Rope = bool | Literal["centre"]


def misfit_heads(width: int, heads: int, *, rope: bool) -> Iterator[Misfit]:
    """Yield why a width cannot be split into this many heads; the message lists the numbers that are possible."""
    if width % heads == 0 and not (rope and width // heads % 2):
        return
    if rope and width % 2:
        yield Misfit(f"rotary positions turn pairs of numbers, and width {width} is odd", ("rope",))
        return
    listed = range(1, min(width, MAX_LISTED_HEADS) + 1)
    possible = [n for n in listed if width % n == 0 and not (rope and width // n % 2)]
    even = " of an even width, as rotary positions need" if rope and width % heads == 0 else ""
    allowed = ", ".join(map(str, possible))
    yield Misfit(f"width {width} does not split into {heads} equal heads{even}; heads may be {allowed}", ("heads",))
