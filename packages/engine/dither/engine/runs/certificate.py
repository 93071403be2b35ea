"""Certificates of likelihoods: bound, interval and slack with fingerprints, and their verification.

Every sample has noise of its own, a function of the seed and its index, so that a few of them can be
recomputed. Letters: N samples.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import SystemRandom
from typing import Annotated, Any

import torch
from jaxtyping import Float64
from pydantic import (
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.commands import RunOptions
from dither.registry.contracts.protocols import Split, TokenProcess
from dither.registry.contracts.records import Clean
from dither.registry.files.limits import RECORD_BYTES, read_bytes
from dither.registry.files.lookup import is_file
from dither.registry.plugins.manifest import Foreign, parse_foreign

from ..config.load_experiment import Loaded, load_experiment
from ..config.provenance import component_record, data_record
from ..files.checksums import checksum_differs, with_checksum
from ..training.diffusion import Diffusion
from ..training.evaluation import NORMAL_95, mean_half_width
from ..training.likelihood import (
    free_values,
    log_likelihood,
    tight_log_likelihood,
)
from ..training.randomness import mix_seed
from .exports import load_trained
from .loading import build, load_start
from .request_checks import EVALUATION
from .system import System

__all__ = [
    "CERTIFICATE",
    "CertificateOptions",
    "Finding",
    "make_certificate",
    "read_certificate",
    "verify_certificate",
]

CERTIFICATE = "certificate.json"
FORMAT = 1
SAME_NOISE = 1e-3
"""Largest relative difference of nats between machines that draw the same noise."""
IN_BITS = ("byte", "character", "dimension")
"""Units that likelihoods are reported per in bits; others in nats."""
OTHER_NOISE = 4.0
"""Standard errors of a difference where the device draws other noise."""


@dataclass(frozen=True)
class CertificateOptions:
    """Samples and draws of a certificate.

    Attributes:
        split: Split of the data.
        samples: The first samples of the split.
        draws: Draws of noise per sample.
        tight: Draws of the bound with less slack; 0 for none.
        seed: Seed of the draws.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    split: Split = "valid"
    samples: PositiveInt = 32
    draws: PositiveInt = 32
    tight: NonNegativeInt = 4
    seed: NonNegativeInt = 0


@dataclass(frozen=True)
class Finding:
    """Whether a part of a certificate agrees, and with what."""

    part: str
    agrees: bool
    detail: str


def make_certificate(
    path: Path, run_options: RunOptions, options: CertificateOptions
) -> dict[str, Any]:
    """Measure the model of a run, an export or an experiment with `train.start_from`.

    Raises:
        Refused: The loss bounds no likelihood, or the split is empty.
    """
    loaded, system, step = _load(path, run_options)
    clean = _samples(loaded, system, options)
    count = len(clean.valid)
    # One by one with a seed of each row, so that any row can be verified alone.
    rows = [_measure(system, clean, row, options) for row in range(count)]
    units = _units(system, clean)
    record = {
        "format": FORMAT,
        "name": loaded.experiment.name,
        "source": path.name if path.suffix == ".toml" else "",
        "step": step,
        "options": {**vars(options), "samples": count},
        "device": system.device.type,
        "estimator": _estimator(loaded, system, options),
        "fingerprints": _fingerprints(loaded, system, clean),
        "versions": _versions(),
        "units": units,
        "rows": rows,
    }
    return with_checksum({**record, "results": results_of(rows, units)})


def _load(path: Path, options: RunOptions) -> tuple[Loaded, System, int]:
    """Return experiment, system and step; of an experiment file the weights that it starts from."""
    if path.suffix != ".toml":
        return load_trained(path, options, tables=EVALUATION)
    loaded = load_experiment(path, list(options.changes), (), options.plugins)
    if loaded.experiment.train.start_from is None:
        message = f"{path} has no weights"
        hint = "certify a run of it, or name weights in train.start_from"
        raise Refused(
            Problem(message, ("train", "start_from"), help=hint, code="missing-key")
        )
    system, _ = build(loaded)
    load_start(loaded.experiment, system.model)
    return loaded, system.eval(), 0


def _samples(loaded: Loaded, system: Diffusion, options: CertificateOptions) -> Clean:
    experiment = loaded.experiment
    if not (system.bound or system.denoises):
        message = (
            f'loss "{experiment.loss.name}" with process "{experiment.process.name}" '
            "bounds no likelihood"
        )
        hint = 'losses "masked-ce" and "score-entropy" do, and "mse" of features'
        raise Refused(Problem(message, ("loss",), help=hint, code="misfit"))
    count = min(options.samples, system.task.size(options.split))
    if not count:
        message = (
            f'the split "{options.split}" of task "{experiment.task.name}" is empty'
        )
        raise Refused(message, code="no-samples")
    return system.task.batch(options.split, range(count))


