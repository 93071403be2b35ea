"""Specs of the task dna-sequence and its data. Read without torch and numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.spec.base import PathStr, Slot, named
from dither.registry.spec.misfit import Misfit, below

from ..missing_library import missing_libraries, require_extra
from .facts import SequenceFacts

if TYPE_CHECKING:
    from .sequences import Sequences
    from .task import DnaSequences

__all__ = ["DHSSequences", "DnaSequence", "PlantedMotifs", "SequenceFile"]

RESERVED = ("sequence", "label", "cell", "split", "x0", "valid", "known")
"""Other columns of a table, and other parts of a batch."""


class DnaSequence(TaskSpec):
    """DNA sequences of fixed length over A, C, G and T, with the cell type as a condition.

    A source is a data component with `gives = "sequences"` whose `build` returns `Sequences`, and
    whose `facts` returns `SequenceFacts`.
    """

    name = "dna-sequence"
    bucketed: ClassVar[bool | None] = False
    higher: ClassVar[tuple[str, ...]] = ("accuracy*",)
    lower: ClassVar[tuple[str, ...]] = ("*_js", "*_error", "*_distance")
    explanations: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "markov": "Markov chain of order 5 of each cell type",
            "truth": "the distribution that the data were drawn from",
        }
    )
    exports: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"fasta": "sequences.fa: a record for each sample, with its cell type"}
    )
    data: Slot[DataSpec] = named("planted-motifs")
    """Source of the sequences."""
    reverse_complement: bool = False
    """Add the reverse complement of every training sequence, which doubles the number of training
    samples."""
    kmer: int = Option(6, ge=1, le=8)
    """Length of the k-mers whose frequencies are compared."""
    motifs: PathStr | None = Option(None, min_length=1)
    """File of motifs in MEME or JASPAR format whose hits are compared; by default those of the
    source."""

    def check(self) -> Iterator[Misfit]:
        """Yield a wrong source, its own problems, and a file of motifs that cannot be read."""
        yield from below("data", self.data.check_gives("sequences"))
        problems = list(below("data", self.data.check()))
        yield from problems
        # The length is that of the source, which must be valid.
        if not problems and self.data.gives == "sequences":
            length = self.space().length
            if self.kmer > length:
                message = f"sequences of {length} bases have no {self.kmer}-mers"
                yield Misfit(message, ("kmer",), code="out-of-range")
        if self.motifs is not None:
            from ..get_region.formats.motif_files import read_motifs

            try:
                read_motifs(Path(self.motifs).expanduser())
            except Refused as refused:
                for problem in refused.problems:
                    yield problem.as_misfit(("motifs",))

    def space(self) -> TokenSpace:
        facts: SequenceFacts = self.data.facts()
        return facts.space()

    def build(self) -> DnaSequences:
        require_extra("regions", self.name, ("task",))
        from .task import DnaSequences

        sequences: Sequences = self.data.build()
        motifs = None if self.motifs is None else Path(self.motifs).expanduser()
        return DnaSequences(
            sequences,
            kmer=self.kmer,
            motifs=motifs,
            reverse_complement=self.reverse_complement,
        )


class DHSSequences(DataSpec):
    """47,872 human regulatory regions of 200 bases, each open in one of four cell types.

    Chromosome 2 is held out for validation and chromosome 1 for testing. A wheel of 19 MB is
    downloaded on first use, and one of 57 MB with the motifs of JASPAR when samples are first
    evaluated.
    """

    name = "dhs-sequences"
    gives: ClassVar[str] = "sequences"

    def facts(self) -> SequenceFacts:
        """Return the length and the cell types; a test compares them with the data."""
        return SequenceFacts(200, ("K562", "HepG2", "GM12878", "hESC"))

    def build(self) -> Sequences:
        from .sequences import read_dhs

        return read_dhs(self.name)

    def prepare(self) -> str:
        sequences = self.build()
        sizes = ", ".join(
            f"{len(rows):,} for {split}" for split, rows in sequences.bases.items()
        )
        return f"{sizes}; {len(sequences.motifs()):,} motifs"


class SequenceFile(DataSpec):
    """Sequences of one length in a file: FASTA with records `>NAME LABEL`, or a table.

    A .csv or .tsv has the column sequence, and perhaps label and split (train, valid or test). Any
    may be gzipped. Motifs are those of the option `motifs` of the task.

    Columns of `numbers` are conditions for model condition "number"; in FASTA they are words
    NAME=NUMBER of the header.
    """

    name = "sequence-file"
    gives: ClassVar[str] = "sequences"
    path: PathStr = Option(min_length=1)
    """The file, relative to the working directory."""
    held: float = Option(0.1, gt=0, le=0.4)
    """Share of the sequences in the validation split, and in the test split, if the file has no
    column split."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Seed of the division."""
    numbers: list[str] = []
    """Columns of real numbers that are conditions, such as ["activity"]."""

    @model_validator(mode="after")
    def _names_differ(self) -> SequenceFile:
        if len({*self.numbers, *RESERVED}) < len(self.numbers) + len(RESERVED):
            names = ", ".join(RESERVED)
            raise ValueError(f"numbers must be unique, and none of {names}")
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield the mistakes of the file."""
        if problems := list(missing_libraries("regions", self.name)):
            # Without the libraries the file cannot be read.
            yield from (problem.as_misfit() for problem in problems)
            return
        try:
            self.facts()
        except Refused as refused:
            for problem in refused.problems:
                yield problem.as_misfit(("path",))

    def facts(self) -> SequenceFacts:
        from .sequence_files import read_sequence_file

        path = Path(self.path).expanduser()
        table = read_sequence_file(path, tuple(self.numbers))
        return table.facts(self.held, self.seed)

    def build(self) -> Sequences:
        from .sequences import read_own

        path = Path(self.path).expanduser()
        return read_own(path, self.held, self.seed, tuple(self.numbers))


class PlantedMotifs(DataSpec):
    """Random sequences with planted motifs of their cell type: a source of known likelihood.

    Bases are independent, with a GC content of 0.3 for the first to 0.7 for the last cell type. At
    each base outside a motif one of the cell type's motifs begins with probability `rate`, if it
    fits into the sequence.
    """

    name = "planted-motifs"
    gives: ClassVar[str] = "sequences"
    length: int = Option(200, ge=1, le=10_000)
    """Bases per sequence."""
    cells: int = Option(4, ge=1, le=100)
    """Number of cell types: cell-1, cell-2, ..."""
    motifs: int = Option(2, ge=1, le=100)
    """Motifs of each cell type."""
    width: int = Option(12, ge=1, le=100)
    """Bases of a motif; in each column one base has the probability 0.95."""
    rate: float = Option(0.08, gt=0, lt=1)
    """Probability that a motif begins at a base."""
    train: int = Option(20_000, ge=1, le=10_000_000)
    """Training sequences."""
    held: int = Option(2_000, ge=2, le=1_000_000)
    """Validation sequences, and test sequences; independent of `train`."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Seed of the motifs and the sequences."""

    @model_validator(mode="after")
    def _fits(self) -> PlantedMotifs:
        if self.width > self.length:
            raise ValueError(
                f"a motif of {self.width} bases does not fit into {self.length}"
            )
        return self

    def facts(self) -> SequenceFacts:
        return SequenceFacts(
            self.length, tuple(f"cell-{number + 1}" for number in range(self.cells))
        )

    def build(self) -> Sequences:
        from .sequences import plant

        options = self.model_dump(
            include={
                "length",
                "cells",
                "motifs",
                "width",
                "rate",
                "train",
                "held",
                "seed",
            }
        )
        return plant(self.name, self.facts().cells, **options)
