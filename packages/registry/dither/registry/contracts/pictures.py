"""Pictures of samples, and their files. Read without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.errors import Problem, Refused, did_you_mean
from ..files.atomic import atomic_write

__all__ = ["FIGURE_FORMATS", "Picture", "check_figure_formats"]

FIGURE_FORMATS = ("svg", "pdf")
"""Formats of plots in addition to PNG."""

# Without separators and a leading dot, a name neither leaves the folder nor hides the file.
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

SUFFIXES = {"png": "png", "svg": "svg", "text": "txt", "gif": "gif", "html": "html"}
"""Suffix of the file of each attribute."""


@dataclass(frozen=True)
class Picture:
    """A picture in any of these formats, under a file name without suffix.

    A plot has `render`, which returns it in one of `FIGURE_FORMATS`.
    """

    name: str
    png: bytes | None = field(default=None, repr=False)
    svg: str | None = field(default=None, repr=False)
    text: str | None = field(default=None, repr=False)
    gif: bytes | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    render: Callable[[str], bytes] | None = field(
        default=None, repr=False, compare=False
    )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show the picture in a notebook."""
        contents = {
            "image/png": self.png,
            "image/gif": self.gif,
            "text/plain": self.text or self.name,
        }
        return {media: content for media, content in contents.items() if content}

    def write(self, folder: Path, figures: Sequence[str] = ()) -> list[Path]:
        """Write the picture in every format that it has, a plot also in those of `figures`."""
        # A mistake of a plugin, not of the user: it is reported with a traceback.
        if not FILE_NAME.fullmatch(self.name):
            raise ValueError(f"not a valid file name of a picture: {self.name!r}")
        contents = {suffix: getattr(self, form) for form, suffix in SUFFIXES.items()}
        if self.render is not None:
            contents |= {form: self.render(form) for form in figures}
        files = []
        for suffix, content in contents.items():
            if content is None:
                continue
            files.append(folder / f"{self.name}.{suffix}")
            with atomic_write(files[-1]) as temporary:
                temporary.write_bytes(
                    content.encode() if isinstance(content, str) else content
                )
        return files


def check_figure_formats(names: Sequence[str]) -> None:
    """Raise Refused for formats other than `FIGURE_FORMATS`."""
    problems = []
    for name in names:
        if name not in FIGURE_FORMATS:
            message = f'no plot is written as "{name}"'
            hint = f"formats: {', '.join(FIGURE_FORMATS)}; PNG is always written"
            fix = did_you_mean(name, FIGURE_FORMATS, hint)
            problems.append(Problem(message, help=fix, code="unknown-format"))
    if problems:
        raise Refused(problems)
