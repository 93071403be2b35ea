"""Specs of the sources of regions. Read without torch and numpy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field as Option
from pydantic import field_validator, model_validator

from dither.registry.kinds import DataSpec
from dither.registry.spec.base import PathStr
from dither.registry.spec.misfit import Misfit

from ..missing_library import require_extra
from ..prepared.manifest import Kind, read_manifest
from ..prepared.spec import PrepareSpec
from .data.column_groups import REGIONS, RegionFacts, Splits

if TYPE_CHECKING:
    from .conversion import RegionSource
    from .data.region_matrix import RegionMatrix
    from .formats.region_checks import RawArrays
    from .formats.sources import ReadOptions

__all__ = [
    "HumanDHS",
    "PreparedRegions",
    "RegionArrays",
    "RegionFile",
    "RegionStore",
    "RegionStores",
    "ScannedRegions",
]


class HumanDHS(DataSpec):
    """47,872 regulatory regions of the human genome, 282 motif archetypes, four cell types.

    Each region is open in one cell type.
    Chromosome 2 is held out for validation and chromosome 1 for testing. Included in the package.
    """

    name = "human-dhs"
    gives: ClassVar[str] = "regions"
    # The exact matrix is a subset of this component, under a name of its own for `prepare`.
    prepared_as: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"dhs": {"subset": "built"}}
    )
    subset: Literal["whole", "chr21-22", "built"] = "whole"
    """whole: all regions, in steps of 1/255. chr21-22: chromosome 22 for training (859 regions), 21
    held out (567).
    built: all regions without rounding, as `prepare` builds them from two wheels (75 MB download,
    one minute)."""

    def facts(self) -> RegionFacts:
        """Return sizes and names; a test compares them with the table."""
        # Without reading the table: a listing of options must not wait for it.
        # "built" has the regions of "whole", without rounding.
        longest, chromosomes = (859, 2) if self.subset == "chr21-22" else (3217, 24)
        return RegionFacts(
            motifs=282,
            cells=("K562", "HepG2", "GM12878", "hESC"),
            longest=longest,
            chromosomes=chromosomes,
        )

    def build(self) -> RegionMatrix:
        from .data.human_dhs import read_human

        return read_human(self.subset)

    def prepare(self) -> str | None:
        """Download the two wheels and build the matrix, for the subset "built"."""
        if self.subset != "built":
            return None
        require_extra("regions", self.name)
        from .data.human_dhs import ensure_built

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
            raise ValueError(
                f"{', '.join(both)} cannot be held out both for validation and for testing"
            )
        return self

    def splits(self) -> Splits:
        """Return what is held out, and whether motifs are scaled."""
        return Splits(tuple(self.valid), tuple(self.test), self.scale)

    def reading(self) -> ReadOptions:
        """Return how files are read; prepared arrays were checked when they were written."""
        from .formats.sources import ReadOptions

        names = {"overlaps", "empty_chunks", "group_by"}
        return ReadOptions(**self.model_dump(include=names))


class _OfFiles(_Regions):
    def facts(self) -> RegionFacts:
        """Return sizes and names; motifs of a store or an .npz file are checked by `build` only."""
        return self._open(headers=True).facts()

    def build(self) -> RegionMatrix:
        return self._open()

    @abstractmethod
    def _open(self, *, headers: bool = False) -> RegionMatrix:
        """Read the files, or sizes and names only."""


class _AtPath(_OfFiles):
    path: PathStr = Option(min_length=1)
    """File or folder, relative to the working directory."""

    def source(self) -> Path:
        return Path(self.path).expanduser()

    def _open(self, *, headers: bool = False) -> RegionMatrix:
        require_extra("regions", self.name, ("task", "data"))
        from .formats.sources import open_regions

        return open_regions(
            [self.source()], self.splits(), self.reading(), headers=headers
        )


class _Overlaps(_Regions):
    overlaps: bool = False
    """Allow regions that overlap each other; otherwise they are refused."""


class _ReadOptions(_Overlaps):
    empty_chunks: bool = True
    """Read missing chunks of a store as the fill value, as zarr 3 leaves those out, and note it;
    false refuses them."""


class RegionFile(_Overlaps, _AtPath):
    """A table of regions in a file, sorted by chromosome and start.

    Text is .csv or .tsv (also .gz) with the columns chromosome,start,end,open:CELL,...,MOTIF,... An
    .npz file has the arrays features, motifs, chromosome, start, end, open and cells.
    """

    name = "region-file"


class RegionStore(_ReadOptions, _AtPath):
    """A zarr store of get_model (format 2 or 3), read into memory.

    `prepare get` converts one that is too large for that.
    """

    name = "region-store"


class RegionStores(_ReadOptions, _OfFiles):
    """Regions of several sources in one training: those of each, in the cell types that it has.

    All have the same motifs in the same order. Windows do not mix sources; chromosomes are held out
    in all of them.
    """

    name = "region-stores"
    paths: list[PathStr] = Option(min_length=2)
    """Folders made by `prepare get`, whose motifs stay on disk, zarr stores of get_model, or tables."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source that is named twice."""
        for number, path in enumerate(self.paths):
            if path in self.paths[:number]:
                yield Misfit(f"{path} is named twice", ("paths",), code="duplicate")

    def _open(self, *, headers: bool = False) -> RegionMatrix:
        require_extra("regions", self.name, ("task", "data"))
        from .formats.sources import open_stores

        paths = [Path(path).expanduser() for path in self.paths]
        return open_stores(paths, self.splits(), self.reading(), headers=headers)


