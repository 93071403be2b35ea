"""Names of the arrays of this package.

Letters: N diagrams, R room slots, E pairs of slots i < j, L tokens, P points, H x W pixels.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

Rows = Bool[np.ndarray, " N"]
"""A condition for each diagram."""

Numbers = Int[np.ndarray, " N"]
Tokens = Int[np.ndarray, "N L"]
TokenRow = Int[np.ndarray, " L"]

Types = Int[np.ndarray, "N R"]
Relations = Int[np.ndarray, "N E"]
Pairs = Bool[np.ndarray, "N E"]
RelationRow = Int[np.ndarray, " E"]
PairRow = Bool[np.ndarray, " E"]
Links = Bool[np.ndarray, "N R R"]

Boxes = Int[np.ndarray, "R 4"]
"""x0, y0, x1, y1 of each room in pixels, x1 and y1 exclusive."""

Walls = Float[np.ndarray, "R 4"]
BoxBatch = Int[np.ndarray, "N R 4"]
Boundary = Int[np.ndarray, "P 2"]
"""The two ends of the front door, then the corners of the outline; see `geometry.boundary`."""

Boundaries = Int[np.ndarray, "N P 2"]
PixelLabels = Int[np.ndarray, "H W"]
"""Room at each pixel, -1 outside."""

Mask = Bool[np.ndarray, "H W"]
