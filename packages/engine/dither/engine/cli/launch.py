"""`dither launch`: job files of clusters."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import Annotated

import typer

from .app import (
    Assignments,
    Experiment,
    Json,
    Overrides,
    PluginNames,
    Removals,
    Runs,
    app,
    joined,
    load,
    refuse_unused,
)
from .output import echo_files, wants_json

__all__: list[str] = []


@app.command()
def launch(
    context: typer.Context,
    experiment: Experiment,
    words: Assignments = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="A script for sbatch.")
    ] = False,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="An indexed Job and its Service.")
    ] = False,
    skypilot: Annotated[
        bool, typer.Option("--skypilot", help="A managed job of SkyPilot.")
    ] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Hosts.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of each host.")] = 1,
    hours: Annotated[
        int,
        typer.Option("--hours", min=1, help="Time limit, not of --skypilot."),
    ] = 24,
    image: Annotated[
        str, typer.Option("--image", help="Container image, for --kubernetes.")
    ] = "dither",
    claim: Annotated[
        str,
        typer.Option(
            "--claim",
            help="What is mounted at --runs: a volume claim of Kubernetes, a bucket of SkyPilot.",
        ),
    ] = "dither-runs",
    accelerator: Annotated[
        str, typer.Option("--accelerator", help="Type of GPU, for --skypilot.")
    ] = "H100",
    overrides: Overrides = None,
    removals: Removals = None,
    plugins: PluginNames = None,
    runs: Runs = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="By default NAME.sbatch or .yaml."),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Also submit the file.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Write a job file that trains an experiment on several hosts, and resumes after a stop.

    The job starts again if it is stopped with exit code 75, and resumes its own run.
    """
    from dither.registry.config.errors import Problem, Refused
    from dither.registry.files.lookup import as_argument

    from ..distributed.job_files import FORMATS, JobOptions, write_job
    from ..scaffold.experiment import write_new

    flags = {"slurm": slurm, "kubernetes": kubernetes, "skypilot": skypilot}
    chosen = [form for form, flag in flags.items() if flag]
    if len(chosen) != 1:
        raise Refused("give one of --slurm, --kubernetes, --skypilot", code="usage")
    (form,) = chosen
    reason = f"as a job file of --{form} has no place for it"
    refuse_unused(context, reason, *FORMATS[form].ignored)
    if form == "kubernetes" and not runs.is_absolute():
        hint = "the volume is mounted there: --runs /shared/runs"
        message = f"--kubernetes requires an absolute path after --runs, not {runs}"
        raise Refused(Problem(message, help=hint, code="usage"))

    # Validated now, not after hours in the queue of a cluster.
    loaded = load(experiment, [overrides, words], removals, plugins)
    command = ["run", str(experiment), *joined(words)]
    repeated = (("--set", overrides), ("--unset", removals), ("-p", plugins))
    for option, values in repeated:
        for value in joined(values):
            command += [option, value]
    options = JobOptions(
        name=loaded.experiment.name,
        command=[*command, "--runs", str(runs)],
        nodes=nodes,
        gpus=gpus,
        hours=hours,
        runs=runs,
        image=image,
        claim=claim,
        accelerator=accelerator,
    )

    out = out or Path(f"{loaded.experiment.name}{FORMATS[form].suffix}")
    write_new(out, write_job(form, options))
    submission = [*FORMATS[form].submit, as_argument(out)]
    text = f"{out}; submit it with: {join(submission)}"
    if not submit or wants_json(as_json):
        echo_files(as_json, [out], text, submit=submission)
    # stdout has nothing but JSON.
    stdout = 2 if wants_json(as_json) else None
    return _submit(submission, stdout) if submit else 0


def _submit(command: Sequence[str], stdout: int | None) -> int:
    """Run the command of a cluster, and return its exit code."""
    from dither.registry.config.errors import Refused

    try:
        return subprocess.run(command, check=False, stdout=stdout).returncode
    except OSError as error:
        message = f"{command[0]} cannot be run: {error.strerror}"
        raise Refused(message, code="missing-dependency") from None
