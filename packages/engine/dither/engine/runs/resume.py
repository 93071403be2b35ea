"""Resuming a run: comparison with what it was made of, its newest checkpoint, and its manifest."""

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
from ..config.load_experiment import Loaded
from ..config.plugins import governing_policy_file
from ..config.provenance import changes, provenance, recorded
from ..distributed.ranks import SINGLE_RANK, Ranks
from ..files.metrics_file import FilePosition, changed_lines
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
    """Return what changed since a run was last started or resumed, and the provenance of the experiment now.

    Raises:
        Refused: Components, plugins or data changed, and the changes are not accepted.
    """
    now = provenance(loaded)
    found = changes(before, loaded, now)
    if found and not accept_changes:
        hint = (
            "resume with --accept-changes, which keeps the options of the run and gives new options their defaults; "
            "or start a new run; or restore the former components and data"
        )
        message = f"the run in {path} cannot resume unchanged: "
        raise Refused([Problem(message + change.message, help=hint, code=change.code) for change in found])
    return list(map(str, found)), now


def find_launched_run(runs: Path, ranks: Ranks) -> Path | None:
    """Return the run of this launch after torchrun restarted its ranks; None if it had not started."""
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
    """Return the newest intact checkpoint of a run, found by the main rank, and the damaged ones that are newer.

    Raises:
        Damaged: There are checkpoints, and none is intact.
    """
    newest, damaged = Checkpoints(path / "checkpoints").newest() if ranks.is_main else (None, [])
    found = ranks.broadcast(None if newest is None else str(newest))
    return None if found is None else Path(found), damaged


def require_never_saved(path: Path, before: Mapping[str, Any]) -> None:
    """Refuse to restart a run whose checkpoints were lost: that would overwrite all that it has done.

    Args:
        path: The run directory.
        before: Its manifest.

    Raises:
        Damaged: The run finished, was resumed from a checkpoint, or trained beyond the step of its first checkpoint.
    """
    settings = Document.read(resolved_file(path, verify=False))
    every = settings.at(("train", "checkpoint_every"))
    due = 2 if settings.at(("train", "async_save")) else 1  # the last write may have been interrupted
    done = _last_step(path / "metrics.jsonl")
    resumed = next((entry.get("step") for entry in before["resumed"][-1:] if isinstance(entry, dict)), None)
    if (path / "summary.json").exists():
        reason = "it has finished"
    elif resumed:
        reason = f"it was resumed from step {resumed}"
    elif isinstance(every, int) and done > due * every:
        reason = f"it has trained for {done} steps with a checkpoint every {every}"
    else:
        return
    hint = "restore the checkpoints; or restart at step 0 with --accept-changes, which overwrites metrics.jsonl"
    message = f"the run in {path} has lost its checkpoints: {reason}"
    raise Damaged(Problem(message, help=hint, code="missing-checkpoint"))


def _last_step(path: Path) -> int:
    """Return the largest step in a metrics file, ignoring damaged lines."""
    last = 0
    with suppress(OSError), path.open("rb") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                step = values.get("step") if isinstance(values := json.loads(line), dict) else None
                last = max(last, step) if isinstance(step, int) else last
    return last


def lost_metrics(path: Path, before: FilePosition) -> list[str]:
    """Return a warning if metrics.jsonl differs from the checksum in the checkpoint."""
    reason = changed_lines(path / "metrics.jsonl", before)
    return [] if reason is None else [f"{path / 'metrics.jsonl'} {reason}"]


def note_resumption(
    directory: RunDirectory,
    before: Mapping[str, Any],
    entry: Mapping[str, Any],
    now: Mapping[str, Any],
    trainer: Trainer,
    console: Console,
) -> None:
    """Append to the manifest that the run resumes, with what changed; print changes of the environment.

    Args:
        directory: The run directory.
        before: Its manifest.
        entry: The command line, the step, and the changes.
        now: The provenance of the experiment.
        trainer: The restored trainer.
        console: The terminal.
    """
    machine = environment(trainer.device, trainer.optimizer, trainer.ranks)
    for difference in differences(before["environment"], machine):
        say(console, f"the environment changed, so results may differ in the last bits: {difference}", "yellow")
    tables = {"environment": machine, **now}
    changed = {key: table for key, table in tables.items() if table != recorded(before, key)}
    directory.write_json("manifest.json", {**before, "resumed": [*before["resumed"], {**entry, **changed}]})
    say(console, f"resuming from step {entry['step']}")


def manifest(
    argv: list[str],
    loaded: Loaded,
    device: torch.device,
    counts: Mapping[str, int],
    optimizer: Optimizer,
    ranks: Ranks = SINGLE_RANK,
) -> dict[str, Any]:
    """Return the content of manifest.json."""
    registry = governing_policy_file(loaded.path)
    return {
        "format": 1,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": argv,
        "seed": loaded.experiment.seed,
        "environment": environment(device, optimizer, ranks),
        "git": git_state(Path.cwd()),
        "registry": None if registry is None else str(registry),
        **provenance(loaded),
        "parameters": {**counts, "total": sum(counts.values())},
    }
