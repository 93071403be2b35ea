"""Documentation of Python: the help topics of `help()` (the language reference), and docstrings of the library."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder

from .corpus import Document
from .json_cache import cached_json

__all__ = ["read_stdlib", "without_quotations"]

FOREIGN = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo", "__pycache__"})
"""Folders that are not part of the library, or have no documentation."""


def read_stdlib(*, docstrings: bool = False) -> list[Document]:
    """Return the help topics, one document per topic; the text differs slightly between versions of Python.

    Topics quote each other at length (a sixth of the text), so each paragraph is kept once.

    Args:
        docstrings: Add the docstrings of the standard library, one document per module.

    Raises:
        Refused: This Python has no help topics, or no sources.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Refused(f"this Python has no help topics: {error}", code="missing-dependency") from error
    texts = {f"topic {name}": text.strip() for name, text in topics.items()}
    texts |= _docstrings() if docstrings else {}
    return [Document.of(name, text) for name, text in without_quotations(texts).items()]


def _docstrings() -> dict[str, str]:
    """Return docstrings by module; sources are parsed, not imported (3 s of CPU), and the result is cached."""
    root = Path(sysconfig.get_path("stdlib"))
    version = hashlib.sha256(f"{sys.version} {root}".encode()).hexdigest()[:16]
    path = cache_folder() / "text" / f"stdlib-docstrings-{version}.json"
    return dict(cached_json(path, lambda: _read_docstrings(root)))


def _read_docstrings(root: Path) -> dict[str, str]:
    texts = {f"module {name}": text for name, text in _parsed(root) if text}
    if not texts:
        what = f"this Python has no sources of its library under {root}; set docstrings = false"
        raise Refused(what, code="file-not-found")
    return texts


def _parsed(root: Path) -> Iterator[tuple[str, str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        if FOREIGN.intersection(place.parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, OSError):
                continue
        docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
        yield ".".join(place.with_suffix("").parts), "\n\n".join(text for text in docstrings if text)


QUOTATION = 40
"""Characters from which on a paragraph in two documents counts as a quotation."""


def without_quotations(texts: Mapping[str, str]) -> dict[str, str]:
    """Keep a paragraph of several texts in the longest of them only, so that no split quotes another.

    Paragraphs are compared without regard to white space. A text that loses more than half is dropped, as mostly
    headings are left.
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
