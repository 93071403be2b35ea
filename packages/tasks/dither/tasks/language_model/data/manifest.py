"""Manifest of a folder of token ids. Imports neither torch nor numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dither.registry.config.errors import Refused

from ...prepared.manifest import MANIFEST, Kind, Manifest, describe_error, read_manifest

__all__ = [
    "SHARDS",
    "SplitInfo",
    "StoreInfo",
    "TokenizerRecord",
    "read_store",
    "store_info",
]


SHARDS = Kind(
    name="shards",
    version=3,
    command="dither prepare text",
    option="to",
    files=("tokenizer.json", "alphabet.json", "places.jsonl"),
)
"""Prepared token ids."""


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        # Built when used: every listing of components imports this module.
        defer_build=True,
    )


class SplitInfo(_Record):
    """A split: the array SPLIT of ids, and SPLIT-starts, the offset of each document."""

    documents: int = Field(ge=0)
    characters: int = Field(ge=0)
    ids: int = Field(ge=0)


class TokenizerRecord(_Record):
    """The tokenizer of the ids: its file in the folder, and whether an end-of-text id was added."""

    name: str
    sort: Literal["bytes", "chars", "file"]
    fingerprint: str
    end: int | None
    added_end: bool
    separator: list[int]
    # A name in the folder, never a path.
    file: str | None = Field(None, pattern=r"^[a-z.]+$")


class StoreInfo(_Record):
    """What the manifest stores under "info"."""

    vocabulary: int = Field(ge=1)
    tokenizer: TokenizerRecord
    splits: dict[Literal["train", "valid", "test"], SplitInfo]
    sources: int = Field(ge=1)

    def summary(self) -> str:
        """Return the tokenizer, and documents and ids by split."""
        tokenizer = self.tokenizer
        end = "no end-of-text id"
        if tokenizer.end is not None:
            end = f"end-of-text id {tokenizer.end}"
        size = f"{self.vocabulary:,} ids"
        lines = [
            f'tokenizer "{tokenizer.name}": {size}, {end}, hash {tokenizer.fingerprint[:12]}'
        ]
        for name, split in self.splits.items():
            line = f"  {name:5} {split.documents:,} documents, {split.ids:,} ids"
            if split.ids:
                line += f", {split.characters / split.ids:.2f} characters per id"
            lines.append(line)
        return "\n".join(lines)


def read_store(folder: Path, command: str = "") -> tuple[Manifest, StoreInfo]:
    """Read the manifest of a folder and compare the length of every file with it.

    Raises:
        Refused: The folder or a file is missing, damaged, or of another version.
    """
    manifest = read_manifest(folder, SHARDS, command)
    return manifest, store_info(folder, manifest)


def store_info(folder: Path, manifest: Manifest) -> StoreInfo:
    """Return the `info` of a manifest; Refused if it is damaged."""
    try:
        return StoreInfo.model_validate(manifest.info)
    except ValidationError as error:
        message = f"{folder / MANIFEST} is damaged: {describe_error(error)}"
        raise Refused(
            message, help=f"run: {SHARDS.command}", code="damaged-file"
        ) from None
