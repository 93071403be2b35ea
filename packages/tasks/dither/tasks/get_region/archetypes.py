"""Archetypes: motifs that are found in the same regions stand for the same kind of binding site, and become one column.

GET-Foundation's columns are 282 clusters of motifs made in the same spirit (Vierstra et al. 2020, "Global reference
mapping of human transcription factor footprints"); ours are built afresh. Letters: P regions, K motifs, M archetypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32, Integer

__all__ = ["archetype_names", "cluster", "correlation", "pool"]


def correlation(found: Float[np.ndarray, "P K"]) -> Float[np.ndarray, "K K"]:
    """Return the Pearson correlation between the columns of `P K`; 0 where a column is constant. `K K`."""
    centred = found - found.mean(0, dtype=np.float64)
    length = np.sqrt(np.square(centred).sum(0))
    unit = centred / np.where(length > 0, length, 1)
    r: Float[np.ndarray, "K K"] = (unit.T @ unit).clip(-1, 1)
    np.fill_diagonal(r, 1)
    return r


def cluster(r: Float[np.ndarray, "K K"], number: int) -> Integer[np.ndarray, " K"]:
    """Return the archetype of each motif, 0 .. number-1, by average linkage on 1 - r. Numbered by first appearance.

    Raises:
        ValueError: If the motifs cannot be cut into exactly `number` clusters.
    """
    from scipy.cluster.hierarchy import average, fcluster
    from scipy.spatial.distance import squareform

    if not 1 <= number <= len(r):
        raise ValueError(f"{len(r)} motifs make 1 to {len(r)} archetypes, not {number}")
    if len(r) == 1:
        return np.zeros(1, dtype=np.int64)
    distance = (1 - (r + r.T) / 2).clip(min=0)
    np.fill_diagonal(distance, 0)
    labels = fcluster(average(squareform(distance)), number, "maxclust")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    if len(first) != number:  # equal heights in the tree are cut together
        raise ValueError(f"{len(r)} motifs fall into {len(first)} clusters, and into no {number}: some are alike")
    rank = np.argsort(np.argsort(first))
    return rank[inverse].astype(np.int64)


def pool(found: Float[np.ndarray, "P K"], labels: Integer[np.ndarray, " K"]) -> Float32[np.ndarray, "P M"]:
    """Sum the columns of `P K` that share an archetype. `P M`."""
    pooled = np.zeros((len(found), int(labels.max()) + 1), dtype=np.float32)
    for archetype in range(pooled.shape[1]):
        pooled[:, archetype] = found[:, labels == archetype].sum(1, dtype=np.float64)
    return pooled


def archetype_names(names: Sequence[str], r: Float[np.ndarray, "K K"], labels: Integer[np.ndarray, " K"]) -> list[str]:
    """Name each archetype after its most typical motif and the number of the others, as in "GATA1+12".

    The most typical one has the highest mean correlation with the rest. Where two archetypes would get one name, each
    is numbered, as in "CTCF+2 (1)".
    """
    chosen = []
    for archetype in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == archetype)
        medoid = members[np.argmax(r[np.ix_(members, members)].sum(1))]
        chosen.append(names[medoid] + (f"+{len(members) - 1}" if len(members) > 1 else ""))
    often, seen, unique = Counter(chosen), Counter[str](), []
    for name in chosen:
        seen[name] += 1
        unique.append(f"{name} ({seen[name]})" if often[name] > 1 else name)
    return unique
