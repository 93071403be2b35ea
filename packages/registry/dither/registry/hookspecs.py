"""The hooks of dither.

A plugin is a module, or any object, whose functions are marked with `hookimpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from .spec.base import Spec
from .spec.misfit import Misfit

if TYPE_CHECKING:
    from .contracts.commands import Engine

__all__ = [
    "CHECK",
    "PROJECT",
    "REGISTRATION",
    "RUN_HOOKS",
    "Hooks",
    "hookimpl",
    "hookspec",
]

PROJECT = "dither"
REGISTRATION = "register_components"
CHECK = "check_experiment"
RUN_HOOKS = frozenset(
    {
        "before_run",
        "after_step",
        "after_eval",
        "after_checkpoint",
        "after_run",
        "on_run_error",
    }
)
hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks a hook."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks an implementation of a hook."""


class Hooks:
    """The hooks a plugin may implement, each with the listed arguments or fewer."""

    @hookspec
    def register_components(self) -> Iterable[type[Spec]]:
        """Return the Spec classes of this plugin. Called once, before torch is imported."""
        raise NotImplementedError

    @hookspec
    def check_experiment(self, experiment: Any) -> Iterable[Misfit]:
        """Yield incompatibilities between components of a validated experiment.

        Called before torch is imported.
        """
        raise NotImplementedError

    @hookspec
    def register_commands(self, app: Any, engine: Engine) -> None:
        """Add commands to `app`, the `typer.Typer` of `dither`.

        Called for help, and if a command is none of the engine. A command may not take the name of
        another one. Import torch inside the command. `engine` loads, samples and evaluates runs.
        `-p FILE.py` loads a one-file plugin first, and is not passed to the command.
        """

    @hookspec
    def before_run(self, run: Any) -> None:
        """Called when everything is built, before the first step."""

    @hookspec
    def after_step(self, run: Any, step: int, metrics: Mapping[str, Any]) -> None:
        """Called after each step with its metrics: tensors on the device.

        Reading them waits for the device.
        """

    @hookspec
    def after_eval(self, run: Any, step: int, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation."""

    @hookspec
    def after_checkpoint(self, run: Any, step: int, path: Path) -> None:
        """Called when a checkpoint is complete on disk."""

    @hookspec
    def after_run(self, run: Any, summary: Mapping[str, Any]) -> None:
        """Called once when a run has finished."""

    @hookspec
    def on_run_error(self, run: Any, error: BaseException) -> None:
        """Called when a run stops on an error, before the error is reported."""
