"""Going on with a run: with the parts it was made of, and a note in its manifest of what is otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.optim import Optimizer

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused

from ..checkpoints.checkpoint import Checkpoints, Damage, Damaged
from ..config.component_fingerprints import (
    changed_components,
    changed_tables,
    component_fingerprints,
    newest_record,
    plugin_fingerprints,
)
from ..config.data_fingerprints import changed_data, data_fingerprints
from ..config.load_experiment import Loaded
from ..config.plugins import governing_policy_file
from ..distributed.ranks import SINGLE_RANK, Ranks
from ..files.metrics_file import Place, changed_lines
from ..training.environment import differences, environment, git_state
from ..training.trainer import Trainer
from .progress import say
from .run_directory import RunDirectory, read_manifest, resolved_file

__all__ = [
    "check_unchanged",
    "find_launched_run",
    "find_newest",
    "lost_metrics",
    "manifest",
    "note_resumption",
    "require_never_saved",
]


def check_unchanged(
    before: Mapping[str, Any], loaded: Loaded, path: Path, accept_changes: bool
) -> tuple[list[str], dict[str, Any]]:
    """Return which parts are not what the run went on with last, and the record of the data.

    Raises:
        Refused: There are some, and that is not accepted.
    """
    data = data_fingerprints(loaded.experiment)
    changes = changed_components(before, loaded) + changed_data(newest_record(before, "data"), data)
    if changes and not accept_changes:
        hint = (
            "go on all the same with --accept-changes: what the run was given stays, and a new option has its default; "
            "or start a new run, or bring back what it was started with"
        )
        raise Refused([Problem(f"the run in {path} cannot go on as it was: {change}", help=hint) for change in changes])
    return changes, data


def find_launched_run(runs: Path, ranks: Ranks) -> Path | None:
    """Return the run that these ranks were at work on before one of them died; None if it had not begun."""
    found = None
    if ranks.is_main:
        for path in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else ():
            with suppress(Refused):
                before = read_manifest(path)
                if ranks.launch in (before.get("launch"), *(entry.get("launch") for entry in before["resumed"])):
                    found = str(path)
                    break
    found = ranks.broadcast(found)
    return None if found is None else Path(found)


def find_newest(path: Path, ranks: Ranks) -> tuple[Path | None, list[Damage]]:
    """Return the newest intact checkpoint of a run, as the chief finds it, and the damaged ones passed over.

    Raises:
        Damaged: There are checkpoints, and none is intact.
    """
    newest, damaged = Checkpoints(path / "checkpoints").newest() if ranks.is_main else (None, [])
    found = ranks.broadcast(None if newest is None else str(newest))
    return None if found is None else Path(found), damaged


def require_never_saved(path: Path, before: Mapping[str, Any]) -> None:
    """Make sure that a run without a checkpoint never had one: else it would begin anew, over all that it has done.

    Args:
        path: The run directory.
        before: Its manifest.

    Raises:
        Damaged: It has come to its end, went on from a checkpoint before, or trained for longer than until its first.
    """
    settings = Document.read(resolved_file(path, sealed=False))
    every = settings.at(("train", "checkpoint_every"))
    due = 2 if settings.at(("train", "async_save")) else 1  # the last of so many may have been broken off
    done = _last_step(path / "metrics.jsonl")
    resumed = next((entry.get("step") for entry in before["resumed"][-1:] if isinstance(entry, dict)), None)
    if (path / "summary.json").exists():
        reason = "it has come to its end"
    elif resumed:
        reason = f"it went on from that of step {resumed}"
    elif isinstance(every, int) and done > due * every:
        reason = f"it has trained for {done} steps, with one every {every}"
    else:
        return
    hint = "bring them back; or begin again at step 0 with --accept-changes, which writes over metrics.jsonl"
    raise Damaged(Problem(f"no checkpoint is left of the run in {path}: {reason}", help=hint))


def _last_step(path: Path) -> int:
    """Return the largest step in a metrics file, whatever else may be in it."""
    last = 0
    with suppress(OSError), path.open("rb") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                step = values.get("step") if isinstance(values := json.loads(line), dict) else None
                last = max(last, step) if isinstance(step, int) else last
    return last


def lost_metrics(path: Path, before: Place) -> list[str]:
    """Return a line if metrics.jsonl of a run is not what its checkpoint says; the run can go on without."""
    reason = changed_lines(path / "metrics.jsonl", before)
    return [] if reason is None else [f"{path / 'metrics.jsonl'} {reason}"]


def note_resumption(
    directory: RunDirectory,
    before: Mapping[str, Any],
    entry: Mapping[str, Any],
    data: Mapping[str, Any],
    loaded: Loaded,
    trainer: Trainer,
    console: Console,
) -> None:
    """Write into the manifest that the run goes on, and with what that is new; say what is not as it was.

    Args:
        directory: Of the run.
        before: Its manifest.
        entry: The command line, the step, and the changes.
        data: The record of the data.
        loaded: What it goes on with.
        trainer: What goes on.
        console: Where it is said.
    """
    now = environment(trainer.device, trainer.optimizer, trainer.ranks)
    for difference in differences(before["environment"], now):
        say(console, f"not as it was, so the result may differ in the last bits: {difference}", "yellow")
    made_of = {
        "environment": now,
        "parts": component_fingerprints(loaded),
        "plugins": plugin_fingerprints(loaded),
        "data": data,
    }
    resumed = [*before["resumed"], {**entry, **changed_tables(before, made_of)}]
    directory.write_json("manifest.json", {**before, "resumed": resumed})
    say(console, f"going on after step {entry['step']}")


def manifest(
    argv: list[str],
    loaded: Loaded,
    device: torch.device,
    counts: Mapping[str, int],
    optimizer: Optimizer,
    ranks: Ranks = SINGLE_RANK,
) -> dict[str, Any]:
    """Return what manifest.json holds."""
    registry = governing_policy_file(loaded.path)
    return {
        "format": 1,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": argv,
        "seed": loaded.experiment.seed,
        "environment": environment(device, optimizer, ranks),
        "git": git_state(Path.cwd()),
        "registry": None if registry is None else str(registry),
        "plugins": plugin_fingerprints(loaded),
        "parts": component_fingerprints(loaded),
        "data": data_fingerprints(loaded.experiment),
        "parameters": {**counts, "total": sum(counts.values())},
    }
