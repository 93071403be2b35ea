"""The menu of sources of regions. No torch here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds.task import DataSpec
from dither.registry.spec.misfit import Misfit

from .data.column_groups import RegionFacts

if TYPE_CHECKING:
    from .data.region_matrix import RegionMatrix

__all__ = ["HumanDHS", "PreparedRegions", "RegionArrays", "RegionFile", "RegionStore"]


class HumanDHS(DataSpec):
    """47,872 regulatory regions of the human genome, 282 motif archetypes, open in one of four cell types each.

    Chromosome 2 is held out for validation and chromosome 1 for testing. Comes with the package: nothing to fetch.
    """

    name: ClassVar[str] = "human-dhs"
    gives: ClassVar[str] = "regions"
    prepared_as: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"dhs": {"subset": "built"}})
    subset: Literal["whole", "chr21-22", "built"] = "whole"
    """whole: all regions, in steps of 1/255. chr21-22: chromosome 22 to train on (859 regions), 21 held out (567).
    built: all regions without rounding, as `prepare` builds them from two wheels (75 MB fetched, a minute of work)."""

    def facts(self) -> RegionFacts:
        """Tell what the table holds; a test compares it with the table."""
        longest, rows, chromosomes = (859, 1426, 2) if self.subset == "chr21-22" else (3217, 47_872, 24)
        each = 4 if self.subset == "built" else 1
        return RegionFacts(282, ("K562", "HepG2", "GM12878", "hESC"), longest, rows, chromosomes, bytes_each=each)

    def build(self) -> RegionMatrix:
        """Read the table, its checksum verified."""
        from .data.human_dhs import read_human

        return read_human(self.subset)

    def prepare(self) -> str | None:
        """Fetch the two wheels and build the matrix, where that is asked for and not done yet."""
        if self.subset != "built":
            return None
        from .data.build_human_dhs import ensure_built

        return ensure_built()


class RegionFile(DataSpec):
    """A table of regions of yours: text with columns chromosome,start,end,open:CELL,...,MOTIF,... or arrays.

    Text is .csv or .tsv, also .gz. Arrays are .npz, with features, motifs, chromosome, start, end, open and cells.
    """

    name: ClassVar[str] = "region-file"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """The file, from the working directory; sorted by chromosome and start."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and cut at 1."""

    @model_validator(mode="after")
    def _apart(self) -> RegionFile:
        _keep_apart(self.valid, self.test)
        return self

    def facts(self) -> RegionFacts:
        """Read the names of the columns, and of the chromosomes."""
        from .formats.tables import read_facts

        return read_facts(Path(self.path).expanduser(), valid=self.valid, test=self.test)

    def build(self) -> RegionMatrix:
        """Read and check the file."""
        from .formats.tables import read_region_file

        return read_region_file(Path(self.path).expanduser(), valid=self.valid, test=self.test, scale=self.scale)


class RegionStore(DataSpec):
    """A zarr store of get_model, read directly and whole; `prepare get` makes of it what need not be in memory.

    Formats 2 and 3. Chunks packed with zlib or gzip need nothing else, blosc, zstd and lz4 the extra "zarr".
    """

    name: ClassVar[str] = "region-store"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """The folder of the store, from the working directory."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and cut at 1."""
    overlaps: bool = False
    """Take regions that overlap each other."""
    empty_chunks: bool = False
    """Take chunks of a store that are not there for empty ones, as zarr 3 may leave them out; otherwise it counts as
    cut short."""

    @model_validator(mode="after")
    def _apart(self) -> RegionStore:
        _keep_apart(self.valid, self.test)
        return self

    def facts(self) -> RegionFacts:
        """Read the headers and the names."""
        from .formats.sources import store_facts

        held_out = (*self.valid, *self.test)
        return store_facts(Path(self.path).expanduser(), held_out=held_out, empty_chunks=self.empty_chunks)

    def build(self) -> RegionMatrix:
        """Read and check the store."""
        from .formats.sources import open_store

        return open_store(
            Path(self.path).expanduser(),
            valid=self.valid,
            test=self.test,
            scale=self.scale,
            overlaps=self.overlaps,
            empty_chunks=self.empty_chunks,
        )