class RegionArrays(_AtPath):
    """A folder of arrays made by `prepare get`; motifs are memory-mapped, of any size."""

    name = "region-arrays"

    def _open(self, *, headers: bool = False) -> RegionMatrix:
        # Otherwise `open_regions` would read a source of another format at this path.
        read_manifest(self.source(), REGIONS)
        return super()._open()

    def prepare(self) -> str:
        from ..prepared.store import verify

        verify(self.source(), read_manifest(self.source(), REGIONS), REGIONS)
        return f"all checksums match in {self.source()}"


class PreparedRegions(_ReadOptions, PrepareSpec):
    """Regions from stores and folders of get_model, matrices or AnnData, converted once."""

    name = "get"
    stored: ClassVar[Kind] = REGIONS
    # Applied when arrays are read, so that one folder serves experiments of all splits.
    read_options: ClassVar[frozenset[str]] = frozenset({"valid", "test", "scale"})
    paths: list[PathStr] = Option(min_length=1)
    """A zarr store, a folder with cell_type_align.txt, .h5ad, .npz, .parquet, .csv or .tsv (.gz);
    next to a matrix without places a .bed file, and CELL.atac.bed for the accessibility of a cell
    type."""
    out: PathStr = ""
    """Folder for the arrays; by default in the cache, named after the options."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of stored motifs; float16 takes half the space, with errors up to 0.05 %, and 3e-8 below
    6e-5."""
    group_by: str | None = None
    """Column of `obs` of single cells in AnnData, whose mean is a cell type; "obs_names" takes every
    row as a cell type. More than 30 rows, or barcodes, require it."""
    force: bool = False
    """Replace arrays that were prepared with other options."""

    @field_validator("out")
    @classmethod
    def _folder(cls, value: str) -> str:
        # Other readers take a folder of this suffix for a zarr store.
        if Path(value).suffix == ".zarr":
            raise ValueError("expected a folder of arrays without the suffix .zarr")
        return value

    def options(self) -> dict[str, Any]:
        """Return the options that determine the arrays."""
        # Paths by name, since their folder may be moved.
        names = [Path(path).name for path in self.paths]
        options = super().options() | {"paths": names}
        if self.group_by is None:
            options.pop("group_by", None)
        return options

    def build(self) -> RegionMatrix:
        from .formats.sources import open_regions

        # Refuses a folder that was prepared with other options.
        self.manifest()
        return open_regions([self.folder()], self.splits())

    def prepare(self) -> str:
        source = self._source()
        from .conversion import convert

        return convert(source, self.folder())

    def prepare_shard(self, number: int, count: int) -> str:
        """Convert the features of a part of the regions."""
        source = self._source()
        from ..prepared.shards import Shard
        from .conversion import convert_shard

        return convert_shard(source, self.folder(), Shard(number, count))

    def merge_shards(self) -> str:
        source = self._source()
        from .conversion import convert

        return convert(source, self.folder(), merge=True)

    def _source(self) -> RegionSource:
        require_extra("regions", self.name)
        from .conversion import RegionSource

        path, files, read = self._reader()
        return RegionSource(
            path=path,
            files=files,
            options=self.options(),
            read=read,
            dtype=self.dtype,
            force=self.force,
        )

    def _reader(self) -> tuple[Path, list[Path], Callable[..., RawArrays]]:
        from .formats.sources import find_regions, find_source

        source = find_source([Path(path).expanduser() for path in self.paths])
        read = partial(find_regions, source, self.reading())
        return source.path, source.files(), read


class ScannedRegions(PreparedRegions):
    """Regions of any species: a BED file, a genome (FASTA) and motifs (MEME or JASPAR).

    A feature is the sum of the scores of a motif's hits on both strands, in bits.
    """

    name = "motifs"
    # Options of stores and AnnData, which do not change scanned regions.
    read_options: ClassVar[frozenset[str]] = PreparedRegions.read_options | {
        "empty_chunks",
        "group_by",
    }
    paths: list[str] = Option(min_length=2, max_length=3)
    """PEAKS.bed, sorted; GENOME.fa, perhaps gzipped; and a file of motifs, by default vertebrates
    of JASPAR 2026. The fourth column of a file called CELL.atac.bed is the accessibility of that
    cell type."""
    p_value: float = Option(1e-4, gt=0, lt=1)
    """Probability with which a random word is a hit of a motif."""

    def _reader(self) -> tuple[Path, list[Path], Callable[..., RawArrays]]:
        from .formats.motif_files import scan_regions

        files = [Path(path).expanduser() for path in self.paths]
        read = partial(
            scan_regions, *files, p_value=self.p_value, overlaps=self.overlaps
        )
        return files[0], files, read
