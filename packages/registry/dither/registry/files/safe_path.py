"""File names from names in data: cells, samples, columns."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

__all__ = ["safe_name"]

MAX_BYTES = 180
"""File systems allow 255 bytes; the rest is for suffixes and for marks of temporary files."""
DIGEST = 12
"""Hex digits of the sha256 that keeps altered names apart."""
PLAIN = re.compile(r"\w(?:[\w (),+=.-]*[\w)+=-])?")
"""Names that are used as they are: no separators, no dot or space at an end, not empty."""
UNSAFE = re.compile(r"[^\w (),+=.-]+")
MARKED = re.compile(rf".*-[0-9a-f]{{{DIGEST}}}")
"""A name that could be the altered form of another one, and so is altered itself."""


def safe_name(name: str, among: Iterable[str] = ()) -> str:
    """Return a file name for any text: one component, at most `MAX_BYTES` bytes, never a path.

    Ordinary names stay as they are. Others have unsafe characters replaced and end in a digest of
    the name, so that different names are different files: `T/NK` is not `T_NK`. Append the same
    suffix, such as `.npz`, to all names of a folder.

    Args:
        name: A name from data; it may be empty or contain separators, dots or NUL.
        among: All names of the same folder. One that differs from `name` only by case or Unicode
            form adds the digest as well, as some file systems would take both for one file.
    """
    folded = _folded(name)
    is_plain = (
        PLAIN.fullmatch(name) is not None
        and MARKED.fullmatch(name) is None
        and len(name.encode()) <= MAX_BYTES
    )
    if is_plain and not any(
        other != name and _folded(other) == folded for other in among
    ):
        return name

    # Names of undecodable files contain lone surrogates, which UTF-8 cannot encode.
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST]
    readable = UNSAFE.sub("_", name).strip(" .-")
    room = MAX_BYTES - len(digest) - 1
    # Cutting bytes may leave a part of a character at the end.
    start = readable.encode()[:room].decode(errors="ignore")
    return f"{start or '_'}-{digest}"


def _folded(name: str) -> str:
    # Case folding may break the normal form, which is restored (Unicode 3.13, D146).
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
