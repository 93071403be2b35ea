"""`dither test-sampler`: measure any sampler with a model that is known exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dither.registry import hookimpl
from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, printable

if TYPE_CHECKING:
    from .sampler_report import Floor, Measurement

__all__ = ["register_commands"]

STEPS = (4, 8, 16, 32)
HEADS = (
    "steps",
    "calls",
    "TV",
    "given prompt",
    "marginals",
    "stranded",
    "prompts",
    "same seed",
    "batches",
)
UNLIKELY = 1e-4
"""p-value below which batches are said to differ: the rate of false positives."""
Samplers = Annotated[
    list[str],
    typer.Argument(
        metavar="SAMPLER",
        help="module:function or FILE.py:function; a scheduler of diffusers; generate, of "
        "transformers; or a sampler of `dither list sampler`.",
        show_default=False,
    ),
]


@hookimpl
def register_commands(app: typer.Typer, engine: Any) -> None:
    """Add `test-sampler`."""

    @app.command(
        name="test-sampler",
        epilog="Example: dither test-sampler ancestral DiscreteDDIMScheduler",
    )
    def test_sampler(
        samplers: Samplers,
        steps: Annotated[
            str, typer.Option("--steps", metavar="N,N", help="Numbers of steps.")
        ] = ",".join(map(str, STEPS)),
        noise: Annotated[
            Literal["absorbing", "uniform", "gaussian"] | None,
            typer.Option(
                "--noise",
                help="Of a function, by default absorbing; or of a sampler of dither.",
                show_default=False,
            ),
        ] = None,
        samples: Annotated[
            int,
            typer.Option("--count", "-n", min=1000, metavar="NUMBER", help="Samples."),
        ] = 10_000,
        seed: Annotated[
            int, typer.Option("--seed", min=0, metavar="NUMBER", help="Seed.")
        ] = 0,
        options: Annotated[
            list[str] | None,
            typer.Option(
                "--set", metavar="KEY=VALUE", help="Option of the sampler (repeatable)."
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> int:
        """Compare samples with a distribution that their model knows exactly.

        A function is called as sample(denoiser, x, known, steps) and returns samples like x, the
        state at t = 1, or yields states. denoiser(x, t) is log p(x_0 | x_t) of ids, the mean of
        features; denoiser.mask is MASK. Exits with 1 if MASK is left, a prompt changes, a seed
        does not determine samples or rows of a batch depend on each other.
        """
        counts = _numbers(steps)
        table = Document.from_overrides(options or ()).tree
        from .sampler_adapters import sampler_of
        from .sampler_report import floor_of

        # All names are resolved before the first one is measured.
        resolved = [(name, *sampler_of(name, noise, table)) for name in samplers]
        faults: list[str] = []
        records: list[dict[str, Any]] = []
        for name, kind, sample in resolved:
            floor = floor_of(kind, samples, seed)
            rows = []
            if not as_json:
                _print_head(name, kind, floor)
            for row in _measure(sample, kind, counts, samples, seed):
                rows.append(asdict(row))
                faults += _faults(name, row)
                if not as_json:
                    typer.echo(_line(row))
            records.append(
                {"sampler": name, "noise": kind, "floor": asdict(floor), "rows": rows}
            )
        if as_json:
            typer.echo(json.dumps({"samples": records, "faults": faults}, indent=2))
        else:
            for fault in faults:
                typer.echo(f"fault: {fault}")
        return 1 if faults else 0


def _measure(
    sample: Any, noise: Any, counts: Sequence[int], samples: int, seed: int
) -> Iterator[Measurement]:
    """Yield measurements; a sampler without steps is measured once."""
    from .sampler_report import measure_sampler

    before = None
    for steps in counts:
        row = measure_sampler(sample, noise, steps, samples, seed)
        if before is not None and replace(row, steps=before.steps) == before:
            return
        yield row
        before = row


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        message = f'--steps: expected positive numbers such as 4,8, got "{text}"'
        raise Refused(Problem(message, code="usage"))
    return [int(word) for word in words]


def _print_head(name: str, noise: str, floor: Floor) -> None:
    marginals = "-"
    if floor.marginals is not None:
        marginals = f"{floor.marginals:.3f}"

    typer.echo(
        f"{printable(name)}, {noise} noise; exact samples: TV {floor.total_variation:.3f}, "
        f"given prompt {floor.given_prompt:.3f}, marginals {marginals}"
    )
    typer.echo(_aligned(HEADS))


def _line(row: Measurement) -> str:
    marginals = "-"
    if row.marginals is not None:
        marginals = f"{row.marginals:.3f}"

    cells = (
        str(row.steps),
        str(row.calls),
        f"{row.total_variation:.3f}",
        f"{row.given_prompt:.3f}",
        marginals,
        f"{row.stranded:.1%}",
        "changed" if row.changed_prompts else "exact",
        "same" if row.repeats else "differs",
        "differ" if row.batches_agree < UNLIKELY else "agree",
    )
    return _aligned(cells)


def _aligned(cells: Sequence[str]) -> str:
    pairs = zip(cells, HEADS, strict=True)
    columns = []
    for cell, head in pairs:
        width = max(len(head), 7)
        columns.append(cell.rjust(width))
    return "  ".join(columns)


def _faults(name: str, row: Measurement) -> Iterator[str]:
    where = f"{name}, {row.steps} steps"
    if row.stranded:
        yield f"{where}: MASK, an unknown id or NaN in {row.stranded:.1%} of samples"
    if row.changed_prompts:
        yield f"{where}: the prompt changed in {row.changed_prompts:.1%} of samples"
    if not row.repeats:
        yield f"{where}: the seed of torch does not determine the samples"
    if row.batches_agree < UNLIKELY:
        yield (
            f"{where}: batches of 4 have another distribution than a large one "
            f"(p = {row.batches_agree:.0e})"
        )
