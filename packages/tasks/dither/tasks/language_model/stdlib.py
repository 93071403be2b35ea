"""The text of the standard library: the language reference that Python carries for `help()`, and docstrings."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dither.registry.problems import Refused
from dither.registry.storage import cache_folder, write_aside

from .corpora import Document, without_quotations

__all__ = ["read_stdlib"]

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
    with suppress(OSError), write_aside(kept) as aside:  # a cache that cannot be written only costs time
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
