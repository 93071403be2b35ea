"""What is said where a folder is not what was asked for: what it is instead, and what may have been meant."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dither.registry.problems import Problem, Refused, nearest

__all__ = ["no_run", "no_sweep"]


def no_run(path: Path, lacks: str) -> Refused:
    """Return the refusal of what is no run directory, because it lacks some files."""
    return _refusal(path, "run directory", lacks)


def no_sweep(path: Path, lacks: str) -> Refused:
    """Return the refusal of what is no sweep directory, because it lacks some files."""
    return _refusal(path, "sweep directory", lacks)


def _refusal(path: Path, what: str, lacks: str) -> Refused:
    with suppress(OSError):
        if not path.exists():
            close = nearest(path.name, _names(path.parent))
            hint = f'did you mean "{path.with_name(close)}"?' if close else None
            return Refused(Problem(f"{path} is no {what}: it does not exist", help=hint))
        if not path.is_dir():
            return Refused(Problem(f"{path} is no {what}: it is a file"))
        return Refused(Problem(f"{path} is no {what}: it has no {lacks}", help=_instead(path, what)))
    return Refused(f"{path} is no {what}: it cannot be read")


def _instead(path: Path, what: str) -> str | None:
    """Say what a folder is instead."""
    if (path / "sweep.json").is_file():
        return f"it is a sweep: dither sweep status {path}; the runs of its points lie two folders below"
    if (path / "resolved.toml").is_file():
        return f"it is a run: dither run --resume {path} goes on with it"
    kind, mark = ("run", "resolved.toml") if what == "run directory" else ("sweep", "sweep.json")
    inside = sorted(file.parent for file in path.glob(f"*/{mark}"))
    if len(inside) > 1:
        return f"it holds {len(inside)} {kind}s; the newest is {inside[-1]}"
    return f"its {kind} is {inside[0]}" if inside else None


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
