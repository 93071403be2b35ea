"""Samples compared with held-out sequences, the noise floor and a Markov chain; and likelihood per base.

Letters: N sequences, L bases, C cell types, K motifs, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from dither.registry.contracts.protocols import RatioSums
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import TokenSpace

from ..get_region.data.motif_scan import Motif, scan
from ..token_metrics import Accuracy, NatSums
from .sequences import Sequences, reverse_complement

__all__ = ["BaseMetrics", "Group", "Markov", "Reference", "contrast", "kmer_codes"]

WORD = 6
"""Length of the k-mers that the classifier reads, and of those that may be copied from training
sequences."""
COPIED = 20
STRENGTH = 1e-3
"""Inverse L2 penalty of the classifier."""
WEIGHT = 4.0
"""Observations that the distribution of the next lower order counts for."""


def kmer_codes(bases: UInt8[np.ndarray, "N L"], k: int) -> Int64[np.ndarray, "N n"]:
    """Return the k-mers of each sequence as numbers in base 4, the first base most significant."""
    codes = np.zeros((len(bases), max(bases.shape[1] - k + 1, 0)), np.int64)
    for place in range(k):
        codes = 4 * codes + bases[:, place : place + codes.shape[1]]
    return codes


class Markov:
    """Chain in which a base depends on the `order` bases before it and on the cell type; fitted to `bases`.

    The first bases depend on those there are. Each context's counts are smoothed with the
    distribution of the context that is one base shorter, which counts for 4 observations.
    """

    def __init__(
        self,
        bases: UInt8[np.ndarray, "N L"],
        labels: Int64[np.ndarray, " N"],
        cells: int,
        order: int = 5,
    ) -> None:
        shorter = np.full((cells, 1, 4), 0.25)
        self.tables: list[Float[np.ndarray, "C _ 4"]] = []
        for known in range(order + 1):
            codes = kmer_codes(bases, known + 1) + labels[:, None] * 4 ** (known + 1)
            counts = np.bincount(codes.ravel(), minlength=cells * 4 ** (known + 1)).reshape(
                cells, -1, 4
            )
            lower = np.tile(shorter, (1, 4 if known else 1, 1))
            shorter = (counts + WEIGHT * lower) / (counts.sum(2, keepdims=True) + WEIGHT)
            self.tables.append(shorter)

    def nats(
        self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"]
    ) -> Float[np.ndarray, " N"]:
        """Return -log p of each sequence given its cell type."""
        total = np.zeros(len(bases))
        for place, base in enumerate(bases.T):
            total -= np.log(self._next(bases, labels, place)[np.arange(len(bases)), base])
        return total

    def draw(
        self, labels: Int64[np.ndarray, " N"], length: int, seed: int
    ) -> UInt8[np.ndarray, "N L"]:
        rng = np.random.default_rng(seed)
        bases = np.zeros((len(labels), length), np.uint8)
        for place in range(length):
            below = self._next(bases, labels, place).cumsum(1)[:, :3]
            bases[:, place] = (rng.random((len(labels), 1)) >= below).sum(1)
        return bases

    def _next(
        self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"], place: int
    ) -> Float[np.ndarray, "N 4"]:
        known = min(place, len(self.tables) - 1)
        rows: Float[np.ndarray, "N 4"] = self.tables[known][
            labels, kmer_codes(bases[:, place - known : place], known)[:, 0]
        ]
        return rows


@dataclass(frozen=True)
class Group:
    """Sequences of one cell type, or of none (label -1), and what is compared of them."""

    label: int
    bases: UInt8[np.ndarray, "N L"]
    kmers: Float[np.ndarray, " _"]
    gc: Float[np.ndarray, " N"]
    hits: Float[np.ndarray, " K"]

    @classmethod
    def of(
        cls,
        label: int,
        bases: UInt8[np.ndarray, "N L"],
        k: int,
        motifs: list[Motif],
    ) -> Group:
        """Count k-mers, the share of G and C in each sequence, and the share of sequences with a hit of each motif."""
        kmers = np.bincount(kmer_codes(bases, k).ravel(), minlength=4**k).astype(float)
        hits = (scan(bases, motifs) > 0).mean(0, dtype=np.float64) if motifs else np.zeros(0)
        return cls(label, bases, kmers, ((bases == 1) | (bases == 2)).mean(1), hits)


class Reference:
    """Held-out sequences that samples are compared with, and the rivals that are compared in the same way.

    One half of the validation split is the reference. The other half is the noise floor, cut to as
    many sequences of each cell type as there are samples; a Markov chain of order 5 per cell type,
    fitted to the training split, draws exactly as many. The classifier is trained on the test
    split, which neither the model nor the chain has seen.
    """

    def __init__(self, sequences: Sequences, k: int) -> None:
        self.cells = sequences.cells
        self._sequences = sequences
        self._k = k
        self._rivals: dict[bytes, dict[str, dict[int, Group]]] = {}

    @cached_property
    def markov(self) -> Markov:
        """The chain of the training split."""
        return Markov(
            self._sequences.bases["train"], self._sequences.labels["train"], len(self.cells)
        )

    @cached_property
    def motifs(self) -> list[Motif]:
        """The motifs that fit into the sequences."""
        length = self._sequences.facts().length
        return [motif for motif in self._sequences.motifs() if len(motif.scores) <= length]

    @cached_property
    def _halves(self) -> tuple[tuple[UInt8[np.ndarray, "_ L"], Int64[np.ndarray, " _"]], ...]:
        """Return the reference and the floor, shuffled: neighbours in the genome must not differ by place."""
        bases = self._sequences.bases["valid"]
        labels = self._sequences.labels["valid"]
        order = np.random.default_rng(0).permutation(len(labels))
        order = order[
            np.argsort(labels[order], kind="stable")
        ]  # both halves get as many of each cell type
        return tuple((bases[order[start::2]], labels[order[start::2]]) for start in (0, 1))

    @cached_property
    def reference(self) -> dict[int, Group]:
        """The reference by cell type; -1 is all of it."""
        bases, labels = self._halves[0]
        return self.groups(bases, labels) | self.groups(bases, np.full_like(labels, -1))

    def groups(
        self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"]
    ) -> dict[int, Group]:
        parts = {int(label): bases[labels == label] for label in np.unique(labels)}
        return {
            label: Group.of(label, part, self._k, self.motifs)
            for label, part in parts.items()
            if len(part)
        }

    def rivals(self, labels: Int64[np.ndarray, " N"]) -> dict[str, dict[int, Group]]:
        """Return the noise floor and draws of the Markov chain, as many of each cell type as there are labels."""
        key = labels.tobytes()
        if key not in self._rivals:
            bases, own = self._halves[1]
            counts = {label: int((labels == label).sum()) for label in np.unique(labels).tolist()}
            floor = [
                np.flatnonzero((own == label) | (label < 0))[:count]
                for label, count in counts.items()
            ]
            asked = np.repeat(list(counts), [len(rows) for rows in floor])
            cells = np.where(labels < 0, np.arange(len(labels)) % len(self.cells), labels)
            drawn = self.markov.draw(cells, bases.shape[1], 0)
            self._rivals = {
                key: {
                    "floor": self.groups(bases[np.concatenate(floor)], asked),
                    "markov": self.groups(drawn, labels),
                }
            }
        return self._rivals[key]

    def compare(self, groups: dict[int, Group]) -> dict[str, float]:
        """Return distances to the reference, each the mean over cell types, and the accuracy of the classifier.

        - kmer_js: Jensen-Shannon distance of k-mer frequencies, in bits^(1/2) (0 to 1).
        - gc, gc_distance: mean GC content, and Wasserstein distance of its distribution over
        sequences.
        - motif_difference: mean absolute difference of the share of sequences with a hit, over
        motifs.
        - motif_r: Pearson's r of what is particular to a cell type: its share of hits minus the
        mean over cell types.
        - copied: share of 20-mers that occur in training sequences.
        - accuracy, accuracy_CELL: share of sequences that the classifier assigns to their cell
        type.
        """
        pairs = [(group, self.reference[label]) for label, group in groups.items()]
        copied = [self._is_known(kmer_codes(group.bases, COPIED)) for group, _ in pairs]
        metrics = {
            "kmer_js": np.mean(
                [jensenshannon(group.kmers, held.kmers, 2) for group, held in pairs]
            ),
            "gc": np.mean([group.gc.mean() for group, _ in pairs]),
            "gc_distance": np.mean(
                [wasserstein_distance(group.gc, held.gc) for group, held in pairs]
            ),
            "motif_difference": np.mean([np.abs(group.hits - held.hits) for group, held in pairs])
            if self.motifs
            else np.nan,
            "motif_r": _correlation(
                *(contrast([pair[side].hits for pair in pairs]) for side in (0, 1))
            ),
            "copied": np.mean([known.mean() for known in copied]) if copied[0].size else np.nan,
            **self.accuracies(groups),
        }
        return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}

    def sample_metrics(
        self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"]
    ) -> dict[str, float]:
        """Return `compare` of samples, of the noise floor (`NAME_floor`) and of the Markov chain (`NAME_markov`)."""
        if not len(bases):
            return {}
        rivals = {name: self.compare(groups) for name, groups in self.rivals(labels).items()}
        samples = self.compare(self.groups(bases, labels))
        return samples | {
            f"{name}_{rival}": v for rival, of in rivals.items() for name, v in of.items()
        }

    @cached_property
    def _known(self) -> Int64[np.ndarray, " _"]:
        return np.sort(kmer_codes(self._sequences.bases["train"], COPIED).ravel())

    def _is_known(self, codes: Int64[np.ndarray, "N n"]) -> Bool[np.ndarray, "N n"]:
        if not len(self._known):
            return np.zeros(codes.shape, bool)
        nearest = self._known[np.searchsorted(self._known, codes).clip(max=len(self._known) - 1)]
        known: Bool[np.ndarray, "N n"] = nearest == codes
        return known

    @cached_property
    def _classifier(self) -> Any:
        """Logistic regression on square roots of k-mer counts, both strands together."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        bases = self._sequences.bases["test"]
        labels = self._sequences.labels["test"]
        model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=500))
        return model.fit(_features(bases), labels)

    def accuracies(self, groups: dict[int, Group]) -> dict[str, float]:
        """Return the share of sequences that the classifier assigns to their cell type, in all and by cell type."""
        labelled = [group for label, group in groups.items() if label >= 0]
        if len(np.unique(self._sequences.labels["test"])) < 2 or not labelled:
            return {}
        right = [
            self._classifier.predict(_features(group.bases)) == group.label for group in labelled
        ]
        shares = {
            f"accuracy_{self.cells[g.label]}": hits.mean()
            for g, hits in zip(labelled, right, strict=True)
        }
        return {"accuracy": np.concatenate(right).mean()} | (shares if len(shares) > 1 else {})


