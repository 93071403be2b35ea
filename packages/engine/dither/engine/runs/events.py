"""Events of a run: the lines of `dither run --json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "Event",
    "Failed",
    "Finished",
    "Interrupted",
    "Measured",
    "Sampled",
    "Saved",
    "Started",
]


@dataclass(frozen=True, kw_only=True)
class Started:
    """The run directory exists, and training begins after `step` of `steps` steps."""

    event: Literal["started"] = "started"
    run: Path
    name: str
    step: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A line of metrics.jsonl."""

    event: Literal["metrics"] = "metrics"
    step: int
    kind: Literal["train", "valid", "sample"]
    metrics: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint is on disk."""

    event: Literal["checkpoint"] = "checkpoint"
    step: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Samples are in a folder of the run."""

    event: Literal["samples"] = "samples"
    step: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The run is done; `summary` is that of summary.json."""

    event: Literal["finished"] = "finished"
    run: Path
    summary: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """A signal stopped the run after a checkpoint; `resume` is the command that continues."""

    event: Literal["stopped"] = "stopped"
    run: Path
    step: int
    reason: str
    # Words, so that no reader has to undo the quotes of a shell.
    resume: list[str]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The run has ended with an error."""

    event: Literal["error"] = "error"
    exit_code: int
    code: str
    message: str


Event = Started | Measured | Saved | Sampled | Finished | Interrupted | Failed
