"""The page of a certificate: results with intervals, units, estimator, fingerprints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dither.registry.files.lookup import command_line

from .pages import Page, Section, Table, format_metric, write_page

__all__ = ["result_rows", "write_certificate_page"]

HEAD = ("result", "value", "95 % interval, +-", "of the draws alone, +-")
MEANING = (
    "Upper bounds on -log p of the data. The interval covers samples and draws of noise; the slack "
    "of a bound is not part of it. The tight bound is one, too; the rest of the slack is unknown."
)


def write_certificate_page(path: Path, record: Mapping[str, Any]) -> Path:
    """Write a certificate as HTML."""
    options = record["options"]
    estimator = record["estimator"]
    units = {f"{unit}s": sum(counts) for unit, counts in record["units"].items()}
    prints = record["fingerprints"]
    files = [
        (place, f"{one['files']} files, {one['bytes']:,} bytes, sha256 {one['sha256']}")
        for place, one in prints["files"].items()
    ]
    sections = [
        Section("Likelihood", MEANING, Table(result_rows(record), HEAD, range(1, 4))),
        Section("Units", table=Table([(k, f"{n:,}") for k, n in units.items()])),
        Section(
            "Estimator",
            table=Table(
                [
                    ("plain", estimator["plain"]),
                    ("tight", estimator["tight"] or "not computed"),
                    ("p", estimator["of"]),
                    *estimator["components"].items(),
                    *((key, str(value)) for key, value in options.items()),
                    ("device", str(record["device"])),
                ]
            ),
        ),
        Section(
            "Fingerprints",
            table=Table(
                [
                    ("weights, sha256", prints["weights"]),
                    ("samples, sha256", prints["data"]),
                    *files,
                    *record["versions"].items(),
                ]
            ),
        ),
    ]
    subtitle = (
        f"step {record['step']}, {options['samples']} samples of {options['split']}"
    )
    file = path.with_name("certificate.json")
    command = command_line("certify", "--verify", file)
    title = f"Certificate of {record['name']}"
    return write_page(path, Page(title, sections, subtitle=subtitle, command=command))


def result_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name, value and half-widths of each result."""
    rows = []
    for name, result in record["results"].items():
        cells = [
            format_metric(result.get(key)) for key in ("value", "ci95", "draws_ci95")
        ]
        rows.append((name, *cells))
    return rows
