"""Prepared plans on disk: one file of arrays, and beside it a report that names everything that was left out."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.problems import Problem, Refused
from dither.registry.storage import write_aside

from .formats.reading import Entry
from .plans import Plans, PlanSplits
from .preparation import Preparation

__all__ = ["ARRAYS", "REPORT", "describe_files", "read_prepared", "write_prepared"]

ARRAYS: Final = "plans.npz"
REPORT: Final = "report.json"
"""Names of the two files."""

_ARRAYS: Final = ("types", "edges", "boxes", "split", "names", "made")


def describe_files(files: Sequence[Path], source: Path) -> str:
    """Return a digest of the names and sizes of files, to see whether a source has changed."""
    said = [f"{file.relative_to(source) if file != source else file.name} {file.stat().st_size}" for file in files]
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()


def write_prepared(done: Preparation, folder: Path, made: Mapping[str, Any]) -> None:
    """Write plans and report, each whole or not at all, the plans last.

    Args:
        done: What was prepared.
        folder: Where to; it is made if need be.
        made: From what, and with which options; `read_prepared` compares it.
    """
    report = {
        "made": dict(made),
        "taken": len(done.plans),
        "left_out": [_listed(entry) for entry in done.left_out],
        "noted": [_listed(entry) for entry in done.noted],
    }
    with write_aside(folder / REPORT) as beside:
        beside.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    with write_aside(folder / ARRAYS) as beside:
        np.savez_compressed(
            beside,
            types=done.plans.types,
            edges=done.plans.edges,
            boxes=done.plans.boxes,
            split=done.split,
            names=np.array(done.names, np.str_),
            made=np.array(json.dumps(dict(made), sort_keys=True)),
        )


def read_prepared(folder: Path, made: Mapping[str, Any], command: str) -> PlanSplits:
    """Return prepared plans.

    Args:
        folder: Where they are.
        made: From what and how they should have been made.
        command: What to run if they are not there.

    Raises:
        Refused: They are not there, damaged, or made from something else.
    """
    file, remedy = folder / ARRAYS, f"run: {command}"
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as found:
            arrays = {key: found[key] for key in _ARRAYS}
    except FileNotFoundError:
        raise Refused(Problem(f"these plans have not been prepared: there is no {file}", help=remedy)) from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise Refused(Problem(f"{file} is damaged: {error}", help=remedy)) from None
    before = json.loads(str(arrays["made"]))
    changed = sorted(key for key in {*before, *made} if made.get(key, before.get(key)) != before.get(key))
    if changed:
        raise Refused(Problem(f"{file} was prepared from something else: {', '.join(changed)} changed", help=remedy))
    plans = Plans(arrays["types"], arrays["edges"], arrays["boxes"])
    return PlanSplits(*(plans[np.flatnonzero(arrays["split"] == place)] for place in range(3)))


def _listed(entry: Entry) -> dict[str, Any]:
    return {
        "file": str(entry.file),
        "plan": entry.plan,
        "why": [{"sort": fault.sort, "message": fault.message} for fault in entry.faults],
    }
