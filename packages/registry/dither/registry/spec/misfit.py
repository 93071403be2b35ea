"""Incompatibilities, found by checks before anything is built."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Misfit", "Path", "below", "misfits_of", "raise_misfits"]

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Misfit:
    """An incompatibility between components, or between options of one component.

    `path` leads from the checked component to the invalid value, `related` from the top of the
    experiment to the other component; `code` is one of `config.errors.CODES` or a plugin's own.
    """

    message: str
    path: Path = ()
    related: Path | None = None
    help: str | None = None
    code: str = "misfit"


def misfits_of(answer: Any) -> list[Misfit]:
    """Return the misfits of a check as a list; TypeError for anything else."""
    # A check that forgot to yield returns None, and a text would be iterated by letters.
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError(f"a check must yield Misfits, not {answer!r}")
    misfits = list(answer)
    for misfit in misfits:
        if not isinstance(misfit, Misfit):
            raise TypeError(f"a check must yield Misfits, not {misfit!r}")
    return misfits


def below(key: str | int, misfits: Iterable[Misfit]) -> Iterator[Misfit]:
    """Prepend a key to the paths of misfits of an inner component."""
    for misfit in misfits_of(misfits):
        yield replace(misfit, path=(key, *misfit.path))


def raise_misfits(misfits: Iterable[Misfit]) -> None:
    """Raise a ValueError with all misfits, for components built without an experiment file."""
    lines = []
    for misfit in misfits:
        key = ".".join(map(str, misfit.path))
        lines.append(f"{key}: {misfit.message}" if key else misfit.message)
    if lines:
        raise ValueError("; ".join(lines))