def _features(bases: UInt8[np.ndarray, "N L"]) -> Float[np.ndarray, "N F"]:
    """Return square roots of the counts of 6-mers on both strands, a 6-mer and its reverse complement once."""
    own = np.arange(4**WORD)
    words = (own[:, None] // 4 ** np.arange(WORD)[::-1] % 4).astype(np.uint8)
    names, place = np.unique(
        np.minimum(own, kmer_codes(reverse_complement(words), WORD)[:, 0]), return_inverse=True
    )
    codes = place[kmer_codes(bases, WORD)] + np.arange(len(bases))[:, None] * len(names)
    counts = np.bincount(codes.ravel(), minlength=len(bases) * len(names))
    return np.sqrt(counts.reshape(len(bases), -1))


def contrast(hits: list[Float[np.ndarray, " K"]]) -> Float[np.ndarray, " _"]:
    """Return what is particular to each cell type: its share of hits minus the mean over cell types."""
    centred: Float[np.ndarray, " _"] = (np.array(hits) - np.mean(hits, 0)).ravel()
    return centred


def _correlation(first: Float[np.ndarray, " _"], second: Float[np.ndarray, " _"]) -> float:
    """Return Pearson's r; NaN if one side is constant."""
    constant = not first.size or min(np.ptp(first), np.ptp(second)) < 1e-12
    return float("nan") if constant else float(np.corrcoef(first, second)[0, 1])


class BaseMetrics:
    """Nats per base and perplexity of a split, and accuracy by noise level.

    If the loss is a NELBO, these are upper bounds, and `nats_per_base_prior` and
    `nats_per_base_reconstruction` are the two end terms of the bound.
    """

    def __init__(self, space: TokenSpace) -> None:
        self._nats = NatSums()
        self._accuracy = Accuracy(space)

    def update(
        self,
        clean: Clean,
        noised: Noised,
        pred: Any,
        measured: Measured,
    ) -> None:
        self._nats.update(measured)
        if pred is not None:
            self._accuracy.update(noised, pred)

    def per_sample(self, clean: Clean, measured: Measured) -> dict[str, RatioSums]:
        weights = measured.weights.double()
        return {"nats_per_base": ((measured.values.double() * weights).sum(1), weights.sum(1))}

    def compute(self) -> dict[str, float]:
        return self._nats.compute("nats_per_base") | self._accuracy.compute()
