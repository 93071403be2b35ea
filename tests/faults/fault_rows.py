"""A line of the matrix."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Row:
    """What came of one kind of fault.

    Attributes:
        fault: What was done.
        trials: How often.
        bad: What went wrong, one line for each trial that did.
        note: A figure to show.
    """

    fault: str
    trials: int = 0
    bad: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, wrong: str, about: object = "") -> None:
        """Count a trial, and what is wrong with it."""
        self.trials += 1
        if wrong:
            self.bad.append(f"{about}: {wrong}")
