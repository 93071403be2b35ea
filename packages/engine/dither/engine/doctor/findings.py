"""What a check finds, and what the checks look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dither.registry.plugins import Plugins
from dither.registry.policy import Policy

__all__ = ["Check", "Finding", "Scene"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: What it is about, in a word or two.
        state: ok; note, which nobody has to act on; or broken.
        message: What is so.
        advice: What to do about it.
    """

    topic: str
    state: Literal["ok", "note", "broken"]
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Scene:
    """What the checks look at.

    Attributes:
        folder: The working directory.
        runs: Where run directories are made.
        policy: What registry.toml says; where it cannot be read, what counts without one.
        plugins: What is installed.
    """

    folder: Path
    runs: Path
    policy: Policy
    plugins: Plugins


Check = Callable[[Scene], Iterable[Finding]]
"""A check yields what it finds; one that raises is itself a finding."""
