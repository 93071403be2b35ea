"""run, validate, resolve: what an experiment file is for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .completion import complete_experiment
from .root import Changes, Experiment, Removals, Runs, Selected, app

__all__: list[str] = []


@app.command()
def run(
    experiment: Annotated[
        Path | None,
        typer.Argument(help="The experiment file (TOML).", show_default=False, autocompletion=complete_experiment),
    ] = None,
    changes: Changes = None,
    removals: Removals = None,
    selected: Selected = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with the run in this directory.")
    ] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although parts or plugins are not what they were.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write a trace of a few steps into the run directory.")
    ] = False,
) -> int:
    """Train, evaluate, sample and draw what an experiment file names."""
    from dither.engine.experiment import load_experiment
    from dither.engine.locking import refuse_held
    from dither.engine.rundir import resolved_file
    from dither.registry.problems import Problem, Refused

    if (experiment is None) == (resume is None):
        raise Refused("give an experiment file, or --resume with the directory of a run, and not both")
    if resume is not None and os.environ.get("RANK", "0") == "0":  # of several ranks only the first takes the lock
        refuse_held(resume)
    path = experiment or resolved_file(resume or Path(), sealed=not accept_changes)
    loaded = load_experiment(path, changes or (), removals or (), selected)
    if loaded.experiment.sweep is not None:
        hint = f"dither sweep {path} runs all of its points; --unset sweep runs the file as if it had none"
        raise Refused(Problem(f"{path} is a sweep, not one run", ("sweep",), loaded.document.origin(("sweep",)), hint))
    from dither.engine.budget import require_memory

    require_memory(loaded)
    from dither.engine.run import run as start

    words = sys.argv[1:]
    argv = ["dither", *([] if "run" in words else ["run"]), *words]  # python -m experiments.run leaves the verb out
    return start(loaded, runs, argv, resume, accept_changes=accept_changes, profile=profile)


@app.command()
def validate(
    experiment: Experiment, changes: Changes = None, removals: Removals = None, selected: Selected = None
) -> None:
    """Check an experiment file: names, types, bounds, and whether the parts fit. Imports no torch."""
    from dither.engine.experiment import load_experiment

    from .output import say_valid

    say_valid(load_experiment(experiment, changes or (), removals or (), selected))


@app.command()
def resolve(
    experiment: Experiment, changes: Changes = None, removals: Removals = None, selected: Selected = None
) -> None:
    """Print an experiment with every default written out and every name pinned.

    Saved in this folder, it runs as it is; only a plugin file from outside this folder must be named with -p again.
    """
    import tomlkit

    from dither.engine.experiment import load_experiment
    from dither.registry.validation import dump

    loaded = load_experiment(experiment, changes or (), removals or (), selected)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    tree["plugins"] = [os.path.relpath(path) for path in loaded.plugins.files] + loaded.plugins.asked
    typer.echo(tomlkit.dumps(tree), nl=False)