def _measure(
    system: Diffusion, clean: Clean, row: int, options: CertificateOptions
) -> dict[str, float | None]:
    """Return nats of a sample and the half-width of their interval, plain and tight."""
    sample = clean[row : row + 1]
    # Mixed, so that samples of other seeds share no noise.
    seed = mix_seed(options.seed, row) >> 1
    plain = log_likelihood(
        system, sample, samples=options.draws, seed=seed, batch_size=options.draws
    )
    result: dict[str, float | None] = {
        "nats": -float(plain.values),
        "half_width": _finite(float(plain.half_widths)),
    }
    # Features have no weights of trajectories.
    if options.tight and system.bound:
        tight = tight_log_likelihood(system, sample, options.tight, seed, options.tight)
        result["tight_nats"] = -float(tight.values)
        result["tight_half_width"] = _finite(float(tight.half_widths))
    return result


def _units(system: Diffusion, clean: Clean) -> dict[str, list[int]]:
    """Return the positions or dimensions of each sample, and what else its likelihood is reported per."""
    free = free_values(system, clean).flatten(1).sum(1).tolist()
    unit = "position" if clean.x0.ndim == 2 else "dimension"
    counts = system.task.unit_counts(clean)
    return {unit: free, **{name: list(count) for name, count in counts.items()}}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def results_of(
    rows: Sequence[Mapping[str, Any]], units: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, float]]:
    """Return each result with its 95 % interval over samples.

    Means are per sample, ratios per unit. `draws_ci95` is the interval for these samples alone.
    """
    plain = _column(rows, "nats")
    results = {"nats per sample": _mean(plain)}
    widths = [row["half_width"] for row in rows]
    if None not in widths:
        # Draws of samples are independent, so that variances add.
        squares = torch.tensor(widths, dtype=torch.float64).square().sum()
        draws = math.sqrt(float(squares)) / len(rows)
        results["nats per sample"]["draws_ci95"] = draws
    bounds = {"": plain}
    if "tight_nats" in rows[0]:
        tight = _column(rows, "tight_nats")
        results["nats per sample, tight"] = _mean(tight)
        results["slack removed, nats per sample"] = _mean(plain - tight)
        bounds[", tight"] = tight

    for kind, values in bounds.items():
        for unit, counts in units.items():
            sizes = torch.tensor(counts, dtype=torch.float64)
            # Unknown characters are a count to report, not a unit of length.
            if unit.startswith("unknown") or not sizes.sum():
                continue
            if unit in IN_BITS:
                bits = values / math.log(2)
                results[f"bits per {unit}{kind}"] = _ratio(bits, sizes)
            else:
                results[f"nats per {unit}{kind}"] = _ratio(values, sizes)
    return results


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> Float64[Tensor, " N"]:
    return torch.tensor([row[key] for row in rows], dtype=torch.float64)


def _mean(values: Float64[Tensor, " N"]) -> dict[str, float]:
    result = {"value": float(values.mean())}
    if len(values) > 1:
        result["ci95"] = mean_half_width(values)
    return result


def _ratio(
    values: Float64[Tensor, " N"], sizes: Float64[Tensor, " N"]
) -> dict[str, float]:
    """Return the ratio of two sums over samples (ratio estimator; Cochran 1977, 6.3)."""
    ratio = values.sum() / sizes.sum()
    result = {"value": float(ratio)}
    if len(values) > 1:
        residual = values - ratio * sizes
        result["ci95"] = mean_half_width(residual) / float(sizes.mean())
    return result


def _estimator(
    loaded: Loaded, system: Diffusion, options: CertificateOptions
) -> dict[str, Any]:
    components = component_record(loaded)
    process = system.process
    tight = ""
    if options.tight and system.bound:
        tight = f"log of the mean of {options.tight} importance weights"
        if isinstance(process, TokenProcess) and process.absorbing:
            tight += " of random orders"
    bins = system.task.bin_widths
    quantised = system.bound or (bins is not None and bool((bins > 0).all()))
    return {
        "plain": f"{options.draws} draws, two in each stratum of time",
        "tight": tight,
        "of": "probabilities" if quantised else "densities",
        "components": {
            place: record["part"]
            for place, record in components.items()
            if place.partition(".")[0] in ("task", "process", "model", "loss")
        },
    }


