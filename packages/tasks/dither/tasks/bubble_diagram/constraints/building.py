"""Whether a diagram will be one that can be built: decided at the end, or the search gave up, and foreseen before.

Letters: N diagrams, R room slots, L tokens, V ids, E pairs of slots.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..levels import can_be_built
from ..vocabulary import EDGE_SIZE, NO_EDGE
from .foresight import OPEN, refuted

__all__ = ["Building"]


class Building:
    """The chance that a diagram will reach level 4: none where that is refuted, and else taken as certain.

    What the rooms must be is not looked at before the end; counts say it (see `goal`). Once all other tokens are
    decided it is 0 or 1, for every id that is believed possible: 1 if there are boxes, which prove it, and 0 if there
    are none or the search gave up.

    Args:
        slots: Room slots.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def log_chance(self, believed: Float[Tensor, "N L V"], at: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the chance by what the token `at` becomes, the others being as believed."""
        numbers = torch.arange(len(at), device=at.device)
        likeliest = believed.max(-1)
        decided = (likeliest.values == 1).index_put((numbers, at), torch.tensor(True, device=at.device))
        ids = likeliest.indices.cpu().numpy()
        own, last = at.cpu().numpy(), decided.all(1).cpu().numpy()
        hopeful = (believed[numbers, at] > 0).cpu().numpy()
        edge = np.flatnonzero((own >= self.slots) & ~last)
        known = decided[:, self.slots :].cpu().numpy() & (ids[:, self.slots :] <= NO_EDGE)
        relations = np.where(known, ids[:, self.slots :], OPEN)
        if len(edge):
            gone = refuted(relations[edge], own[edge] - self.slots, self.slots)
            hopeful[edge, :EDGE_SIZE] &= np.pad(~gone, ((0, 0), (0, EDGE_SIZE - gone.shape[1])))
        rows, ways = np.nonzero(hopeful & last[:, None])
        ended = ids[rows]
        ended[np.arange(len(rows)), own[rows]] = ways
        hopeful[rows, ways] = can_be_built(ended, self.slots)
        return torch.from_numpy(hopeful).to(believed.device, believed.dtype).log()
