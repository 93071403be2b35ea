"""The task dna-sequence: batches, metrics, pictures and FASTA files.

Letters: B batch, N samples, L bases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, UInt8
from numpy import ndarray
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.contracts.protocols import Picture, Split, Task
from dither.registry.contracts.records import Clean

from ..get_region.data.motif_scan import BASES, encode
from ..infilling import with_known
from ..plot_style import to_picture
from ..row_numbers import row_numbers
from .metrics import BaseMetrics, Reference
from .plots import compare_groups, draw_logos
from .sequences import Sequences, as_text, reverse_complement

__all__ = ["DnaSequences"]

_Samples = Int[Tensor, "N L"]

SHOWN = 8
"""Sequences of each cell type in the text of samples."""


class DnaSequences(Task):
    """Sequences of one length with a label "cell"; cell types of samples alternate.

    Samples are compared by k-mers of length `kmer` and by motifs, of a file or those of the source.
    With `reverse_complement`, the training split also has the other strand of each sequence.
    """

    def __init__(
        self,
        sequences: Sequences,
        *,
        kmer: int = 6,
        motifs: Path | None = None,
        reverse_complement: bool = False,
    ) -> None:
        for split in ("train", "valid", "test"):
            if not len(sequences.bases[split]):
                raise Refused(
                    f'{sequences.name}: the split "{split}" is empty', code="no-samples"
                )
        # Read when samples are evaluated: training does not need it.
        if motifs is not None:
            from ..get_region.formats.motif_files import read_motifs

            sequences = replace(sequences, motifs=lambda: read_motifs(motifs))
        if reverse_complement:
            sequences = _with_other_strand(sequences)
        self.sequences = sequences
        self.space = sequences.facts().space()
        self._reference = Reference(sequences, kmer)

    def size(self, split: Split) -> int:
        return len(self.sequences.bases[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        numbers = row_numbers(rows, self.size(split))
        bases = self.sequences.bases[split][numbers].astype(np.int64)
        labels = self.sequences.labels[split][numbers].astype(np.int64)
        return Clean.of(
            torch.from_numpy(bases),
            cell=torch.from_numpy(labels),
            **self._numbers(split, numbers),
        )

    def _numbers(
        self, split: Split, rows: Int64[ndarray, " N"]
    ) -> dict[str, Float[Tensor, " N"]]:
        """Return the numbers of sequences, by name."""
        return {
            name: torch.from_numpy(of_split[split][rows])
            for name, of_split in self.sequences.numbers.items()
        }

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` templates without known bases, with the cell types in turn.

        Each has the numbers of a validation sequence of its cell type.
        """
        cell = np.arange(n) % len(self.sequences.cells)
        rows = np.zeros(n, np.int64)
        if self.sequences.numbers:
            rng = np.random.default_rng(seed)
            # Numbers depend on the cell type: other pairs may never occur in data.
            for label in np.unique(cell):
                of_cell = np.flatnonzero(self.sequences.labels["valid"] == label)
                templates = cell == label
                rows[templates] = rng.choice(of_cell, templates.sum())
        return Clean.of(
            torch.zeros(n, self.space.length, dtype=torch.int64),
            cell=torch.from_numpy(cell),
            **self._numbers("valid", rows),
        )

    def infill(self, text: str, n: int, seed: int) -> Clean:
        """Return `n` templates with the bases of a text, and K free ones at each `[MASK:K]`."""
        return with_known(self.like(n, seed), text, _known_bases)

    def metrics(self) -> BaseMetrics:
        """Return an accumulator of nats per base."""
        return BaseMetrics(self.space)

    def baselines(
        self, split: Split = "valid", samples: int | None = None
    ) -> dict[str, float]:
        """Return nats per base of uniform bases, the Markov chains and the truth, if known."""
        predictors: dict[str, Any] = {"markov": self._reference.markov.nats}
        if self.sequences.nats is not None:
            predictors["truth"] = self.sequences.nats
        result = {"nats_per_base/uniform": log(4)}
        bases = self.sequences.bases[split]
        labels = self.sequences.labels[split]
        for name, nats in predictors.items():
            mean = float(nats(bases, labels).mean())
            result[f"nats_per_base/{name}"] = mean / self.space.length
        return result

    def sample_metrics(self, samples: _Samples, like: Clean) -> dict[str, float]:
        """Return distances of samples to held-out sequences and accuracies; see `Reference`."""
        bases, labels = _arrays(samples, like)
        metrics = self._reference.sample_metrics(bases, labels)
        for name in self.sequences.numbers:
            requested = like.cond[name].cpu().numpy()
            metrics |= self._reference.number_metrics(name, bases, requested)
        return metrics

    def decode(self, samples: _Samples, like: Clean) -> list[str]:
        """Return each sample as a text of A, C, G and T."""
        return as_text(samples.cpu().numpy().astype(np.uint8))

    def plots(self, samples: _Samples, like: Clean) -> Iterator[Picture]:
        """Yield pictures that compare samples with held-out sequences, and samples as text."""
        bases, labels = _arrays(samples, like)
        if len(bases):
            groups = {
                "samples": self._reference.groups(bases, labels),
                **self._reference.rivals(labels),
            }
            yield to_picture("comparison", compare_groups(self._reference, groups))
            if (logos := draw_logos(self._reference, bases)) is not None:
                yield to_picture("logos", logos)
        yield Picture("sequences", text=self._fasta(bases, like, SHOWN))

    def export(
        self,
        samples: _Samples,
        like: Clean,
        form: str,
        folder: Path,
    ) -> tuple[list[Path], list[str]]:
        """Write samples as FASTA."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "sequences.fa"
        bases, _ = _arrays(samples, like)
        path.write_text(self._fasta(bases, like), "utf-8")
        return [path], []

    def _fasta(
        self,
        bases: UInt8[ndarray, "N L"],
        like: Clean,
        limit: int | None = None,
    ) -> str:
        """Return records `>sample-NUMBER CELL NAME=VALUE`, at most `limit` of each cell type."""
        labels = like.cond["cell"].cpu().numpy()
        # Label -1 is any cell type.
        names = [*self.sequences.cells, "any"]
        rows: list[int] = []
        for label in np.unique(labels):
            rows += np.flatnonzero(labels == label)[:limit].tolist()
        rows.sort()
        records = []
        for row, text in zip(rows, as_text(bases[rows]), strict=True):
            words = [f">sample-{row}", names[labels[row]]]
            for name in self.sequences.numbers:
                words.append(f"{name}={like.cond[name][row].item():g}")
            records.append(f"{' '.join(words)}\n{text}\n")
        return "".join(records)


def _known_bases(text: str) -> Int64[ndarray, " K"]:
    """Return the bases of a text; Refused for other letters than A, C, G and T."""
    bases = encode([text])[0].astype(np.int64)
    if (bases >= len(BASES)).any():
        others = ", ".join(sorted(set(text.upper()) - set(BASES)))
        message = f"the text contains {others} in place of A, C, G or T"
        raise Refused(message, code="unknown-value")
    return bases


def _arrays(
    samples: _Samples, like: Clean
) -> tuple[UInt8[ndarray, "N L"], Int64[ndarray, " N"]]:
    return samples.cpu().numpy().astype(np.uint8), like.cond["cell"].cpu().numpy()


def _with_other_strand(sequences: Sequences) -> Sequences:
    """Return the sequences with the reverse complement of each training sequence."""
    bases = sequences.bases["train"]
    labels = sequences.labels["train"]
    both = np.concatenate([bases, reverse_complement(bases)])
    numbers = {}
    for name, of_split in sequences.numbers.items():
        # Both strands of a sequence have its number.
        numbers[name] = {**of_split, "train": np.tile(of_split["train"], 2)}
    return replace(
        sequences,
        bases={**sequences.bases, "train": both},
        labels={**sequences.labels, "train": np.tile(labels, 2)},
        numbers=numbers,
    )
