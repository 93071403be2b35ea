"""Regions in a folder of prepared data; the matrix of motifs is memory-mapped and never read whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Float16, Shaped

from dither.registry.config.errors import Problem, Refused

from ...prepared.manifest import MANIFEST, Manifest
from ...prepared.store import Writer, open_arrays, verify
from ..formats.raw_arrays import MAX_SHOWN, Locator, limited
from .column_groups import REGIONS, RegionInfo
from .lazy_matrix import row_blocks
from .preprocessing import assemble
from .region_matrix import RegionMatrix

__all__ = ["Float16Rounding", "open_folder", "write_regions"]

DTYPES: Final = {"open": np.bool_, "atpm": np.float32, "expression": np.float32, "tss": np.bool_}
GENES: Final = ("gene_index", "gene_name", "gene_strand")
LARGEST: Final = float(np.finfo(np.float16).max)


def write_regions(
    writer: Writer,
    arrays: Mapping[str, Any],
    dtype: str,
    update: Callable[[int, int], None] = lambda done, total: None,
    rounding: Float16Rounding | None = None,
) -> None:
    """Write checked arrays.

    Args:
        writer: Writer of a new folder.
        arrays: As `check_arrays` accepted them; features may be anything that can be sliced by rows.
        dtype: Type of the features: float16 or float32.
        update: Called with the number of rows written and of all rows.
        rounding: Rounds the features if they are stored as float16.

    Raises:
        Refused: A number is larger than float16 can hold.
    """
    motifs = arrays["features"].shape[1]
    writer.add_blocks("features", _blocks(arrays["features"], update, rounding), dtype, (motifs,))
    names, chromosome = np.unique(arrays["chromosome"], return_inverse=True)
    writer.add("chromosome", chromosome.astype(np.int32))
    for name in ("start", "end"):
        writer.add(name, np.asarray(arrays[name]).astype(np.int64))
    for name, kind in DTYPES.items():
        if name in arrays:  # cell types come first on disk, so that values of one are contiguous
            writer.add(name, np.asarray(arrays[name]).swapaxes(0, 1).astype(kind))
    for name in GENES:
        if name in arrays:
            writer.add(name, np.asarray(arrays[name]))
    info = RegionInfo(
        motifs=tuple(map(str, arrays["motifs"])),
        cells=tuple(map(str, arrays.get("cells", ()))),
        chromosomes={str(name): int(count) for name, count in zip(names, np.bincount(chromosome), strict=True)},
        unknown=tuple(map(str, arrays.get("unknown", ()))),
    )
    writer.info |= info.model_dump()


def _blocks(features: Any, update: Callable[[int, int], None], rounding: Float16Rounding | None) -> Iterator[Any]:
    for rows in row_blocks(len(features)):
        block = np.asarray(features[rows])
        yield block if rounding is None else rounding.rounded(block, rows.start)
        update(rows.stop, len(features))
    if rounding is not None:
        rounding.check()


def open_folder(
    folder: Path, manifest: Manifest, *, valid: Sequence[str], test: Sequence[str], scale: bool
) -> RegionMatrix:
    """Map a folder.

    Args:
        folder: Folder of prepared regions.
        manifest: Its manifest.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions, and clip at 1.

    Raises:
        Refused: A file is missing, cut short or differs from the manifest.
    """
    info = RegionInfo.of(manifest, folder)
    verify(folder, manifest, REGIONS, ("chromosome", "start", "end"))
    mapped = open_arrays(folder, manifest, REGIONS)
    rows, motifs = sum(info.chromosomes.values()), len(info.motifs)
    if "features" not in mapped or mapped["features"].shape != (rows, motifs) or mapped["start"].shape != (rows,):
        message = f"{folder}: arrays do not match {rows} regions and {motifs} motifs in {MANIFEST}"
        raise Refused(Problem(message, help=f"run: {REGIONS.command}", code="damaged-file"))
    arrays: dict[str, Any] = {name: mapped[name].swapaxes(0, 1) for name in DTYPES if name in mapped}
    arrays |= {"features": mapped["features"], "start": np.array(mapped["start"]), "end": np.array(mapped["end"])}
    arrays["chromosome"] = np.array(list(info.chromosomes), np.str_)[np.array(mapped["chromosome"])]
    arrays["motifs"], arrays["cells"] = np.array(info.motifs, np.str_), np.array(info.cells, np.str_)
    arrays["unknown"] = np.array(info.unknown, np.str_)
    return assemble(folder, arrays, valid=valid, test=test, scale=scale)


class Float16Rounding:
    """Rounds a matrix to float16 block by block, and records numbers that are too large.

    Args:
        path: Source of the matrix, for messages.
        motifs: Names of its columns.
        locate: Returns the place of a number.
    """

    def __init__(self, path: Path, motifs: Sequence[str] | Shaped[np.ndarray, " M"], locate: Locator) -> None:
        self.path, self.motifs, self.locate = path, [*map(str, motifs)], locate
        self._wrong: list[str] = []
        self._count = 0

    def rounded(self, block: Float[np.ndarray, "n M"], first: int) -> Float16[np.ndarray, "n M"]:
        """Return the next rows, which begin with row `first`; numbers that are too large are clipped."""
        large = block > LARGEST
        if large.any():
            self._count += int(large.sum())
            for row, column in np.argwhere(large)[: MAX_SHOWN - len(self._wrong)].tolist():
                where = self.locate("features", first + row, self.motifs[column])
                message = f"{block[row, column]:g} is more than float16 holds ({LARGEST:g})"
                self._wrong.append(f"{self.path}: {where}: {message}")
        rounded: Float16[np.ndarray, "n M"] = np.minimum(block, LARGEST).astype(np.float16)
        return rounded

    def check(self) -> None:
        """Check that no number was too large.

        Raises:
            Refused: Names the first of them with row and column.
        """
        if self._wrong:
            lines = limited(iter(self._wrong), self._count)
            raise Refused([Problem(line, help="use --dtype float32", code="out-of-range") for line in lines])
