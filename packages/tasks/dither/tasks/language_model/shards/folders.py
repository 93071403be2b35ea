"""The folder that shards take, and what it may hold."""

from __future__ import annotations

from pathlib import Path

from dither.registry.problems import Problem, Refused

from .left_out import LEFT_OUT
from .record import SIDECAR

__all__ = ["SOURCES", "must_be_ours"]

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
