"""Names of the arrays of this package.

Letters: N diagrams, R room slots, E pairs of slots i < j, L tokens, P points, H x W pixels.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from numpy import ndarray

Rows = Bool[ndarray, " N"]
"""A condition for each diagram."""

Numbers = Int[ndarray, " N"]
Tokens = Int[ndarray, "N L"]
TokenRow = Int[ndarray, " L"]

Types = Int[ndarray, "N R"]
Relations = Int[ndarray, "N E"]
Pairs = Bool[ndarray, "N E"]
RelationRow = Int[ndarray, " E"]
PairRow = Bool[ndarray, " E"]
Links = Bool[ndarray, "N R R"]

Boxes = Int[ndarray, "R 4"]
"""x0, y0, x1, y1 of each room in pixels, x1 and y1 exclusive."""

Walls = Float[ndarray, "R 4"]
BoxBatch = Int[ndarray, "N R 4"]
Boundary = Int[ndarray, "P 2"]
"""The two ends of the front door, then the corners of the outline; see `geometry.boundary`."""

Boundaries = Int[ndarray, "N P 2"]
PixelLabels = Int[ndarray, "H W"]
"""Room at each pixel, -1 outside."""

Mask = Bool[ndarray, "H W"]
