"""The task as the engine sees it: windows of regions, figures, and heat maps to look at.

Letters: B batch, L regions of a window, M columns (motifs, and perhaps accessibility behind them), N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.parts import Picture, Split
from dither.registry.problems import Problem, Refused
from dither.registry.spaces import FeatureSpace

from .baselines import accessibility_baselines, mean_error
from .drawing import WindowPicture, draw_window
from .metrics import RegionMetrics
from .regions import RegionMatrix, Standard, Window
from .specs import column_groups

__all__ = ["RegionWindows", "drawn"]

PICTURES = 4


def drawn(samples: Float[Tensor, "N L M"], like: Clean) -> Bool[Tensor, "N L M"]:
    """Tell which values a sampler drew: those that were not given, nor left in sight. On the CPU.

    A process that hides a fixed share of what it may hide leaves the rest as it is. Such a value equals the truth bit
    for bit, as no drawn one does; to count it would lower every error for nothing.
    """
    return (~like.fixed & (samples != like.x0)).cpu()


class RegionWindows:
    """Windows of consecutive regions; whole chromosomes are held out.

    Each batch tells, as conditions, where its regions are: `chromosome` (`B`, a number) and `centre` (`B L`, in bases;
    0 on padding).

    Args:
        matrix: The regions.
        regions: Regions per window.
        stride: Regions from one training window to the next.
        cell: The cell type whose accessibility is the last column; None leaves that column out.
        standardise: Give every column mean 0 and standard deviation 1 over the training regions.
        given: What a model is always told and never asked for: nothing, or the motifs (needs a cell type).
        fill: Share of a window's regions that sampling is to fill in; the others are given.

    Raises:
        Refused: No training chromosome is as long as a window, or there is no such cell type.
    """

    def __init__(
        self,
        matrix: RegionMatrix,
        *,
        regions: int = 900,
        stride: int = 100,
        cell: str | None = "K562",
        standardise: bool = False,
        given: Literal["nothing", "motifs"] = "nothing",
        fill: float = 0.5,
    ) -> None:
        if given == "motifs" and cell is None:
            raise ValueError('with given = "motifs" and no accessibility there is nothing to ask for')
        if not 0 < fill <= 1:
            raise ValueError(f"fill is a share above 0 and at most 1, got {fill}")
        self.matrix, self.regions, self.cell, self.fill = matrix, regions, cell, fill
        self.motifs = len(matrix.motifs)
        self.space = FeatureSpace(
            regions, self.motifs + (cell is not None), column_groups(self.motifs, cell is not None)
        )
        columns = matrix.features
        if cell is not None:
            columns = np.concatenate([columns, matrix.labels(cell)[:, None].astype(np.float32)], 1)
        self._columns = columns
        self._train = matrix.rows("train")
        self._measured = Standard.of(columns[self._train])
        self.standard = self._measured if standardise else Standard.none(columns.shape[1])
        self._table = torch.from_numpy((columns - self.standard.mean) / self.standard.std)
        self._given = torch.zeros(columns.shape[1], dtype=torch.bool)
        self._given[: self.motifs] = given == "motifs"
        names, self._chromosome = np.unique(matrix.chromosome, return_inverse=True)
        self._names = names.tolist()
        self._centre = torch.from_numpy((matrix.start + matrix.end) // 2)
        self.windows: dict[Split, list[Window]] = {
            split: matrix.windows(split, regions, stride) for split in get_args(Split)
        }
        self._check_windows()

    def size(self, split: Split) -> int:
        """Number of windows of a split."""
        return len(self.windows[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number."""
        windows = self.windows[split]
        if any(not 0 <= row < len(windows) for row in rows):
            raise IndexError(f"windows of {split} are numbered 0..{len(windows) - 1}, asked for {list(rows)}")
        chosen = [windows[row] for row in rows]
        first = torch.tensor([window.first for window in chosen], dtype=torch.int64)[:, None]
        count = torch.tensor([window.count for window in chosen], dtype=torch.int64)[:, None]
        step = torch.arange(self.regions)
        valid = step < count
        index = first + step.minimum(count - 1)
        return Clean(
            x0=self._table[index] * valid[..., None],
            valid=valid,
            known=self._given.expand(*index.shape, -1) & valid[..., None],
            cond={
                "chromosome": torch.from_numpy(self._chromosome)[first[:, 0]],
                "centre": self._centre[index] * valid,
            },
        )

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` validation windows with their truth; in each, a share `fill` of the regions is to be drawn."""
        random = np.random.default_rng(seed)
        size = self.size("valid")
        rows = np.concatenate([random.permutation(size) for _ in range(-(-n // size))])[:n] if n else np.zeros(0, int)
        clean = self.batch("valid", rows.tolist())
        to_draw = torch.zeros_like(clean.valid)
        for row, count in enumerate(clean.valid.sum(1).tolist()):
            to_draw[row, random.permutation(count)[: max(1, round(self.fill * count))]] = True
        known = clean.known | (clean.valid & ~to_draw)[..., None]
        return Clean(clean.x0, clean.valid, known, clean.cond)

    def metrics(self) -> RegionMetrics:
        """Return a fresh accumulator of errors, correlations and areas under curves."""
        return RegionMetrics(self.motifs, self.standard, torch.from_numpy(self._measured.mean))

    def baselines(self) -> dict[str, float]:
        """Return the figures of predictors without a model.

        `mean` answers with the training mean of each column; `chance` ranks regions at random; `logistic` is a logistic
        regression on a region's own motifs, which a model that sees them should reach.
        """
        held = self.matrix.rows("valid")
        figures = {"masked_gain/mean": 0.0}
        if not bool(self._given.any()):
            figures["motif_pearson/mean"] = 0.0
            figures["motif_mse/mean"] = mean_error(self._columns[:, : self.motifs], self._train, held)
        if self.cell is not None:
            figures["accessibility_mse/mean"] = mean_error(self._columns[:, self.motifs :], self._train, held)
            figures |= accessibility_baselines(self.matrix, self.cell)
        return figures

    def judge(self, samples: Float[Tensor, "N L M"], like: Clean) -> dict[str, float]:
        """Return the figures of `metrics`, over the values that were drawn."""
        figures = self.metrics()
        figures.add(like.x0, samples, drawn(samples, like))
        return figures.compute()

    def show(self, samples: Float[Tensor, "N L M"], like: Clean) -> Iterator[Picture]:
        """Yield heat maps of the first few samples: truth, mask, what was drawn, and the difference."""
        for number in range(min(len(samples), PICTURES)):
            keep = like.valid[number].cpu()
            places = self._places(like, number)
            asked = drawn(samples[number : number + 1], like[number : number + 1])[0, keep]
            count = int(asked.any(1).sum())
            picture = WindowPicture(
                title=f"{places[0]} to {places[-1]}: {len(places)} regions, something was drawn in {count} of them",
                truth=self._plain(like.x0[number], keep),
                given=(~asked).numpy(),
                drawn=self._plain(samples[number], keep),
                places=places,
                motifs=self.matrix.motifs,
                cell=self.cell or "",
            )
            yield Picture(f"window-{number:03d}", png=draw_window(picture))

    def _places(self, like: Clean, number: int) -> list[str]:
        name = self._names[int(like.cond["chromosome"][number])]
        return [f"{name}:{place:,}" for place in like.cond["centre"][number][like.valid[number]].tolist()]

    def _plain(self, x: Float[Tensor, "L M"], keep: Bool[Tensor, " L"]) -> Float[np.ndarray, "N M"]:
        plain: Float[np.ndarray, "N M"] = x.detach().float().cpu()[keep].numpy()
        plain = plain * self.standard.std + self.standard.mean
        return plain

    def _check_windows(self) -> None:
        if not self.windows["train"]:
            names, counts = np.unique(self.matrix.chromosome[self._train], return_counts=True)
            longest = f"{names[counts.argmax()]} has {counts.max()}" if len(names) else "there is none"
            message = f"no chromosome of the training split holds {self.regions} regions: {longest}"
            raise Refused(Problem(message, path=("task", "regions"), help="lower regions"))
        if not self.windows["valid"]:
            raise Refused("no chromosome is held out for validation")
