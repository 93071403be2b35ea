"""A folder of shards in a few lines."""

from __future__ import annotations

from pathlib import Path

from .record import FolderRecord, find_record

__all__ = ["summarise", "summary_of"]


def summarise(folder: Path) -> str:
    """Say what the shards of a folder are."""
    return summary_of(find_record(folder))


def summary_of(record: FolderRecord) -> str:
    """Say what a record is about: tokenizer, and documents and ids by split."""
    made, width = record.tokenizer, int(record.dtype[-1])
    ending = "no id ends a text" if made.end is None else f"{made.end} ends a text"
    lines = [
        f'tokenizer "{made.name}": {record.vocabulary:,} ids of {width} bytes, {ending}, hash {made.fingerprint[:12]}'
    ]
    for split, said in record.splits.items():
        each = f", {said.characters / said.ids:.2f} characters per id" if said.ids else ""
        files = "1 file" if len(said.shards) == 1 else f"{len(said.shards)} files"
        lines.append(f"  {split:5} {_counted(said.documents)}, {said.ids:,} ids in {files}{each}")
    return "\n".join(lines)


def _counted(documents: int) -> str:
    return "1 document" if documents == 1 else f"{documents:,} documents"
