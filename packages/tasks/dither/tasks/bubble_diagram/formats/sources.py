"""Which files of a folder hold plans, and who reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from dither.registry.problems import Problem, Refused, nearest

from ..jsonl import scan_plans
from .graph2plan import read_graph2plan
from .housegan import read_housegan
from .reading import Choices, Entry
from .resplan import read_msd, read_resplan
from .rplan_png import read_rplan_picture

__all__ = ["FORMATS", "Format", "Layout", "find_source", "read_source"]

Format = Literal["auto", "rplan-png", "graph2plan", "housegan", "resplan", "msd", "jsonl"]
"""Layouts by name; auto goes by the endings of the files."""


class Layout(NamedTuple):
    """Endings of the files of a layout, and who reads one."""

    endings: tuple[str, ...]
    read: Callable[[Path, Choices], Iterator[Entry]]


FORMATS: Final[dict[str, Layout]] = {
    "rplan-png": Layout((".png",), read_rplan_picture),
    "graph2plan": Layout((".mat", ".npz", ".json"), read_graph2plan),
    "housegan": Layout((".json",), read_housegan),
    "resplan": Layout((".pkl", ".pickle"), read_resplan),
    "msd": Layout((".pickle", ".pkl", ".gpickle"), read_msd),
    "jsonl": Layout((".jsonl",), lambda file, choices: scan_plans(file, choices.most)),
}
"""Layouts by name."""

_BY_ENDING: Final = {
    ".png": "rplan-png",
    ".mat": "graph2plan",
    ".npz": "graph2plan",
    ".jsonl": "jsonl",
}
"""What an ending says of the layout; .json and pickles may be of two."""


def find_source(source: Path, given: Format, apart: Path | None = None) -> tuple[str, list[Path]]:
    """Return the layout, and the files that hold plans, in order of their names (numbers by value).

    Args:
        source: A file, or a folder with files; folders in it are looked into as well.
        given: The layout, or auto.
        apart: A folder that is not looked into, where converted plans are kept.

    Raises:
        Refused: There is no such file, none with the right ending, or it is not clear which layout it is.
    """
    files = _files(source, apart)
    endings = {file.suffix.lower() for file in files}
    layout: str = given if given != "auto" else _recognise(source, files, endings)
    wanted = FORMATS[layout].endings
    chosen = [source] if source.is_file() else [file for file in files if file.suffix.lower() in wanted]
    if source.is_file() and source.suffix.lower() not in wanted:
        raise Refused(f"{source}: files of {layout} end in {' or '.join(wanted)}")
    if not chosen:
        found = f"there are {', '.join(sorted(endings))}" if endings else "it is empty"
        raise Refused(f"{source} holds no file that ends in {' or '.join(wanted)} ({layout}); {found}")
    return layout, sorted(chosen, key=_by_number)


def read_source(layout: str, files: list[Path], choices: Choices) -> Iterator[Entry]:
    """Yield every plan of the files, and every file or plan that could not be taken."""
    read = FORMATS[layout].read
    for file in files:
        yield from read(file, choices)


def _files(source: Path, apart: Path | None) -> list[Path]:
    if source.is_file():
        return [source]
    if source.is_dir():
        # Names that begin with a dot are of no concern: what a file manager or an unfinished copy left.
        found = (file for file in source.rglob("*") if not file.name.startswith(".") and file.is_file())
        if apart is None or source.absolute() not in apart.absolute().parents:
            return list(found)
        return [file for file in found if apart.absolute() not in file.absolute().parents]
    folder = source.parent
    close = nearest(source.name, (other.name for other in folder.glob("*"))) if folder.is_dir() else None
    hint = f'did you mean "{close}"?' if close else None
    where = "" if source.is_absolute() else f" (from {Path.cwd()})"
    raise Refused(Problem(f"there is no file or folder {source}{where}", help=hint))


def _recognise(source: Path, files: list[Path], endings: set[str]) -> str:
    if not files:
        raise Refused(f"{source} is empty")
    clear = {_BY_ENDING[ending] for ending in endings if ending in _BY_ENDING}
    if endings & {".json"}:
        clear.add("housegan")
    if endings & {".pkl", ".pickle", ".gpickle"}:
        clear |= {"resplan", "msd"}
    if len(clear) != 1:
        may = f"these may be {' or '.join(sorted(clear))}" if clear else "none of the layouts has such files"
        shown = ", ".join(sorted(endings))
        raise Refused(Problem(f"{source}: files that end in {shown}; {may}", help=f"format: {', '.join(FORMATS)}"))
    return clear.pop()


def _by_number(file: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", str(file))
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)]
