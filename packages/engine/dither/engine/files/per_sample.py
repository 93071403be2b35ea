"""Values per sample of an evaluation, `evaluation/<split>.npz` of a run; nothing is unpickled. No torch.

Letters: k metrics, n samples.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dither.registry.config.errors import Refused
from dither.registry.contracts.protocols import Split
from dither.registry.files.atomic import atomic_write
from dither.registry.files.limits import TABLE_BYTES, open_file

from .damage import DamageError, damage_of

__all__ = ["PerSample", "per_sample_file", "read_per_sample", "write_per_sample"]

DAMAGES = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    MemoryError,
    zipfile.BadZipFile,
)
"""Exceptions of reading a damaged file."""


@dataclass(frozen=True)
class PerSample:
    """Numerator and denominator of each metric for each sample, summed over repeats.

    A metric is the ratio of the sums over all samples. The noise is a function of seed, number of
    samples, batch size and repeats.

    Attributes:
        names: Those of the metrics, k.
        sums: k x 2 x n.
    """

    step: int
    seed: int
    batch_size: int
    repeats: int
    names: tuple[str, ...]
    sums: npt.NDArray[np.float64]

    @property
    def samples(self) -> int:
        return int(self.sums.shape[2])

    def of(self, name: str) -> npt.NDArray[np.float64]:
        """Return numerator and denominator of a metric, 2 x n."""
        sums: npt.NDArray[np.float64] = self.sums[self.names.index(name)]
        return sums

    def metrics(self) -> dict[str, float]:
        """Return every metric over all samples; NaN if none of them counts."""
        sums = self.sums.sum(2)
        # 0 / 0 is the intended NaN of a metric without samples.
        with np.errstate(invalid="ignore", divide="ignore"):
            values = sums[:, 0] / sums[:, 1]
        return dict(zip(self.names, values.tolist(), strict=True))


def per_sample_file(run: Path, split: Split) -> Path:
    """Return the path of the values of a split."""
    return run / "evaluation" / f"{split}.npz"


def write_per_sample(
    run: Path, split: Split, sums: Mapping[str, npt.NDArray[np.float64]], **facts: int
) -> None:
    """Replace the values of a split; `facts` are the other attributes of `PerSample`.

    `sums` are 2 x n by metric. Without metrics no file is written.
    """
    if not sums:
        return
    arrays: dict[str, Any] = {name: np.int64(value) for name, value in facts.items()}
    # Names of metrics are values: no name inside of the archive is made of them.
    arrays["names"] = np.array(list(sums))
    arrays["sums"] = np.stack(list(sums.values()))
    with (
        atomic_write(per_sample_file(run, split)) as temporary,
        temporary.open("wb") as file,
    ):
        np.savez(file, allow_pickle=False, **arrays)


def read_per_sample(run: Path, split: Split) -> PerSample | None:
    """Return the values of a split, or None if there are none; Refused if the file is damaged."""
    path = per_sample_file(run, split)
    try:
        with open_file(path, TABLE_BYTES) as file:
            _require_stored(file)
            with np.load(file, allow_pickle=False) as arrays:
                record = PerSample(
                    step=int(arrays["step"]),
                    seed=int(arrays["seed"]),
                    batch_size=int(arrays["batch_size"]),
                    repeats=int(arrays["repeats"]),
                    names=tuple(str(name) for name in arrays["names"]),
                    # Numbers without a loss only: an array of texts is damage, too.
                    sums=arrays["sums"].astype(np.float64, casting="safe"),
                )
        if record.sums.shape != (len(record.names), 2, record.samples):
            raise DamageError(f"sums of shape {record.sums.shape}")
    except FileNotFoundError:
        return None
    except DAMAGES as error:
        message = f"{path} is damaged: {damage_of(error).reason}"
        raise Refused(message, code="damaged-file") from None
    return record


def _require_stored(file: Any) -> None:
    """Refuse compressed members, which could expand to any size."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("a compressed member")
    # np.load starts at the position of the file.
    file.seek(0)
