"""The data part "plans": from its options to files, converted plans, and back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither.registry.problems import Refused
from dither.registry.storage import cache_folder

from .formats.reading import Choices
from .formats.sources import find_source, read_source
from .plans import PlanSplits
from .preparation import prepare_plans
from .prepared import ARRAYS, REPORT, describe_files, read_prepared, write_prepared

if TYPE_CHECKING:
    from .specs import PlanFiles

__all__ = ["convert", "converted", "read_converted"]


def converted(spec: PlanFiles) -> Path:
    """Return the file of converted plans, whether or not it is there."""
    if spec.destination:
        return Path(spec.destination).expanduser() / ARRAYS
    said = json.dumps({**_options(spec), "source": str(_source(spec).absolute())}, sort_keys=True)
    return cache_folder() / "plans" / hashlib.sha256(said.encode()).hexdigest()[:16] / ARRAYS


def convert(spec: PlanFiles) -> str:
    """Convert the files of a source, and return what became of them.

    Raises:
        Refused: There are no files, or nothing in them can be taken.
    """
    source, folder = _source(spec), converted(spec).parent
    if folder.absolute() == source.absolute():
        raise Refused(f"{source} is the source; converted plans need a folder of their own")
    layout, files = find_source(source, spec.format, folder)
    choices = Choices(most=spec.most, adjacency=spec.adjacency, bedrooms=spec.bedrooms, pickles=spec.pickles)
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
    source, folder, made = _source(spec), converted(spec).parent, _options(spec)
    if source.exists():
        made["files"] = describe_files(find_source(source, spec.format, folder)[1], source)
    return read_prepared(folder, made, spec.command())


def _source(spec: PlanFiles) -> Path:
    return Path(spec.source).expanduser()


def _options(spec: PlanFiles) -> dict[str, Any]:
    return spec.model_dump(exclude={"source", "destination", "use"})
