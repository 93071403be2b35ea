"""The data part "plans": from its options to files, converted plans, and back."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.files.cache import cache_folder

from ..formats.common import Entry, ReadOptions
from ..formats.graph2plan import read_graph2plan
from ..formats.housegan import read_housegan
from ..formats.jsonl import scan_plans
from ..formats.resplan import read_msd, read_resplan
from ..formats.rplan_png import read_rplan_picture
from ..plans import PlanSplits
from .prepare import ARRAYS, REPORT, describe_files, prepare_plans, read_prepared, write_prepared

if TYPE_CHECKING:
    from ..specs import PlanFiles

__all__ = [
    "FORMATS",
    "Format",
    "Layout",
    "convert_plans",
    "converted_path",
    "find_source",
    "read_converted",
    "read_source",
]


def converted_path(spec: PlanFiles) -> Path:
    """Return the file of converted plans, whether or not it is there."""
    if spec.destination:
        return Path(spec.destination).expanduser() / ARRAYS
    said = json.dumps({**_options(spec), "source": str(_source(spec).absolute())}, sort_keys=True)
    return cache_folder() / "plans" / hashlib.sha256(said.encode()).hexdigest()[:16] / ARRAYS


def convert_plans(spec: PlanFiles) -> str:
    """Convert the files of a source, and return what became of them.

    Raises:
        Refused: There are no files, or nothing in them can be taken.
    """
    source, folder = _source(spec), converted_path(spec).parent
    if folder.absolute() == source.absolute():
        raise Refused(f"{source} is the source; converted plans need a folder of their own")
    layout, files = find_source(source, spec.format, folder)
    choices = ReadOptions(most=spec.most, adjacency=spec.adjacency, bedrooms=spec.bedrooms, pickles=spec.pickles)
    if choices.adjacency == "door" and layout != "housegan":
        raise Refused(f'{source}: adjacency = "door" is for HouseGAN++\'s files, {layout} knows no doors')
    done = prepare_plans(
        read_source(layout, files, choices),
        most=spec.most,
        valid=spec.valid,
        test=spec.test,
        duplicates=spec.duplicates,
    )
    write_prepared(done, folder, {**_options(spec), "files": describe_files(files, source)})
    counted = "1 file" if len(files) == 1 else f"{len(files):,} files"
    return f"{counted} of {source} ({layout})\n{done.report()}\nall of it in {folder / REPORT}, the plans in {ARRAYS}"


def read_converted(spec: PlanFiles) -> PlanSplits:
    """Return converted plans; where the source is still at hand, it must not have changed since.

    Raises:
        Refused: They are not there, damaged, or no longer what source and options say.
    """
    source, folder, made = _source(spec), converted_path(spec).parent, _options(spec)
    if source.exists():
        made["files"] = describe_files(find_source(source, spec.format, folder)[1], source)
    return read_prepared(folder, made, spec.command())


def _source(spec: PlanFiles) -> Path:
    return Path(spec.source).expanduser()


def _options(spec: PlanFiles) -> dict[str, Any]:
    return spec.model_dump(exclude={"source", "destination", "use"})


Format = Literal["auto", "rplan-png", "graph2plan", "housegan", "resplan", "msd", "jsonl"]
"""Layouts by name; auto goes by the endings of the files."""


class Layout(NamedTuple):
    """Endings of the files of a layout, and who reads one."""

    endings: tuple[str, ...]
    read: Callable[[Path, ReadOptions], Iterator[Entry]]


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


def read_source(layout: str, files: list[Path], choices: ReadOptions) -> Iterator[Entry]:
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
