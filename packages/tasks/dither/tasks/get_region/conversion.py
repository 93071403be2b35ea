"""Convert a source of regions, or scanned ones, to a folder of mapped arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from ..prepared.manifest import Manifest, describe_sources
from ..prepared.progress import Progress
from ..prepared.shards import PreparedShard, Shard, open_shards
from ..prepared.store import Writer, find_existing, write_folder
from .data.column_groups import REGIONS, RegionInfo
from .data.region_matrix import RowsOf, all_rows, row_blocks
from .formats.region_checks import RawArrays

__all__ = ["RegionSource", "convert", "convert_shard"]

ARRAY_NAMES = {
    "open": "open or closed",
    "atpm": "atpm",
    "expression": "expression",
    "tss": "TSS",
}
DTYPES = {
    "open": np.bool_,
    "atpm": np.float32,
    "expression": np.float32,
    "tss": np.bool_,
}


@dataclass(frozen=True)
class RegionSource:
    """A source of regions to convert.

    `files` are all of `path`; `options` determine the result and go into the manifest; `read` reads
    and checks, and features only in `rows` if given; with `force`, data prepared with other options
    are replaced.
    """

    path: Path
    files: list[Path]
    options: dict[str, Any]
    read: Callable[..., RawArrays]
    dtype: str
    force: bool

    def made(self) -> dict[str, Any]:
        """Return options and source for the manifest; Refused if a file is missing."""
        problems = []
        for file in self.files:
            if not file.is_file():
                problems.append(Problem(f"{file}: no such file", code="file-not-found"))
        if problems:
            raise Refused(problems)
        return {**self.options, "source": describe_sources(self.files, self.path)}


def convert(source: RegionSource, folder: Path, *, merge: bool = False) -> str:
    """Read and check regions, write them, and return a report.

    A folder with the same data is verified and stays as it is. With `merge` the features are those
    of all shards. Refused with all problems of the source.
    """
    began = perf_counter()
    made = source.made()
    shards = open_shards(folder, REGIONS, made) if merge else ()
    # Before the source is read, which may take minutes.
    existing = find_existing(folder, REGIONS, made, force=source.force)
    if existing is not None:
        return f"{folder} exists already, all checksums match\n{_summary(existing)}"
    # All but the features of shards, which fit into memory.
    raw = source.read(rows=_no_rows) if merge else source.read()
    with (
        Progress("regions converted") as progress,
        write_folder(folder, REGIONS, made) as writer,
    ):
        blocks = _joined(shards)
        if not merge:
            blocks = _blocks(raw, source, all_rows, progress.update)
        _write_regions(writer, raw, blocks, source.dtype)
    lines = [_summary(writer.manifest)]
    lines += [f"note: {note}" for note in (*raw.notes, *_notes(raw.arrays))]
    lines.append(f"in {perf_counter() - began:.1f} s, written to {folder}")
    return "\n".join(lines)


def convert_shard(source: RegionSource, folder: Path, shard: Shard) -> str:
    """Read, check and write the features of some of the regions; return a report."""
    made = shard.made(source.made())
    target = shard.folder(folder)
    if find_existing(target, REGIONS, made, force=source.force) is not None:
        return f"{target} exists already, all checksums match"
    rows = partial(shard.part, things="regions")
    raw = source.read(rows=rows)
    shape = raw.arrays["features"].shape
    with (
        Progress("regions converted") as progress,
        write_folder(target, REGIONS, made) as writer,
    ):
        blocks = _blocks(raw, source, rows, progress.update)
        record = writer.add_blocks("features", blocks, source.dtype, shape[1:])
    content = f"{record.shape[0]:,} of {shape[0]:,} regions"
    return shard.report(folder, content)


def _no_rows(count: int) -> slice:
    return slice(0, 0)


def _joined(shards: Sequence[PreparedShard]) -> Iterator[Shaped[ndarray, "n M"]]:
    for shard in shards:
        features = shard.arrays["features"]
        # By blocks, as a shard may be larger than the memory.
        for rows in row_blocks(len(features)):
            yield features[rows]


def _write_regions(
    writer: Writer,
    raw: RawArrays,
    blocks: Iterator[Any],
    dtype: str,
) -> None:
    arrays = raw.arrays
    writer.add_blocks("features", blocks, dtype, arrays["features"].shape[1:])
    # Numbers: a column of names would take 4 bytes a character.
    names, chromosome = np.unique(arrays["chromosome"], return_inverse=True)
    writer.add("chromosome", chromosome.astype(np.int32))
    for name in ("start", "end"):
        writer.add(name, np.asarray(arrays[name]).astype(np.int64))
    for name, kind in DTYPES.items():
        if name in arrays:
            # Cell types come first on disk, so that values of one are contiguous.
            writer.add(name, np.asarray(arrays[name]).swapaxes(0, 1).astype(kind))
    if "gene_region" in arrays:
        writer.add("gene_region", np.asarray(arrays["gene_region"]).astype(np.int64))
    counts = zip(names.tolist(), np.bincount(chromosome).tolist(), strict=True)
    info = RegionInfo(
        motifs=tuple(map(str, arrays["motifs"])),
        cells=tuple(map(str, arrays.get("cells", ()))),
        chromosomes=dict(counts),
        unknown=tuple(map(str, arrays.get("unknown", ()))),
        notes=raw.notes,
        genes=tuple(map(str, arrays.get("gene", ()))),
    )
    writer.info |= info.model_dump()


def _blocks(
    raw: RawArrays,
    source: RegionSource,
    rows_of: RowsOf,
    update: Callable[[int, int], None],
) -> Iterator[Shaped[ndarray, "n M"]]:
    """Yield the features by blocks; raise Refused at a number that float16 does not hold."""
    features = raw.arrays["features"]
    largest = float(np.finfo(source.dtype).max)
    # By blocks, as the features may be larger than the memory.
    for rows in row_blocks(len(features), rows_of):
        block: Float[ndarray, "n M"] = np.asarray(features[rows])
        if block.size and float(block.max()) > largest:
            # In float64: compared with an array of float16 the limit itself would round.
            too_large = block.astype(np.float64) > largest
            row, column = np.argwhere(too_large)[0].tolist()
            motif = str(raw.arrays["motifs"][column])
            where = raw.locate("features", rows.start + row, motif)
            limit = f"{source.dtype} holds ({largest:g})"
            message = (
                f"{source.path}: {where}: {block[row, column]:g} is more than {limit}"
            )
            raise Refused(message, help="use --dtype float32", code="out-of-range")
        yield block
        update(rows.stop, len(features))


def _summary(manifest: Manifest) -> str:
    """Return the size of prepared regions in two lines."""
    info = RegionInfo.model_validate(manifest.info)
    arrays = manifest.arrays
    rows, motifs = arrays["features"].shape
    cells = "no cell types"
    values = [text for name, text in ARRAY_NAMES.items() if name in arrays]
    if values:
        unit = "cell type" if len(info.cells) == 1 else "cell types"
        cells = f"{len(info.cells)} {unit} with {', '.join(values)}"

    counts = info.chromosomes
    largest = max(counts, key=counts.__getitem__)
    chromosomes = f"{len(counts)} chromosomes, the largest {largest}"
    megabytes = sum(array.bytes for array in arrays.values()) / 1e6
    return (
        f"{rows:,} regions x {motifs} motifs, {cells}\n"
        f"{chromosomes} ({counts[largest]:,} regions); "
        f"{manifest.made['dtype']}, {megabytes:,.1f} MB"
    )


def _notes(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Yield values that are unknown of a cell type."""
    for entry in arrays.get("unknown", ()):
        name, _, cell = entry.partition(":")
        if name == "tss":
            yield f"tss of {cell} is unknown; the condition tss is left out"
        elif name != "open":
            yield f"{name} of {cell} is unknown; tasks that need it are rejected"
