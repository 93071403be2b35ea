"""Shards: parts of a source that jobs prepare on several machines, merged to what one would write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused

from .arrays import Arrays
from .manifest import Kind, Manifest, changed_options, read_manifest
from .rejected import REJECTED, RejectedRows
from .store import open_arrays, require_name, verify, verify_files

__all__ = ["PreparedShard", "Shard", "folder_of_shards", "open_shards"]

NAME = re.compile(r"(\d{1,6})-of-(\d{1,6})")


@dataclass(frozen=True)
class Shard:
    """One of `count` consecutive parts of a source, numbered from 1."""

    number: int
    count: int

    def folder(self, target: Path) -> Path:
        """Return the folder of the shard, next to that of all data."""
        return folder_of_shards(target) / f"{self.number}-of-{self.count}"

    def made(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in the manifest of the shard, given those of all data."""
        return {**made, "shard": [self.number, self.count]}

    def part(self, total: int, things: str) -> slice:
        """Return the shard's part of `total` things; Refused if there are fewer than shards."""
        if total < self.count:
            message = f"{total:,} {things} cannot be divided among {self.count} shards"
            raise Refused(message, code="out-of-range")
        # Rounded down at both ends: the next part starts where this one stops.
        first = total * (self.number - 1) // self.count
        return slice(first, total * self.number // self.count)

    def report(self, target: Path, content: str) -> str:
        """Return the message after the shard was written."""
        written = (
            f"shard {self.number}/{self.count}: {content} in {self.folder(target)}"
        )
        return (
            f"{written}\nwhen all are there, the same command with --merge joins them"
        )


@dataclass(frozen=True)
class PreparedShard:
    """A shard on disk, with verified arrays."""

    folder: Path
    manifest: Manifest
    arrays: Arrays

    def add_rejected(self, rows: RejectedRows) -> None:
        """Append the rejected rows of the shard."""
        rows.load(self.folder / REJECTED)


def open_shards(
    target: Path, kind: Kind, made: Mapping[str, Any]
) -> list[PreparedShard]:
    """Map all shards of the data of a folder, in order; `made` are options and source of the data.

    Raises:
        Refused: Shards are missing, damaged, in the place of another, or of other options.
    """
    numbers = set(_numbers(target))
    counts = sorted({shard.count for shard in numbers})
    where = folder_of_shards(target)
    if len(counts) != 1:
        message = f"{where} has no shards; prepare them with --shard I/N"
        code = "not-prepared"
        if counts:
            listed = " and ".join(f"of {count}" for count in counts)
            message = f"{where} has shards {listed}; delete those of one division"
            code = "changed-options"
        raise Refused(message, code=code)

    problems: list[Problem] = []
    shards = []
    for number in range(1, counts[0] + 1):
        shard = Shard(number, counts[0])
        # Every shard is tried, so that all problems are reported at once.
        try:
            shards.append(_open_shard(shard, target, kind, shard.made(made)))
        except Refused as refused:
            problems += refused.problems
    if problems:
        raise Refused(problems)
    return shards


def _open_shard(
    shard: Shard, target: Path, kind: Kind, made: Mapping[str, Any]
) -> PreparedShard:
    folder = shard.folder(target)
    option = f"--shard {shard.number}/{shard.count}"
    manifest = read_manifest(folder, kind, f"the same command with {option}")
    changed = changed_options(manifest, made)
    if "shard" in changed:
        other = manifest.made.get("shard")
        message = f"{folder} holds shard {other}, expected {made['shard']}"
        fix = f"prepare it again with {option} --force"
        raise Refused(message, help=fix, code="duplicate")
    if changed:
        message = (
            f"{folder} was prepared with other options: {', '.join(changed)} changed"
        )
        fix = f"merge with the same options, or prepare it again with {option} --force"
        raise Refused(message, help=fix, code="changed-options")
    # A shard may be a damaged copy from another machine.
    verify(folder, manifest, kind)
    verify_files(folder, manifest, kind)
    return PreparedShard(folder, manifest, open_arrays(folder, manifest, kind))


def folder_of_shards(target: Path) -> Path:
    """Return the folder of the shards of data in the folder `target`."""
    require_name(target)
    return target.with_name(f"{target.name}.shards")


def _numbers(target: Path) -> Iterator[Shard]:
    folder = folder_of_shards(target)
    for path in folder.iterdir() if folder.is_dir() else ():
        # Others are temporary folders of jobs that are still running.
        if match := NAME.fullmatch(path.name):
            yield Shard(int(match[1]), int(match[2]))
