"""Metrics of DNA: samples against held-out sequences, a noise floor and a Markov chain.

Letters: N sequences, L bases, C cell types, K motifs, F features.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8
from numpy import ndarray
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

from dither.registry.contracts.protocols import Metrics, RatioSums
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import TokenSpace

from ..get_region.data.motif_scan import Motif, scan
from ..token_metrics import Accuracy, NatSums
from .sequences import (
    Bases,
    Labels,
    Sequences,
    choose_bases,
    reverse_complement,
)

__all__ = ["BaseMetrics", "Group", "Markov", "Reference", "contrast", "kmer_codes"]

_Vector = Float[ndarray, " _"]

WORD = 6
"""Length of the k-mers that the classifier reads."""
COPIED = 20
"""Length of the k-mers that may be copied from training sequences."""
STRENGTH = 1e-3
"""Inverse L2 penalty of the classifier."""
PENALTIES = 10.0 ** np.arange(7)
"""L2 penalties of the regression, of which leave-one-out validation chooses one."""
WEIGHT = 4.0
"""Observations that the distribution of the next lower order counts for."""


def kmer_codes(bases: Bases, k: int) -> Int64[ndarray, "N n"]:
    """Return the k-mers of each sequence as numbers in base 4, the first base most significant."""
    count, length = bases.shape
    words = max(length - k + 1, 0)
    codes = np.zeros((count, words), np.int64)
    for place in range(k):
        codes = 4 * codes + bases[:, place : place + words]
    return codes


class Markov:
    """Markov chain of bases given the `order` bases before and the cell type; fitted to `bases`.

    The first bases depend on fewer bases. Each context's counts are smoothed with the
    distribution of the context that is one base shorter, which counts for 4 observations.
    """

    def __init__(
        self,
        bases: Bases,
        labels: Labels,
        cells: int,
        order: int = 5,
    ) -> None:
        shorter = np.full((cells, 1, 4), 0.25)
        self.tables: list[Float[ndarray, "C _ 4"]] = []
        for known in range(order + 1):
            size = 4 ** (known + 1)
            codes = kmer_codes(bases, known + 1) + labels[:, None] * size
            counts = np.bincount(codes.ravel(), minlength=cells * size)
            counts = counts.reshape(cells, -1, 4)
            # Contexts that end in the same bases share the distribution of the shorter one.
            lower = shorter if known == 0 else np.tile(shorter, (1, 4, 1))
            total = counts.sum(2, keepdims=True) + WEIGHT
            shorter = (counts + WEIGHT * lower) / total
            self.tables.append(shorter)

    def nats(self, bases: Bases, labels: Labels) -> Float[ndarray, " N"]:
        """Return -log p of each sequence given its cell type."""
        nats = np.zeros(len(bases))
        rows = np.arange(len(bases))
        for place, base in enumerate(bases.T):
            p = self._next(bases, labels, place)
            nats -= np.log(p[rows, base])
        return nats

    def draw(self, labels: Labels, length: int, seed: int) -> Bases:
        rng = np.random.default_rng(seed)
        bases = np.zeros((len(labels), length), np.uint8)
        for place in range(length):
            p = self._next(bases, labels, place)
            bases[:, place] = choose_bases(rng, p, len(labels))
        return bases

    def _next(
        self,
        bases: Bases,
        labels: Labels,
        place: int,
    ) -> Float[ndarray, "N 4"]:
        """Return the distribution of the base at a place given those before."""
        known = min(place, len(self.tables) - 1)
        before = bases[:, place - known : place]
        context = kmer_codes(before, known)[:, 0]
        return self.tables[known][labels, context]


@dataclass(frozen=True)
class Group:
    """Sequences of one cell type, or of none (label -1), and their statistics."""

    label: int
    bases: Bases
    kmers: _Vector
    gc: Float[ndarray, " N"]
    hits: Float[ndarray, " K"]

    @classmethod
    def of(
        cls,
        label: int,
        bases: Bases,
        k: int,
        motifs: list[Motif],
    ) -> Group:
        """Count k-mers, G and C in each sequence, and sequences with a hit of each motif."""
        hits = np.zeros(0)
        if motifs:
            hits = (scan(bases, motifs) > 0).mean(0, dtype=np.float64)
        kmers = np.bincount(kmer_codes(bases, k).ravel(), minlength=4**k)
        # C is 1, G is 2.
        is_gc = (bases == 1) | (bases == 2)
        return cls(label, bases, kmers.astype(float), is_gc.mean(1), hits)


class Reference:
    """Held-out sequences that samples are compared with, and rivals.

    One half of the validation split is the reference. The other half is the noise floor, cut to as
    many sequences of each cell type as there are samples; a Markov chain of order 5 per cell type,
    fitted to the training split, draws exactly as many. The classifier is trained on the test
    split, which neither the model nor the chain has seen.
    """

    def __init__(self, sequences: Sequences, k: int) -> None:
        self.cells = sequences.cells
        self._sequences = sequences
        self._k = k
        self._regressions: dict[str, Any] = {}
        self._rivals_of = b""
        self._rivals: dict[str, dict[int, Group]] = {}

    @cached_property
    def markov(self) -> Markov:
        """The chain of the training split."""
        sequences = self._sequences
        return Markov(
            sequences.bases["train"], sequences.labels["train"], len(self.cells)
        )

    @cached_property
    def motifs(self) -> list[Motif]:
        """The motifs that fit into the sequences."""
        length = self._sequences.facts().length
        return [
            motif for motif in self._sequences.motifs() if len(motif.scores) <= length
        ]

    @cached_property
    def _halves(
        self,
    ) -> tuple[tuple[UInt8[ndarray, "_ L"], Int64[ndarray, " _"]], ...]:
        """Return the reference and the floor, with as many sequences of each cell type."""
        bases = self._sequences.bases["valid"]
        labels = self._sequences.labels["valid"]
        # Shuffled: neighbours in the genome must not differ by half.
        order = np.random.default_rng(0).permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        first = order[::2]
        second = order[1::2]
        return (bases[first], labels[first]), (bases[second], labels[second])

    @cached_property
    def reference(self) -> dict[int, Group]:
        """The reference by cell type; -1 is all of it."""
        bases, labels = self._halves[0]
        of_all = np.full_like(labels, -1)
        return self.groups(bases, labels) | self.groups(bases, of_all)

    def groups(self, bases: Bases, labels: Labels) -> dict[int, Group]:
        """Return sequences by cell type."""
        return {
            label: Group.of(label, bases[labels == label], self._k, self.motifs)
            for label in np.unique(labels).tolist()
        }

    def comparable(self, groups: dict[int, Group]) -> dict[int, Group]:
        """Return the groups of cell types that the reference has: a small validation split may lack some."""
        return {
            label: group for label, group in groups.items() if label in self.reference
        }

    def rivals(self, labels: Labels) -> dict[str, dict[int, Group]]:
        """Return noise floor and draws of the Markov chain, as many of each cell type as labels."""
        # Metrics and plots of the same samples need them twice.
        key = labels.tobytes()
        if self._rivals_of != key:
            bases, cells = self._halves[1]
            rows = []
            floor_labels = []
            unique, counts = np.unique(labels, return_counts=True)
            for label, count in zip(unique, counts, strict=True):
                # Samples without a label are compared with sequences of any cell type.
                of_cell = np.flatnonzero((cells == label) | (label < 0))[:count]
                rows.append(of_cell)
                floor_labels.append(np.full(len(of_cell), label))
            floor = bases[np.concatenate(rows)]

            # The chain has no distribution without a label: cell types in turn.
            any_cell = np.arange(len(labels)) % len(self.cells)
            cell = np.where(labels < 0, any_cell, labels)
            drawn = self.markov.draw(cell, bases.shape[1], seed=0)
            self._rivals = {
                "floor": self.groups(floor, np.concatenate(floor_labels)),
                "markov": self.groups(drawn, labels),
            }
            self._rivals_of = key
        return self._rivals

    def compare(self, groups: dict[int, Group]) -> dict[str, float]:
        """Return distances to the reference, means over its cell types, and accuracies.

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
        values: dict[str, list[Any]] = defaultdict(list)
        compared = self.comparable(groups)
        for label, group in compared.items():
            held = self.reference[label]
            values["kmer_js"].append(jensenshannon(group.kmers, held.kmers, 2))
            values["gc"].append(group.gc.mean())
            values["gc_distance"].append(wasserstein_distance(group.gc, held.gc))
            if self.motifs:
                values["motif_difference"].append(np.abs(group.hits - held.hits))
            codes = kmer_codes(group.bases, COPIED)
            # Sequences may be shorter than the k-mers.
            if codes.size:
                values["copied"].append(self._is_known(codes).mean())
        metrics = {name: np.mean(of_groups) for name, of_groups in values.items()}

        if self.motifs and compared:
            held_hits = [self.reference[label].hits for label in compared]
            hits = contrast([group.hits for group in compared.values()])
            metrics["motif_r"] = _correlation(hits, contrast(held_hits))
        metrics |= self.accuracies(groups)
        # Undefined ones, such as of a single cell type, are left out.
        return {
            name: float(value) for name, value in metrics.items() if np.isfinite(value)
        }

    def sample_metrics(self, bases: Bases, labels: Labels) -> dict[str, float]:
        """Return `compare` of samples, the floor (`NAME_floor`) and the chain (`NAME_markov`)."""
        if not len(bases):
            return {}
        metrics = self.compare(self.groups(bases, labels))
        for rival, groups in self.rivals(labels).items():
            for name, value in self.compare(groups).items():
                metrics[f"{name}_{rival}"] = value
        return metrics

    def number_metrics(
        self, name: str, bases: Bases, requested: Float[ndarray, " N"]
    ) -> dict[str, float]:
        """Compare the predictions of a regression for samples with the requested numbers.

        `NAME_predicted` and `NAME_requested` are means, `NAME_r` is Pearson's r, and `NAME_r_floor`
        that of validation sequences with their own numbers.
        """
        # An unconditional sample has NaN.
        conditional = np.isfinite(requested)
        if not conditional.any():
            return {}
        requested = requested[conditional]
        predicted = self._predict(name, bases[conditional])
        metrics = {
            f"{name}_requested": float(requested.mean()),
            f"{name}_predicted": float(predicted.mean()),
        }
        # Correlation requires several requested numbers.
        if np.ptp(requested):
            real = self._predict(name, self._sequences.bases["valid"])
            numbers = self._sequences.numbers[name]["valid"]
            metrics[f"{name}_r"] = _correlation(predicted, requested)
            metrics[f"{name}_r_floor"] = _correlation(real, numbers)
        return {key: value for key, value in metrics.items() if np.isfinite(value)}

    def _predict(self, name: str, bases: Bases) -> Float[ndarray, " N"]:
        """Return ridge regression's predictions of a number, trained on the test split as the classifier."""
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if name not in self._regressions:
            model = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
            known = _features(self._sequences.bases["test"])
            self._regressions[name] = model.fit(
                known, self._sequences.numbers[name]["test"]
            )
        return self._regressions[name].predict(_features(bases))

    @cached_property
    def _known(self) -> Int64[ndarray, " _"]:
        return np.sort(kmer_codes(self._sequences.bases["train"], COPIED).ravel())

    def _is_known(self, codes: Int64[ndarray, "N n"]) -> Bool[ndarray, "N n"]:
        if not len(self._known):
            return np.zeros(codes.shape, bool)
        place = np.searchsorted(self._known, codes)
        # A code above all others has no place.
        nearest = self._known[place.clip(max=len(self._known) - 1)]
        return nearest == codes

    @cached_property
    def _classifier(self) -> Any:
        """Logistic regression on square roots of k-mer counts, both strands together."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        bases = self._sequences.bases["test"]
        labels = self._sequences.labels["test"]
        model = make_pipeline(
            StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=500)
        )
        return model.fit(_features(bases), labels)

    def accuracies(self, groups: dict[int, Group]) -> dict[str, float]:
        """Return the accuracy of the classifier, in all and by cell type."""
        labelled = [group for label, group in groups.items() if label >= 0]
        # A classifier needs two classes.
        if not labelled or len(np.unique(self._sequences.labels["test"])) < 2:
            return {}
        hits = []
        shares = {}
        for group in labelled:
            predicted = self._classifier.predict(_features(group.bases))
            hits.append(predicted == group.label)
            shares[f"accuracy_{self.cells[group.label]}"] = hits[-1].mean()
        accuracy = {"accuracy": np.concatenate(hits).mean()}
        if len(shares) > 1:
            accuracy |= shares
        return accuracy


def _features(bases: Bases) -> Float[ndarray, "N F"]:
    """Return square roots of the counts of 6-mers on both strands.

    A 6-mer and its reverse complement are one feature.
    """
    # Every 6-mer as a row of bases, in the order of its code.
    codes = np.arange(4**WORD)
    digits = 4 ** np.arange(WORD)[::-1]
    words = (codes[:, None] // digits % 4).astype(np.uint8)
    other = kmer_codes(reverse_complement(words), WORD)[:, 0]
    names, feature = np.unique(np.minimum(codes, other), return_inverse=True)

    # One count of all sequences: each has a range of numbers of its own.
    count = len(bases)
    rows = np.arange(count)[:, None] * len(names)
    cells = feature[kmer_codes(bases, WORD)] + rows
    counts = np.bincount(cells.ravel(), minlength=count * len(names))
    # Roots of counts have about the same variance at any frequency of the word.
    return np.sqrt(counts.reshape(count, -1))


def contrast(hits: list[Float[ndarray, " K"]]) -> _Vector:
    """Return the share of hits of each cell type minus the mean over cell types."""
    return (np.array(hits) - np.mean(hits, 0)).ravel()


def _correlation(first: _Vector, second: _Vector) -> float:
    """Return Pearson's r; NaN if one side is constant."""
    # Up to rounding of the means over cell types.
    if min(np.ptp(first), np.ptp(second)) < 1e-12:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


class BaseMetrics(Metrics):
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
        nats = (measured.values.double() * weights).sum(1)
        return {"nats_per_base": (nats, weights.sum(1))}

    def compute(self) -> dict[str, float]:
        return self._nats.compute("nats_per_base") | self._accuracy.compute()
