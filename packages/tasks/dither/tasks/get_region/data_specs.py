"""Specs of the sources of regions. Neither numpy nor torch is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field as Option
from pydantic import field_validator, model_validator

from dither.registry.kinds import DataSpec
from dither.registry.spec.base import PathStr

from ..prepared.manifest import Kind, Manifest, read_manifest
from ..prepared.spec import PrepareSpec
from .data.column_groups import REGIONS, RegionFacts, RegionInfo, Splits

if TYPE_CHECKING:
    from .data.region_matrix import RegionMatrix

__all__ = ["HumanDHS", "PreparedRegions", "RegionArrays", "RegionFile", "RegionStore", "ScannedRegions"]


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
        longest, chromosomes = (859, 2) if self.subset == "chr21-22" else (3217, 24)
        return RegionFacts(282, ("K562", "HepG2", "GM12878", "hESC"), longest, chromosomes)

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


class _Regions(DataSpec):
    """Base of sources with options `valid` and `test`, which must be disjoint."""

    gives: ClassVar[str] = "regions"
    valid: list[str] = Option(["chr2"], min_length=1)
    """Chromosomes held out for validation."""
    test: list[str] = Option(["chr1"])
    """Chromosomes held out for the final test."""
    scale: bool = True
    """Divide each motif by its largest value in the training regions, and clip at 1."""

    @model_validator(mode="after")
    def _disjoint(self) -> _Regions:
        if both := sorted({*self.valid} & {*self.test}):
            raise ValueError(f"{', '.join(both)} cannot be held out both for validation and for testing")
        return self

    def splits(self) -> Splits:
        """Return what is held out, and whether motifs are scaled."""
        return Splits(self.valid, self.test, self.scale)

    def _manifest_facts(self, manifest: Manifest, folder: Path) -> RegionFacts:
        info, held_out = RegionInfo.of(manifest, folder), (*self.valid, *self.test)
        return RegionFacts.of(len(info.motifs), info.cells, info.chromosomes, manifest.arrays, info.unknown, held_out)


class _AtPath(_Regions):
    path: PathStr = Option(min_length=1)
    """File or folder, relative to the working directory."""

    def source(self) -> Path:
        """Return the path."""
        return Path(self.path).expanduser()


class RegionFile(_AtPath):
    """A table of regions in a file, sorted by chromosome and start.

    Text is .csv or .tsv (also .gz) with the columns chromosome,start,end,open:CELL,...,MOTIF,... An .npz file has the
    arrays features, motifs, chromosome, start, end, open and cells.
    """

    name: ClassVar[str] = "region-file"

    def facts(self) -> RegionFacts:
        """Read the names of columns and chromosomes."""
        from .formats.sources import file_facts

        return file_facts(self.source(), (*self.valid, *self.test))

    def build(self) -> RegionMatrix:
        """Read and check the file."""
        from .formats.sources import open_file

        return open_file(self.source(), self.splits())


class RegionStore(_AtPath):
    """A zarr store of get_model (format 2 or 3), read into memory; `prepare get` converts one too large for that."""

    name: ClassVar[str] = "region-store"
    overlaps: bool = False
    """Allow regions that overlap each other."""
    empty_chunks: bool = True
    """Read missing chunks of a store as the fill value, as zarr 3 leaves those out, and note it; false refuses them."""

    def facts(self) -> RegionFacts:
        """Read headers and names."""
        from .formats.get_model import store_facts

        return store_facts(self.source(), (*self.valid, *self.test), empty_chunks=self.empty_chunks)

    def build(self) -> RegionMatrix:
        """Read and check the store."""
        from .formats.sources import ReadOptions, open_store

        return open_store(self.source(), ReadOptions(self.overlaps, self.empty_chunks), self.splits())


class RegionArrays(_AtPath):
    """A folder of arrays made by `prepare get`; motifs are memory-mapped, so the size does not matter."""

    name: ClassVar[str] = "region-arrays"

    def facts(self) -> RegionFacts:
        """Read the manifest."""
        return self._manifest_facts(read_manifest(self.source(), REGIONS), self.source())

    def build(self) -> RegionMatrix:
        """Map the arrays."""
        from .conversion import open_folder

        return open_folder(self.source(), read_manifest(self.source(), REGIONS), self.splits())

    def prepare(self) -> str:
        """Compare all checksums."""
        from ..prepared.store import verify

        verify(self.source(), read_manifest(self.source(), REGIONS), REGIONS)
        return f"all checksums match in {self.source()}"


class PreparedRegions(_Regions, PrepareSpec):
    """Regions from stores and folders of get_model, matrices or AnnData; converted once by `prepare get`."""

    name: ClassVar[str] = "get"
    stored: ClassVar[Kind] = REGIONS
    read_options: ClassVar[frozenset[str]] = frozenset({"valid", "test", "scale"})
    paths: list[PathStr] = Option(min_length=1)
    """A zarr store, a folder with cell_type_align.txt, .h5ad, .npz, .parquet, .csv or .tsv (.gz); next to a matrix
    without places a .bed file, and CELL.atac.bed for the accessibility of a cell type."""
    out: PathStr = ""
    """Folder for the arrays; by default in the cache, named after the options."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of stored motifs; float16 takes half the space, with errors up to 0.05 %, and 3e-8 below 6e-5."""
    overlaps: bool = False
    """Allow regions that overlap each other."""
    empty_chunks: bool = True
    """Read missing chunks of a store as the fill value, as zarr 3 leaves those out, and note it; false refuses them."""
    force: bool = False
    """Replace arrays that were prepared with other options."""

    @field_validator("out")
    @classmethod
    def _folder(cls, value: str) -> str:
        if Path(value).suffix == ".zarr":
            raise ValueError("expected a folder of arrays without the suffix .zarr")
        return value

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, given: Any) -> Any:
        """Drop an option of stores that were written, which experiments of earlier runs hold."""
        return {k: v for k, v in given.items() if k != "zarr_format"} if isinstance(given, dict) else given

    def options(self) -> dict[str, Any]:
        """Return the options that determine the arrays; paths by name, since their folder may be moved."""
        names = [Path(path).name for path in self.paths]
        return {"dtype": self.dtype, "overlaps": self.overlaps, "empty_chunks": self.empty_chunks, "paths": names}

    def facts(self) -> RegionFacts:
        """Read the manifest."""
        return self._manifest_facts(read_manifest(self.folder(), REGIONS, self.command()), self.folder())

    def build(self) -> RegionMatrix:
        """Map the arrays."""
        from .conversion import open_folder

        return open_folder(self.folder(), self.manifest(), self.splits())

    def prepare(self) -> str:
        """Check and convert the source, and return a report."""
        from .conversion import convert
        from .formats.sources import ReadOptions

        read = ReadOptions(self.overlaps, self.empty_chunks)
        return convert(self.paths, self.folder(), self.options(), dtype=self.dtype, read=read, force=self.force)


class ScannedRegions(PreparedRegions):
    """Regions of any species: a BED file, a genome (FASTA) and motifs (MEME or JASPAR), scanned by `prepare motifs`.

    A feature is the sum of the scores of a motif's hits on both strands, in bits.
    """

    name: ClassVar[str] = "motifs"
    paths: list[str] = Option(min_length=2, max_length=3)
    """PEAKS.bed, sorted; GENOME.fa, perhaps gzipped; and a file of motifs, by default vertebrates of JASPAR 2026. The
    fourth column of a file called CELL.atac.bed is the accessibility of that cell type."""
    p_value: float = Option(1e-4, gt=0, lt=1)
    """Probability with which a random word is a hit of a motif."""

    def options(self) -> dict[str, Any]:
        """Return the options that determine the arrays; paths by name, since their folder may be moved."""
        names = [Path(path).name for path in self.paths]
        return {"dtype": self.dtype, "p_value": self.p_value, "overlaps": self.overlaps, "paths": names}

    def prepare(self) -> str:
        """Scan the genome, and return a report."""
        from .conversion import convert_scanned

        made = self.model_dump(include={"p_value", "overlaps", "dtype", "force"})
        return convert_scanned(self.paths, self.folder(), self.options(), **made)
