"""metrics.jsonl: one JSON object per line, which ends with the time.

A resumed run truncates it to the position of its checkpoint and ends with the same file as an
uninterrupted run, except for the times, which positions leave out.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from dither.registry.config.errors import Problem
from dither.registry.contracts.units import is_likelihood
from dither.registry.files.limits import TABLE_BYTES, read_bytes, read_text

from .damage import DamageError
from .run_folders import Vanished

__all__ = [
    "FLOOR",
    "INTERVAL",
    "TIMES",
    "MetricsFile",
    "Position",
    "as_json",
    "as_number",
    "baselines_of",
    "better_of",
    "damaged_lines",
    "decimals",
    "from_json",
    "is_companion_metric",
    "leaders",
    "read_metrics",
    "rounded",
    "shown_baselines",
    "with_interval",
    "without_times",
]


INTERVAL = "_ci95"
"""Suffix of the half-width of the 95 % confidence interval of a metric."""
FLOOR = "_floor"
"""Suffix of the noise floor of a metric: its value on as many samples of the data."""
REFERENCES = frozenset({"real", "truth", "entropy"})
"""Baselines that are values of the data themselves, and no rivals of a model."""
MAX_DECIMALS = 6
"""Decimals of a number in a table."""
LEAD = "-lead"
"""Suffix of a baseline's name: the metric of the model minus that of the baseline; `INTERVAL` may
follow."""
TIMES = ("wall_time", "samples_per_second")
"""Keys at the end of a line: seconds since 1970, and for kind "train" samples per second since the
last such line."""
WRITTEN_TIMES = re.compile(
    rb', "wall_time": [0-9.]+(?:, "samples_per_second": [0-9.e+-]+)?\}$', re.MULTILINE
)
DIGITS = 19
"""Integers with this many digits or more are read as floats."""


class Position(NamedTuple):
    """The end of a metrics file, without the times: bytes, and the CRC-32 of them."""

    size: int = 0
    crc32: int = 0

    def after(self, line: bytes) -> Position:
        """Return the end after one more line."""
        content = without_times(line)
        return Position(self.size + len(content), crc32(content, self.crc32))


class MetricsFile:
    """Appends lines to a file. If the disk is full, lines are buffered until there is space; the run continues.

    `offset` bytes are kept, by default all; an incomplete last line is dropped. `warn` is called
    once when lines are buffered. `position` is the end of the file, buffered lines included. Both
    leave out the times.
    """

    def __init__(
        self,
        path: Path,
        offset: int | None = None,
        warn: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._path = path
        self._warn = warn
        self._held = b""
        self._warned = False
        self._file = os.open(
            path,
            # O_BINARY exists on Windows, which would otherwise write other line ends.
            os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0),
            0o666,
        )
        # A resumed run writes the lines after its checkpoint again, so the old ones are dropped.
        limit = math.inf if offset is None else offset
        size = 0
        self.position = Position()
        for line in complete_lines(read_bytes(path, TABLE_BYTES)):
            end = self.position.after(line)
            if end.size > limit:
                break
            size += len(line)
            self.position = end
        os.ftruncate(self._file, size)
        self._size = size

    def require(self) -> None:
        """Raise `Vanished` if the file was deleted, replaced or truncated: lines would be lost silently."""
        size = -1
        # Another error says nothing about the file, such as that of a network that fails for a moment.
        try:
            status = self._path.stat()
            if stat.S_ISREG(status.st_mode):
                size = status.st_size
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return
        if size < self._size:
            message = f"{self._path} was deleted, replaced or truncated"
            hint = "a resumed run has no metrics of the lines that are gone"
            raise Vanished(Problem(message, help=hint, code="run-vanished"))

    def write(
        self,
        step: int,
        kind: str,
        metrics: Mapping[str, float],
        times: Mapping[str, float] | None = None,
    ) -> None:
        """Append a line; `times` are values of some of `TIMES`, in this order."""
        values = {name: rounded(value) for name, value in metrics.items()}
        line = (
            as_json({"step": step, "kind": kind, **values, **(times or {})}) + "\n"
        ).encode()
        self.position = self.position.after(line)
        self._held += line
        self._flush()

    def _flush(self) -> None:
        reason = "no space left"
        # A full disk may take a part of a line; the rest is tried again with the next line.
        try:
            written = os.write(self._file, self._held)
            self._held = self._held[written:]
            self._size += written
        except OSError as error:
            reason = error.strerror or str(error)
        if self._held and not self._warned:
            self._warned = True
            self._warn(
                f"{self._path} cannot be written ({reason}); its lines are buffered in memory"
            )

    def sync(self) -> None:
        """Flush all lines to disk if there is space."""
        self._flush()
        try:
            os.fsync(self._file)
        except OSError as error:
            self._warn(f"{self._path} cannot be flushed: {error.strerror}")

    def close(self) -> None:
        self._flush()
        if self._held:
            self._warn(f"{self._path} lacks its last {len(self._held):,} bytes")
        os.close(self._file)


def complete_lines(content: bytes) -> Iterator[bytes]:
    """Yield the lines of a metrics file but a last one that is cut off, or zeros in its place."""
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        yield line


def without_times(content: bytes) -> bytes:
    """Return lines of a metrics file without their times: the same for a resumed and an uninterrupted run."""
    return WRITTEN_TIMES.sub(b"}", content)


def rounded(value: float) -> float:
    """Return a float with 9 significant digits, which are enough for any value in single precision."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def as_json(
    values: Any,
    indent: int | None = None,
    default: Callable[[Any], object] | None = None,
) -> str:
    """Return values as JSON, with null for NaN and inf; `default` converts those of other types."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [clean(inner) for inner in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    return json.dumps(clean(values), indent=indent, allow_nan=False, default=default)


def from_json(text: str) -> Any:
    """Parse JSON; large integers become floats, beyond their range inf."""
    # `int` takes quadratic time and refuses more than 4,300 digits.
    return json.loads(
        text,
        parse_int=lambda digits: int(digits) if len(digits) < DIGITS else float(digits),
    )


def as_number(value: object) -> float | None:
    """Return a metric read by `from_json`, or None if the value is not a number."""
    # A bool is an int.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None


def read_metrics(path: Path, *, skip: bool = False) -> list[dict[str, Any]]:
    """Return the lines of a metrics file without times; DamageError at an invalid one, unless these are skipped."""
    *texts, rest = read_text(path, TABLE_BYTES, "replace" if skip else "strict").split(
        "\n"
    )
    if rest and not skip:
        raise DamageError(f"line {len(texts) + 1} is incomplete")
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = from_json(text)
        # json recurses into each level of a nested line.
        except (ValueError, RecursionError):
            line = None
        if (
            isinstance(line, dict)
            and isinstance(line.get("step"), int)
            and "kind" in line
        ):
            lines.append(
                {key: value for key, value in line.items() if key not in TIMES}
            )
        elif not skip:
            what = "is not valid JSON" if line is None else "lacks step or kind"
            raise DamageError(f"line {number} {what}")
    return lines


def damaged_lines(path: Path, position: Position) -> list[str]:
    """Return a warning if a metrics file is not what it was up to the position of a checkpoint."""
    try:
        lines = list(complete_lines(read_bytes(path, TABLE_BYTES)))
    except OSError as error:
        if not position.size:
            return []
        return [f"{path} cannot be read: {error.strerror}"]

    content = without_times(b"".join(lines))
    lost = position.size - len(content)
    if lost > 0:
        return [f"{path} lacks {lost:,} bytes: metrics of earlier steps are missing"]
    if crc32(content[: position.size]) != position.crc32:
        return [f"{path} was changed: metrics of earlier steps are not as written"]
    return []


def is_companion_metric(name: str, names: Container[str]) -> bool:
    """Return whether a metric is the interval or noise floor of another one of these."""
    return any(
        name.endswith(end) and name.removesuffix(end) in names
        for end in (INTERVAL, FLOOR)
    )


def with_interval(name: str, metrics: Mapping[str, float], digits: int = 4) -> str:
    """Format a metric, with its interval if there is one: `1.25 ± 0.1`."""
    text = f"{metrics[name]:.{digits}g}"
    half = metrics.get(name + INTERVAL, math.nan)
    if math.isfinite(half):
        text += f" ± {half:.2g}"
    return text


def decimals(values: Iterable[float], digits: int = 4) -> int:
    """Return the number of decimals with which the largest of these values has so many digits."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0)
    if largest == 0:
        return 0
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), MAX_DECIMALS)


