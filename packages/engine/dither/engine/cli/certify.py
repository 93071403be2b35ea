"""`dither certify`: a certificate of the likelihood of a model, and its verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import (
    Assignments,
    Checkpoint,
    Json,
    Overrides,
    PluginNames,
    Split,
    app,
    joined,
    refuse_unused,
)
from .output import echo, echo_json, wants_json

if TYPE_CHECKING:
    from dither.registry.contracts.commands import RunOptions

__all__: list[str] = []


@app.command()
def certify(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run directory, an export, a trained model such as zoo/bubble-small, or an "
            "experiment file with train.start_from. With --verify by default that of FILE.",
            show_default=False,
        ),
    ] = "",
    words: Assignments = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Recompute a random part of a certificate.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        int,
        typer.Option("--part", metavar="NUMBER", min=1, help="Samples to recompute."),
    ] = 4,
    split: Split = "valid",
    samples: Annotated[
        int,
        typer.Option("--count", "-n", metavar="NUMBER", min=1, help="First samples."),
    ] = 32,
    # An interval requires two draws.
    draws: Annotated[
        int,
        typer.Option("--draws", metavar="NUMBER", min=2, help="Draws per sample."),
    ] = 32,
    tight: Annotated[
        int,
        typer.Option(
            "--tight",
            metavar="K",
            min=0,
            help="Draws of the bound with less slack; 0 for none.",
        ),
    ] = 4,
    seed: Annotated[
        int, typer.Option("--seed", metavar="NUMBER", min=0, help="Seed of the draws.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="New folder; by default inside the run."),
    ] = None,
    checkpoint: Checkpoint = "newest",
    overrides: Overrides = None,
    plugins: PluginNames = None,
    as_json: Json = False,
) -> int:
    """Certify the likelihood of a model: bound, interval, slack, bits per byte, fingerprints.

    Writes certificate.json and certificate.html. --verify exits with 1 if the certificate disagrees
    with the model or the data, or was changed.
    """
    from dither.registry.contracts.commands import RunOptions

    from ..files.mirror import local_run
    from ..runs.request_checks import (
        EVALUATION,
        check_options,
        new_folder,
        require_empty,
    )

    changes = joined(overrides, words)
    # Without RUN the first override takes its place.
    if verify is not None and "=" in run:
        changes.insert(0, run)
        run = ""
    options = RunOptions(checkpoint, changes, plugins)
    source = local_run(Path(run)) if run else None
    if source is None and verify is None:
        raise typer.BadParameter("give a run, or --verify FILE")
    # Before torch is imported.
    _check_options(context, source, verify)
    require_empty(out)
    if source is not None and source.suffix != ".toml":
        check_options(source, options, EVALUATION)
    if verify is not None:
        return _verify(verify, source, options, part, wants_json(as_json))
    assert source is not None

    from dither.registry.files.atomic import atomic_write

    from ..reports.certificate_page import result_rows, write_certificate_page
    from ..runs.certificate import CERTIFICATE, CertificateOptions, make_certificate
    from ..runs.progress import Screen

    settings = CertificateOptions(split, samples, draws, tight, seed)
    place = source.parent if source.suffix == ".toml" else source
    with (
        new_folder(place, ("certificate",), out) as folder,
        Screen(stderr=True).status(f"certifying {samples} samples"),
    ):
        record = make_certificate(source, options, settings)
        page = write_certificate_page(folder / "certificate.html", record)
        with atomic_write(folder / CERTIFICATE) as temporary:
            temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
    if echo_json(as_json, record):
        return 0
    _echo_rows(result_rows(record))
    echo(f"\n{folder / CERTIFICATE}\n{page}")
    return 0


def _check_options(
    context: typer.Context, source: Path | None, verify: Path | None
) -> None:
    if verify is None:
        refuse_unused(context, "without --verify", "part")
    else:
        of_new = ("split", "samples", "draws", "tight", "seed", "out")
        refuse_unused(context, "as the certificate of --verify has its own", *of_new)
    if source is not None and source.suffix == ".toml":
        reason = "as the weights are those of train.start_from"
        refuse_unused(context, reason, "checkpoint")


def _echo_rows(rows: list[tuple[str, str, str, str]]) -> None:
    for name, value, interval, draws_interval in rows:
        own = f" (draws alone: {draws_interval})" if draws_interval else ""
        echo(f"{name:30} {value:>9} +- {interval}{own}")


def _verify(
    file: Path, source: Path | None, options: RunOptions, part: int, as_json: bool
) -> int:
    from dataclasses import asdict

    from ..runs.certificate import verify_certificate

    findings = []
    for finding in verify_certificate(file, source, options, part):
        findings.append(finding)
        if not as_json:
            word = "agrees" if finding.agrees else "DISAGREES"
            echo(f"{finding.part:12} {word:9}  {finding.detail}")
    agrees = all(finding.agrees for finding in findings)
    table = {"agrees": agrees, "parts": [asdict(finding) for finding in findings]}
    if not echo_json(as_json, table):
        echo(f"\n{file} {'agrees' if agrees else 'does not agree'}")
    return int(not agrees)