def _fingerprints(loaded: Loaded, system: Diffusion, clean: Clean) -> dict[str, Any]:
    conditions = {f"cond {name}": value for name, value in clean.cond.items()}
    tensors = {"x0": clean.x0, "valid": clean.valid, "known": clean.known}
    return {
        "weights": _hash(system.model.state_dict()),
        "data": _hash({**tensors, **conditions}),
        "files": data_record(loaded.experiment),
    }


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of tensors by name, which does not depend on the file that they came from."""
    digest = hashlib.sha256()
    # The order of modules may change without another weight.
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # numpy has no bfloat16, so that the bytes are hashed.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    return {
        "dither": version("dither-engine"),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def read_certificate(path: Path) -> dict[str, Any]:
    """Return a certificate; Refused for any other file, or values of other types."""
    try:
        data = read_bytes(path)
    except (FileNotFoundError, IsADirectoryError):
        raise Refused(f"{path} is not a file", code="file-not-found") from None
    # The format first: a later one may have other keys.
    version_of = parse_foreign(_Versioned, data, path, RECORD_BYTES)
    if version_of.format != FORMAT:
        message = f"{path} has format {version_of.format}, expected {FORMAT}"
        raise Refused(message, code="other-version")
    parse_foreign(_Certificate, data, path, RECORD_BYTES)
    # With unknown keys, which the checksum covers.
    certificate: dict[str, Any] = json.loads(data)
    return certificate


class _Versioned(Foreign):
    format: int


class _Row(Foreign):
    model_config = ConfigDict(extra="forbid")

    nats: float
    half_width: float | None


class _TightRow(_Row):
    tight_nats: float
    tight_half_width: float | None


class _Fingerprints(Foreign):
    weights: str
    data: str


class _Certificate(_Versioned):
    source: str
    options: CertificateOptions
    device: str
    fingerprints: _Fingerprints
    # Up to 2^53 a float64 holds integers exactly.
    units: dict[str, list[Annotated[int, Field(ge=0, lt=1 << 53)]]]
    rows: list[_TightRow] | list[_Row] = Field(min_length=1)
    results: dict[str, dict[str, float]]

    @model_validator(mode="after")
    def _has_all_samples(self) -> _Certificate:
        columns = [self.rows, *self.units.values()]
        if any(len(column) != self.options.samples for column in columns):
            raise ValueError("samples are missing")
        return self


def verify_certificate(
    path: Path, run: Path | None, run_options: RunOptions, part: int
) -> Iterator[Finding]:
    """Yield whether each part of a certificate agrees; `part` random samples are recomputed.

    `run` is by default the one whose folder the certificate is in.
    """
    record = read_certificate(path)
    source = run or _run_of(path, record["source"])
    damaged = checksum_differs(record)
    yield Finding("checksum", not damaged, "of the file")

    # With checksums, both are as read back from JSON.
    results = with_checksum(results_of(record["rows"], record["units"]))
    same = with_checksum(record["results"]) == results
    yield Finding("results", same, "follow from the values of the samples")

    options = CertificateOptions(**record["options"])
    loaded, system, _ = _load(source, run_options)
    clean = _samples(loaded, system, options)
    now = _fingerprints(loaded, system, clean)
    for kind in ("weights", "data"):
        stored = record["fingerprints"][kind]
        agrees = stored == now[kind]
        detail = now[kind][:16] if agrees else f"{stored[:16]} -> {now[kind][:16]}"
        yield Finding(kind, agrees, detail)
    units = _units(system, clean)
    yield Finding("units", units == record["units"], ", ".join(units))
    if len(clean.valid) < options.samples:
        detail = f"{options.samples} of {len(clean.valid)}"
        yield Finding("samples", False, detail)
        return

    count = min(part, options.samples)
    # The author of a certificate could foresee the choice of a seeded generator.
    chosen = sorted(SystemRandom().sample(range(options.samples), count))
    same_device = record["device"] == system.device.type
    for row in chosen:
        found = _measure(system, clean, row, options)
        stored_row = record["rows"][row]
        detail = f"{stored_row['nats']:.6g} -> {found['nats']:.6g} nats"
        agrees = _rows_agree(stored_row, found, same_device)
        yield Finding(f"sample {row}", agrees, detail)


def _run_of(path: Path, source: str) -> Path:
    """Return the run, or the experiment of that name, in whose folder a certificate is."""
    folder = path.absolute().parents[1]
    # A name from a file is never a path.
    if source and source == Path(source).name and is_file(folder / source):
        return folder / source
    if is_file(folder / "resolved.toml") or is_file(folder / "weights.safetensors"):
        return folder
    message = f"{path} is in no folder of a run"
    hint = "dither certify RUN --verify FILE"
    raise Refused(Problem(message, help=hint, code="not-a-run"))


def _rows_agree(
    stored: Mapping[str, Any], found: Mapping[str, Any], same_noise: bool
) -> bool:
    """Return whether all nats of a sample agree, up to rounding or the noise of another device."""
    for key in ("nats", "tight_nats"):
        if (key in stored) != (key in found):
            return False
        if key not in stored:
            continue
        allowed = SAME_NOISE * max(1.0, abs(found[key]))
        if not same_noise:
            widths = [
                row[key.replace("nats", "half_width")] or math.inf
                for row in (stored, found)
            ]
            allowed = OTHER_NOISE * math.hypot(*widths) / NORMAL_95
        # Written so that NaN does not agree.
        if not abs(stored[key] - found[key]) <= allowed:
            return False
    return True