def better_of(metric: str, higher: Iterable[str], lower: Iterable[str]) -> str | None:
    """Return which values of a metric are better, by patterns of names; None if none of these matches."""
    if metric == "loss" or is_likelihood(metric):
        return "lower"
    for direction, patterns in (("higher", higher), ("lower", lower)):
        if any(fnmatchcase(metric, pattern) for pattern in patterns):
            return direction
    return None


def leaders(
    kind: str,
    metric: str,
    metrics: Mapping[str, float],
    baselines: Mapping[str, float],
    better: str | None,
) -> set[str]:
    """Return who is ahead: "" for the model, or the best baseline; both within the confidence interval.

    References, such as real data, take no part. Empty without a direction or a rival.
    """
    rivals = {
        name: value
        for name, value in baselines_of(kind, metric, baselines).items()
        if name not in REFERENCES and math.isfinite(value)
    }
    model = metrics[metric]
    if better is None or not rivals or not math.isfinite(model):
        return set()
    best = (min if better == "lower" else max)(rivals, key=lambda name: rivals[name])
    # The interval of the difference, where there is one: much of the noise of both is shared.
    margin = metrics.get(metric + INTERVAL, 0.0)
    for key in (f"{kind} {metric}/{best}", f"{metric}/{best}"):
        margin = baselines.get(key + LEAD + INTERVAL, margin)
    lead = model - rivals[best]
    if better == "lower":
        lead = -lead
    if math.isfinite(margin) and abs(lead) <= margin:
        return {"", best}
    return {""} if lead > 0 else {best}


def baselines_of(
    kind: str, metric: str, baselines: Mapping[str, float]
) -> dict[str, float]:
    """Return the baselines of a metric by name; keys are `metric/name`, or `kind metric/name` if any has this kind."""
    if any(key.startswith(f"{kind} ") for key in baselines):
        metric = f"{kind} {metric}"
    split = (
        (key.partition("/"), value)
        for key, value in baselines.items()
        if LEAD not in key
    )
    return {name or of: value for (of, _, name), value in split if of == metric}


def shown_baselines(
    kind: str, metric: str, baselines: Mapping[str, float]
) -> list[str]:
    """Format the baselines of a metric, each with the lead of the model: `ridge 0.88 (+0.01 ± 0.02)`."""
    texts = []
    for name, value in baselines_of(kind, metric, baselines).items():
        text = f"{name} {value:.4g}"
        for key in (f"{kind} {metric}/{name}", f"{metric}/{name}"):
            lead = baselines.get(key + LEAD)
            half = baselines.get(key + LEAD + INTERVAL, math.nan)
            if lead is not None and math.isfinite(half):
                text += f" ({lead:+.2g} ± {half:.2g})"
                break
        texts.append(text)
    return texts
