"""Regions in a folder of .npy files: `regions.json` says what they are, the matrix is mapped and never read whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Float16, Shaped
from pydantic import BaseModel, ConfigDict, ValidationError

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import fsync, sha256_of

from ...prepared.arrays import map_npy, write_npy
from ..formats.raw_arrays import Locator
from ..formats.region_checks import SHOWN, first_of
from .column_groups import RegionFacts
from .lazy_matrix import row_blocks
from .preprocessing import assemble
from .region_matrix import RegionMatrix

__all__ = [
    "SIDECAR",
    "VERSION",
    "Float16Rounding",
    "FolderRecord",
    "fill_folder",
    "find_record",
    "must_be_ours",
    "open_folder",
    "verify",
]

SIDECAR: Final = "regions.json"
"""The file that says what the others are."""

TOLD: Final = {"open": np.bool_, "atpm": np.float32, "expression": np.float32, "tss": np.bool_}
GENES: Final = ("gene_index", "gene_name", "gene_strand")
HELP: Final = "prepare them again: dither prepare get"
VERSION: Final = 3
"""Of what such a folder holds; it grows when the same source would become something else."""


class ArrayRecord(BaseModel):
    """What one file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    sha256: str


class _Versioned(BaseModel):
    """What a folder of any version says."""

    version: int


