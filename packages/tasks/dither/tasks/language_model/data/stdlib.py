"""The text of the standard library: the language reference that Python carries for `help()`, and docstrings."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder

from .corpus import Document

__all__ = ["read_stdlib", "without_quotations"]

FOREIGN = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo", "__pycache__"})
"""Folders beside the library, or without documentation of their own."""


def read_stdlib(*, docstrings: bool = False) -> list[Document]:
    """Return the help topics, one document per topic; the text differs a little between versions of Python.

    Topics quote each other at length (a sixth of the text), so each paragraph is kept once.

    Args:
        docstrings: Add the docstrings of the standard library, one document per module.

    Raises:
        Refused: This Python carries no help topics, or no sources.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Refused(f"this Python carries no help topics: {error}") from error
    texts = {f"topic {name}": text.strip() for name, text in topics.items()}
    texts |= _docstrings() if docstrings else {}
    return [Document.of(name, text) for name, text in without_quotations(texts).items()]


def _docstrings() -> dict[str, str]:
    """Docstrings by module: parsed and never imported (3 s of CPU), then kept in the cache folder."""
    root = Path(sysconfig.get_path("stdlib"))
    version = hashlib.sha256(f"{sys.version} {root}".encode()).hexdigest()[:16]
    kept = cache_folder() / "text" / f"stdlib-docstrings-{version}.json"
    try:
        digest, texts = json.loads(kept.read_text("utf-8"))
        if digest == _digest(texts):
            return dict(texts)
    except (OSError, ValueError, TypeError):  # nothing kept yet, or damaged: make it again
        pass
    texts = {f"module {name}": text for name, text in _parsed(root) if text}
    if not texts:
        raise Refused(f"this Python carries no sources of its library under {root}; leave docstrings = false")
    with suppress(OSError), atomic_write(kept) as aside:  # a cache that cannot be written only costs time
        aside.write_text(json.dumps([_digest(texts), texts]), "utf-8")
    return texts


def _digest(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def _parsed(root: Path) -> Iterator[tuple[str, str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        if FOREIGN.intersection(place.parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a source may hold an invalid escape; that is not our affair
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, OSError):
                continue
        found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
        yield ".".join(place.with_suffix("").parts), "\n\n".join(text for text in found if text)


QUOTATION = 40
"""A paragraph of at least this many characters that stands in two documents is a quotation."""


def without_quotations(texts: Mapping[str, str]) -> dict[str, str]:
    """Keep a paragraph that stands in several texts in the longest of them only, so that no split can quote another.

    Paragraphs are compared without regard to white space. A text that loses more than half of itself is dropped: what
    is left of it are headings.
    """
    seen: set[str] = set()
    kept: dict[str, str] = {}
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        own = [part for part in re.split(r"\n\s*\n", texts[name]) if not (_is_long(part) and _fold(part) in seen)]
        seen.update(_fold(part) for part in own if _is_long(part))
        text = "\n\n".join(own)
        if 2 * len(text) > len(texts[name]):
            kept[name] = text
    return {name: kept[name] for name in sorted(kept)}


def _fold(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _is_long(paragraph: str) -> bool:
    return len(_fold(paragraph)) >= QUOTATION
