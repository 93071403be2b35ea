"""Specs of the sources of regions. Neither numpy nor torch is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds.task import DataSpec
from dither.registry.spec.misfit import Misfit

from ..prepared.manifest import Kind, read_manifest
from ..prepared.spec import PrepareSpec
from .data.column_groups import REGIONS, RegionFacts, RegionInfo

if TYPE_CHECKING:
    from .data.region_matrix import RegionMatrix

__all__ = ["HumanDHS", "PreparedRegions", "RegionArrays", "RegionFile", "RegionStore"]


class HumanDHS(DataSpec):
    """47,872 regulatory regions of the human genome, 282 motif archetypes, each open in one of four cell types.

    Chromosome 2 is held out for validation and chromosome 1 for testing. Included in the package.
    """

    name: ClassVar[str] = "human-dhs"
    gives: ClassVar[str] = "regions"
    prepared_as: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"dhs": {"subset": "built"}})
    subset: Literal["whole", "chr21-22", "built"] = "whole"
    """whole: all regions, in steps of 1/255. chr21-22: chromosome 22 for training (859 regions), 21 held out (567).
    built: all regions without rounding, as `prepare` builds them from two wheels (75 MB download, one minute)."""

    def facts(self) -> RegionFacts:
        """Return sizes and names; a test compares them with the table."""
        longest, rows, chromosomes = (859, 1426, 2) if self.subset == "chr21-22" else (3217, 47_872, 24)
        return RegionFacts(282, ("K562", "HepG2", "GM12878", "hESC"), longest, rows, chromosomes)

    def build(self) -> RegionMatrix:
        """Read the table, after comparing its checksum."""
        from .data.human_dhs import read_human

        return read_human(self.subset)

    def prepare(self) -> str | None:
        """Download the two wheels and build the matrix, for the subset "built"."""
        if self.subset != "built":
            return None
        from .data.build_human_dhs import ensure_built

        return ensure_built()


class _HeldOut(DataSpec):
    """Base of sources with options `valid` and `test`, which must be disjoint."""

    @model_validator(mode="after")
    def _disjoint(self) -> _HeldOut:
        options: Any = self
        if both := sorted({*options.valid} & {*options.test}):
            raise ValueError(f"{', '.join(both)} cannot be held out both for validation and for testing")
        return self


class RegionFile(_HeldOut):
    """A table of regions in a text or .npz file.

    Text is .csv or .tsv (also .gz) with the columns chromosome,start,end,open:CELL,...,MOTIF,... An .npz file has the
    arrays features, motifs, chromosome, start, end, open and cells.
    """

    name: ClassVar[str] = "region-file"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """The file, relative to the working directory; sorted by chromosome and start."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and clip at 1."""

    def facts(self) -> RegionFacts:
        """Read the names of columns and chromosomes."""
        from .formats.tables import read_facts

        return read_facts(Path(self.path).expanduser(), valid=self.valid, test=self.test)

    def build(self) -> RegionMatrix:
        """Read and check the file."""
        from .formats.tables import read_region_file

        return read_region_file(Path(self.path).expanduser(), valid=self.valid, test=self.test, scale=self.scale)


class RegionStore(_HeldOut):
    """A zarr store of get_model, read into memory; `prepare get` converts one that is too large for that.

    Formats 2 and 3; requires the extra "zarr".
    """

    name: ClassVar[str] = "region-store"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """Folder of the store, relative to the working directory."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and clip at 1."""
    overlaps: bool = False
    """Allow regions that overlap each other."""
    empty_chunks: bool = False
    """Read missing chunks of a store as the fill value, which zarr 3 may leave out; otherwise they are errors."""

    def facts(self) -> RegionFacts:
        """Read headers and names."""
        from .formats.sources import store_facts

        held_out = (*self.valid, *self.test)
        return store_facts(Path(self.path).expanduser(), held_out=held_out, empty_chunks=self.empty_chunks)

    def build(self) -> RegionMatrix:
        """Read and check the store."""
        from .formats.sources import ReadOptions, open_store

        options = ReadOptions(self.overlaps, self.empty_chunks)
        path = Path(self.path).expanduser()
        return open_store(path, options, valid=self.valid, test=self.test, scale=self.scale)


