"""A folder that is there whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dither.registry.problems import Problem, Refused
from dither.registry.storage import sync

from .left_out import LEFT_OUT
from .record import SIDECAR

__all__ = ["SOURCES", "must_be_ours", "write_folder"]

SOURCES = "sources.jsonl"
"""Name of the file that lists every file that was read."""


def must_be_ours(folder: Path) -> None:
    """Refuse a place that shards must not take: a file, or a folder that holds something else.

    Raises:
        Refused: There is something else.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise Refused(f"{folder} is a file; shards need a folder")
    others = sorted(path.name for path in folder.iterdir() if not _is_ours(path.name))
    if others:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        fix = "--to names another folder; a new one is made"
        raise Refused(Problem(f"{folder} holds other files than shards ({some}), which stay as they are", help=fix))


def _is_ours(name: str) -> bool:
    return name.endswith(".bin") or name in (SIDECAR, LEFT_OUT, SOURCES, "tokenizer.json", "alphabet.json")


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder` to fill; when the block ends well, it takes its place.

    What was there before goes only then. A block that raises leaves nothing behind.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    beside, former = (folder.with_name(f".{folder.name}-{mark}{end}") for end in ("", "-old"))
    beside.mkdir()
    try:
        yield beside
        sync(beside)
        if folder.exists():
            folder.replace(former)
        beside.replace(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if former.exists() and folder.exists():
            shutil.rmtree(former, ignore_errors=True)
