"""The journal of a search: a file that several processes and machines append to, and that a kill may have cut off."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from dither.registry.problems import Problem, Refused

from .tables import Search

__all__ = ["open_study", "require_optuna"]


def open_study(path: Path, search: Search, begun: int) -> Any:
    """Open the study of a journal, or begin one.

    Args:
        path: The journal.
        search: What is searched for, and how.
        begun: Points that were begun before: another process must not draw the same ones again.

    Raises:
        Refused: The journal is damaged.
    """
    optuna = require_optuna()
    journal = optuna.storages.journal
    # Optuna's usual lock is a link to the journal, and is never taken over from the dead where that leads nowhere
    lock = journal.JournalFileOpenLock(str(path.resolve()))
    lock.acquire()
    try:
        _mend(path)
    finally:
        lock.release()
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    with warnings.catch_warnings(action="ignore"):  # of options that may yet change
        sampler = samplers[search.sampler](seed=search.seed + begun)
    pruners = optuna.pruners
    median = search.pruner == "median"
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(path.resolve()), lock)),
        study_name="search",
        direction=search.direction,
        sampler=sampler,
        pruner=pruners.MedianPruner(n_startup_trials=search.warmup) if median else pruners.NopPruner(),
        load_if_exists=True,
    )


def _mend(path: Path) -> None:
    """Cut off a last line that has no end: what wrote it was killed, or found no space.

    Raises:
        Refused: Another line is damaged.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    *lines, rest = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            whole = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            hint = f"bring it back as it was, or remove {path}: the search then goes on without what it has learnt"
            raise Refused(Problem(f"{path} is damaged: line {number} cannot be read", help=hint))
    if rest:
        os.truncate(path, len(text) - len(rest))


def require_optuna() -> Any:
    """Return optuna.

    Raises:
        Refused: It is not installed.
    """
    try:
        import optuna
    except ImportError:
        hint = "python -m pip install 'dither-engine[search]'"
        raise Refused(
            Problem("a search needs optuna, which is not installed", ("sweep", "search"), help=hint)
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