class RegionArrays(_HeldOut):
    """A folder of arrays made by `prepare get`; motifs are memory-mapped, so the size does not matter."""

    name: ClassVar[str] = "region-arrays"
    gives: ClassVar[str] = "regions"
    path: str = Option(min_length=1)
    """The folder, relative to the working directory."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and clip at 1."""

    def facts(self) -> RegionFacts:
        """Read the manifest."""
        folder = Path(self.path).expanduser()
        manifest = read_manifest(folder, REGIONS)
        return RegionInfo.of(manifest, folder).facts(manifest.arrays, (*self.valid, *self.test))

    def build(self) -> RegionMatrix:
        """Map the arrays."""
        from .data.prepared_folder import open_folder

        folder = Path(self.path).expanduser()
        manifest = read_manifest(folder, REGIONS)
        return open_folder(folder, manifest, valid=self.valid, test=self.test, scale=self.scale)

    def prepare(self) -> str:
        """Compare all checksums."""
        from ..prepared.store import verify

        folder = Path(self.path).expanduser()
        verify(folder, read_manifest(folder, REGIONS), REGIONS)
        return f"all checksums match in {folder}"


class PreparedRegions(_HeldOut, PrepareSpec):
    """Regions from stores and folders of get_model, matrices or AnnData; converted once by `prepare get`."""

    name: ClassVar[str] = "get"
    gives: ClassVar[str] = "regions"
    stored: ClassVar[Kind] = REGIONS
    read_options: ClassVar[frozenset[str]] = frozenset({"valid", "test", "scale"})
    paths: list[str] = Option(min_length=1)
    """A zarr store, a folder with cell_type_align.txt, .h5ad, .npz, .parquet, .csv or .tsv (.gz); next to a matrix
    without places a .bed file, and CELL.atac.bed for the accessibility of a cell type."""
    out: str = ""
    """Folder for the arrays; by default in the cache, named after the options. If it ends in .zarr, a store of
    get_model is written instead."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of stored motifs; float16 takes half the space, with errors up to 0.05 %, and 3e-8 below 6e-5."""
    zarr_format: Literal[2, 3] = 2
    """Format of a store that is written; get_model reads 2."""
    overlaps: bool = False
    """Allow regions that overlap each other."""
    empty_chunks: bool = False
    """Read missing chunks of a store as the fill value, which zarr 3 may leave out; otherwise they are errors."""
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and clip at 1."""
    force: bool = False
    """Replace arrays that were prepared with other options."""

    def options(self) -> dict[str, Any]:
        """Return the options that determine the arrays; paths by name, since their folder may be moved."""
        names = [Path(path).name for path in self.paths]
        return {"dtype": self.dtype, "overlaps": self.overlaps, "empty_chunks": self.empty_chunks, "paths": names}

    def _is_store(self) -> bool:
        return self.folder().suffix == ".zarr"

    def check(self) -> Iterator[Misfit]:
        """Yield that the regions have not been prepared."""
        if not self._is_store():
            yield from super().check()
        elif not self.folder().exists():
            help_text = f"run: {self.command()}"
            yield Misfit(f"regions not prepared: no {self.folder()}", ("paths",), help=help_text, code="not-prepared")

    def facts(self) -> RegionFacts:
        """Read the manifest, or the headers of the store."""
        held_out = (*self.valid, *self.test)
        if self._is_store():
            from .formats.sources import store_facts

            return store_facts(self.folder(), held_out=held_out)
        manifest = read_manifest(self.folder(), REGIONS, self.command())
        return RegionInfo.of(manifest, self.folder()).facts(manifest.arrays, held_out)

    def build(self) -> RegionMatrix:
        """Map the arrays, or read the store."""
        if self._is_store():
            from .formats.sources import ReadOptions, open_store

            options = ReadOptions(self.overlaps)
            return open_store(self.folder(), options, valid=self.valid, test=self.test, scale=self.scale)
        from .data.prepared_folder import open_folder

        return open_folder(self.folder(), self.manifest(), valid=self.valid, test=self.test, scale=self.scale)

    def prepare(self) -> str:
        """Check and convert the source, and return a report."""
        from .conversion import convert, convert_to_store
        from .formats.sources import ReadOptions

        read = ReadOptions(self.overlaps, self.empty_chunks)
        if self._is_store():
            return convert_to_store(self.paths, self.folder(), read, self.zarr_format)
        return convert(self.paths, self.folder(), self.options(), dtype=self.dtype, read=read, force=self.force)