class FolderRecord(BaseModel):
    """What a folder holds.

    Attributes:
        version: Of what such a folder holds.
        made: From what, and how.
        motifs: Names of the columns.
        cells: Names of the cell types.
        chromosomes: How many regions each has, in the order of their numbers.
        untold: What is 0 of a cell type only because nobody said it, such as "atpm:CELL".
        arrays: The files by name, without ".npy".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: int
    made: dict[str, Any]
    motifs: tuple[str, ...]
    cells: tuple[str, ...]
    chromosomes: dict[str, int]
    arrays: dict[str, ArrayRecord]
    untold: tuple[str, ...] = ()

    def facts(self, held_out: Sequence[str]) -> RegionFacts:
        """Tell what there is, given the chromosomes that are held out."""
        counts = [count for name, count in self.chromosomes.items() if name not in held_out]
        return RegionFacts(
            motifs=len(self.motifs),
            cells=self.cells,
            longest=max(counts, default=0),
            rows=sum(self.chromosomes.values()),
            chromosomes=len(self.chromosomes),
            atpm="atpm" in self.arrays,
            expression="expression" in self.arrays,
            tss="tss" in self.arrays,
            bytes_each=0,
            untold=self.untold,
            absent=tuple(name for name in held_out if name not in self.chromosomes),
        )


def fill_folder(
    folder: Path,
    arrays: Mapping[str, Any],
    dtype: str,
    made: Mapping[str, Any],
    tell: Callable[[int, int], None] = lambda done, total: None,
    halves: Float16Rounding | None = None,
) -> FolderRecord:
    """Write checked arrays into an empty folder, the sidecar last. Returns what it says.

    Args:
        folder: Where to.
        arrays: As `check_arrays` let them pass; features may be anything of which slices of rows can be taken.
        dtype: Of the features: float16 or float32.
        made: From what and how, to be compared later.
        tell: Called with rows done and rows in all.
        halves: What rounds the features, where they are to be float16.

    Raises:
        Refused: A number is more than float16 holds, where that is what is written.
    """
    rows, motifs = arrays["features"].shape
    kept_as = np.dtype(dtype)
    blocks = _blocks(arrays["features"], tell, halves)
    size, sha256 = write_npy(folder / "features.npy", blocks, kept_as, (rows, motifs))
    written = {"features": ArrayRecord(dtype=kept_as.str, shape=(rows, motifs), bytes=size, sha256=sha256)}
    names, chromosome = np.unique(arrays["chromosome"], return_inverse=True)
    kept: dict[str, Any] = {"chromosome": chromosome.astype(np.int32)}
    kept |= {name: np.asarray(arrays[name]).astype(np.int64) for name in ("start", "end")}
    for name, sort in TOLD.items():
        if name in arrays:  # cell types first on disk, so that what is said of one lies together
            kept[name] = np.ascontiguousarray(np.asarray(arrays[name]).swapaxes(0, 1).astype(sort))
    kept |= {name: np.asarray(arrays[name]) for name in GENES if name in arrays}
    for name, array in kept.items():
        size, sha256 = write_npy(folder / f"{name}.npy", [array], array.dtype, array.shape)
        written[name] = ArrayRecord(dtype=array.dtype.str, shape=array.shape, bytes=size, sha256=sha256)
    record = FolderRecord(
        version=VERSION,
        made=dict(made),
        motifs=tuple(map(str, arrays["motifs"])),
        cells=tuple(map(str, arrays.get("cells", ()))),
        chromosomes={str(name): int(count) for name, count in zip(names, np.bincount(chromosome), strict=True)},
        arrays=written,
        untold=tuple(map(str, arrays.get("untold", ()))),
    )
    (folder / SIDECAR).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    fsync(folder / SIDECAR)
    return record


def _blocks(features: Any, tell: Callable[[int, int], None], halves: Float16Rounding | None) -> Iterator[Any]:
    """Yield the rows of a matrix, a block at a time."""
    for rows in row_blocks(len(features)):
        block = np.asarray(features[rows])
        yield block if halves is None else halves.rounded(block, rows.start)
        tell(rows.stop, len(features))
    if halves is not None:
        halves.must_fit()


def find_record(folder: Path, *, older: bool = False) -> FolderRecord:
    """Return what a folder says about itself, also if it is of an earlier version where `older` allows it.

    Raises:
        Refused: It says nothing, or nothing that can be understood.
    """
    path = folder / SIDECAR
    try:
        content = path.read_bytes()
        version = _Versioned.model_validate_json(content).version
        if version > VERSION or (version < VERSION and not older):
            by = "a later" if version > VERSION else "an earlier"
            said = f"it is of version {version}, this one reads {VERSION}"
            raise Refused(Problem(f"{folder} was prepared by {by} version of dither: {said}", help=HELP))
        return FolderRecord.model_validate_json(content)
    except OSError as error:
        raise Refused(Problem(f"{path}: {error.strerror}", help=HELP)) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(Problem(f"{path}: is damaged: {where}: {first['msg']}", help=HELP)) from None


def open_folder(folder: Path, *, valid: Sequence[str], test: Sequence[str], scale: bool) -> RegionMatrix:
    """Map a folder.

    Args:
        folder: As `fill_folder` left it.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions, and cut at 1.

    Raises:
        Refused: A file is missing, cut short or another than the sidecar says.
    """
    record = find_record(folder)
    found: dict[str, Any] = {name: _mapped(folder, name, record) for name in record.arrays}
    missing = {"features", "chromosome", "start", "end"} - found.keys()
    if missing:
        raise Refused(Problem(f"{folder / SIDECAR}: names no {', '.join(sorted(missing))}", help=HELP))
    rows, motifs = sum(record.chromosomes.values()), len(record.motifs)
    if found["features"].shape != (rows, motifs) or found["start"].shape != (rows,):
        raise Refused(Problem(f"{folder}: its arrays are not of {rows} regions and {motifs} motifs", help=HELP))
    verify(folder, ("chromosome", "start", "end"))
    arrays: dict[str, Any] = {name: found[name].swapaxes(0, 1) for name in TOLD if name in found}
    arrays |= {"features": found["features"], "start": np.array(found["start"]), "end": np.array(found["end"])}
    arrays["chromosome"] = np.array(list(record.chromosomes), np.str_)[np.array(found["chromosome"])]
    arrays["motifs"], arrays["cells"] = np.array(record.motifs, np.str_), np.array(record.cells, np.str_)
    arrays["untold"] = np.array(record.untold, np.str_)
    return assemble(folder, arrays, valid=valid, test=test, scale=scale)


def _mapped(folder: Path, name: str, record: FolderRecord) -> Any:
    path, said = folder / f"{name}.npy", record.arrays[name]
    if path.is_file() and path.stat().st_size != said.bytes:
        message = (
            f"{path}: has {path.stat().st_size:,} bytes, {SIDECAR} says {said.bytes:,}; it was cut short or changed"
        )
        raise Refused(Problem(message, help=HELP))
    array = map_npy(path, HELP)
    if (array.dtype.str, array.shape) != (said.dtype, said.shape):
        message = f"{path}: holds {array.dtype.str} of {array.shape}, {SIDECAR} says {said.dtype} of {said.shape}"
        raise Refused(Problem(message, help=HELP))
    return array


def verify(folder: Path, names: Sequence[str] | None = None, *, older: bool = False) -> FolderRecord:
    """Read files through, all of them by default, and compare their checksums; `older` is that of `find_record`.

    Raises:
        Refused: A file is missing or has changed.
    """
    record = find_record(folder, older=older)
    for name in names or record.arrays:
        path = folder / f"{name}.npy"
        try:
            found = sha256_of(path)
        except OSError as error:
            raise Refused(Problem(f"{path}: {error.strerror}", help=HELP)) from None
        if found != record.arrays[name].sha256:
            raise Refused(Problem(f"{path}: has changed: its sha256 is not the one in {SIDECAR}", help=HELP))
    return record


def must_be_ours(folder: Path) -> None:
    """Refuse a place that arrays must not take: a file, or a folder that holds something else.

    Raises:
        Refused: There is something else.
    """
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file; arrays need a folder")
    others = [path.name for path in folder.iterdir()] if folder.exists() else []
    if others and SIDECAR not in others:
        some = ", ".join(sorted(others)[:3])
        fix = "--out names another folder; a new one is made"
        raise Refused(Problem(f"{folder} holds other files ({some}), which stay as they are", help=fix))


LARGEST: Final = float(np.finfo(np.float16).max)
SMALLEST: Final = float(np.finfo(np.float16).smallest_normal)
"""Below this, numbers are no longer kept to 11 bits, but in steps that are all alike."""
HALF_A_STEP: Final = float(np.finfo(np.float16).smallest_subnormal) / 2


class Float16Rounding:
    """Rounds a matrix to float16, a block of rows after the other, and remembers what that does to it.

    Args:
        path: Where the matrix is from, for messages.
        motifs: Names of its columns.
        place: Says where a number stands.
    """

    def __init__(self, path: Path, motifs: Sequence[str] | Shaped[np.ndarray, " M"], place: Locator) -> None:
        self.path, self.motifs, self.place = path, [*map(str, motifs)], place
        self._largest = np.zeros(len(self.motifs))
        self._wrong: list[str] = []
        self._count = 0

    def rounded(self, block: Float[np.ndarray, "n M"], first: int) -> Float16[np.ndarray, "n M"]:
        """Return the next rows, of which the first is row `first`; what is too large is as large as can be."""
        self._largest = np.maximum(self._largest, block.max(0, initial=0))
        if self._largest.max(initial=0) > LARGEST:
            large = block > LARGEST
            self._count += int(large.sum())
            for row, column in np.argwhere(large)[: SHOWN - len(self._wrong)].tolist():
                where = self.place("features", first + row, self.motifs[column])
                what = f"{block[row, column]:g} is more than float16 holds ({LARGEST:g})"
                self._wrong.append(f"{self.path}: {where}: {what}")
        kept: Float16[np.ndarray, "n M"] = np.minimum(block, LARGEST).astype(np.float16)
        return kept

    def must_fit(self) -> None:
        """Refuse a matrix that has numbers which are too large.

        Raises:
            Refused: Names the first of them with row and column.
        """
        if self._wrong:
            first, *others = first_of(iter(self._wrong), self._count)
            raise Refused([Problem(first, help="take --dtype float32"), *map(Problem, others)])

    def notes(self) -> Iterator[str]:
        """Yield which motifs become coarse: those of which even the largest value is below what float16 keeps well."""
        small = np.flatnonzero((self._largest > 0) & (self._largest < SMALLEST)).tolist()
        if not small:
            return
        small.sort(key=lambda column: self._largest[column])
        some = ", ".join(
            f"{self.motifs[column]} (at most {self._largest[column]:.2g}, "
            f"off by up to {min(HALF_A_STEP / self._largest[column], 1):.1%} of that)"
            for column in small[:SHOWN]
        )
        more = f" and {len(small) - SHOWN:,} more" if len(small) > SHOWN else ""
        yield f"float16 is coarse below {SMALLEST:.1g}, where all of {some}{more} lies; --dtype float32 keeps it"
