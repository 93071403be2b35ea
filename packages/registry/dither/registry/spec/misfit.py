"""A Spec is the typed, savable description of one part; a Slot is a place for a part inside another Spec."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Misfit", "Path", "below", "misfits_of", "raise_misfits"]

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Misfit:
    """Why a part does not fit where it stands, found before anything is built.

    Attributes:
        message: What was given, what is allowed.
        path: Keys from the part that was checked down to the value at fault.
        related: Path from the top of the experiment to the other part that is meant, such as ("process",).
        help: What to do about it.
        code: Stable identifier of the kind of problem, one of `problems.CODES` or a plugin's own.
    """

    message: str
    path: Path = ()
    related: Path | None = None
    help: str | None = None
    code: str = "misfit"


def misfits_of(answer: Any) -> list[Misfit]:
    """List what a check yields.

    Raises:
        TypeError: It yields something else, or nothing that can be gone through.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError(f"a check yields Misfits, not {answer!r}")
    found = list(answer)
    for misfit in found:
        if not isinstance(misfit, Misfit):
            raise TypeError(f"a check yields Misfits, not {misfit!r}")
    return found


def below(key: str | int, misfits: Iterable[Misfit]) -> Iterator[Misfit]:
    """Say where misfits of an inner part are, seen from the outer one."""
    for misfit in misfits_of(misfits):
        yield replace(misfit, path=(key, *misfit.path))


def raise_misfits(misfits: Iterable[Misfit]) -> None:
    """Raise a ValueError that names every misfit; for callers that build a part without an experiment file."""
    found = list(misfits)
    if found:
        raise ValueError("; ".join(".".join(map(str, m.path)) + ": " * bool(m.path) + m.message for m in found))