class RegionArrays(DataSpec):
    """A folder of arrays that `prepare get` has made; the motifs are mapped, so their size does not matter."""

    name: ClassVar[str] = "region-arrays"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """The folder, from the working directory."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and cut at 1."""

    @model_validator(mode="after")
    def _apart(self) -> RegionArrays:
        _keep_apart(self.valid, self.test)
        return self

    def facts(self) -> RegionFacts:
        """Read what the folder says about itself."""
        from .data.prepared_folder import find_record

        return find_record(Path(self.path).expanduser()).facts((*self.valid, *self.test))

    def build(self) -> RegionMatrix:
        """Map the arrays."""
        from .data.prepared_folder import open_folder

        return open_folder(Path(self.path).expanduser(), valid=self.valid, test=self.test, scale=self.scale)

    def prepare(self) -> str:
        """Read every file through, and say that all is well."""
        from .data.prepared_folder import verify

        folder = Path(self.path).expanduser()
        verify(folder)
        return f"every checksum is right in {folder}"


class PreparedRegions(DataSpec):
    """Regions from get_model's stores and folders, matrices, AnnData; checked and converted once by `prepare get`."""

    name: ClassVar[str] = "get"
    gives: ClassVar[str] = "regions"
    paths: list[str] = Option(min_length=1)
    """A zarr store, a folder with cell_type_align.txt, .h5ad, .npz, .parquet, .csv or .tsv (.gz); with a matrix that
    does not say where its regions are a .bed file, and CELL.atac.bed for the accessibility of a cell type."""
    out: str = ""
    """Folder for the arrays; without it a folder in the cache, named after the options. One that ends in .zarr becomes
    a store of get_model."""
    dtype: Literal["float32", "float16"] = "float32"
    """How motifs are kept; float16 takes half the space and is 0.05 % off at most, and 3e-8 off below 6e-5."""
    zarr_format: Literal[2, 3] = 2
    """Of a store that is written; get_model reads 2."""
    overlaps: bool = False
    """Take regions that overlap each other."""
    empty_chunks: bool = False
    """Take chunks of a store that are not there for empty ones, as zarr 3 may leave them out; otherwise it counts as
    cut short."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and cut at 1."""
    force: bool = False
    """Replace a folder of arrays that was made otherwise."""

    @model_validator(mode="after")
    def _apart(self) -> PreparedRegions:
        _keep_apart(self.valid, self.test)
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield that the regions have not been prepared yet."""
        from .conversion import is_there

        if (missing := is_there(self)) is not None:
            what = f"these regions have not been prepared: there is no {missing}"
            yield Misfit(what, ("paths",), help=f"run: {self.command()}")

    def command(self) -> str:
        """Return the command that prepares the regions."""
        words = ["dither", "prepare", "get", *self.paths]
        for key in ("out", "dtype", "zarr_format", "overlaps", "empty_chunks"):
            if (value := getattr(self, key)) != type(self).model_fields[key].default:
                words += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
        return shlex.join(words)

    def facts(self) -> RegionFacts:
        """Read what the folder says about itself."""
        from .conversion import converted_facts

        return converted_facts(self)

    def build(self) -> RegionMatrix:
        """Map the arrays."""
        from .conversion import open_converted

        return open_converted(self)

    def prepare(self) -> str:
        """Check and convert, and say what there is."""
        from .conversion import convert

        return convert(self)


def _keep_apart(valid: list[str], test: list[str]) -> None:
    if both := sorted({*valid} & {*test}):
        raise ValueError(f"{', '.join(both)} cannot be held out both for validation and for testing")
