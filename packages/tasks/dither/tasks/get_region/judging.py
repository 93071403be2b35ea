"""What drawn samples are worth: the mean over the draws of a window as the answer, and how the draws spread.

Letters: N samples, L length, M columns.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow import Clean

from .answers import windows_of
from .baselines import Question
from .facts import KEPT
from .imputation import Draws, draw_figures, drawn, same_windows
from .metrics import RegionMetrics

__all__ = ["judge", "questions_of"]


def judge(figures: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean) -> dict[str, float]:
    """Return the figures of the mean over the draws of each window, and with several draws those of their spread.

    Args:
        figures: Fresh; takes in the values that were drawn.
        samples: What was drawn.
        like: What sampling started from; draws of one window stand together.
    """
    counted, windows = drawn(samples, like), same_windows(like)
    if not windows:
        return {}
    first = [rows.start for rows in windows]
    means = torch.stack([samples[rows].mean(0) for rows in windows])
    places = windows_of(like)
    figures.add(like.x0[first], means, counted[first], None if places is None else places[first])
    draws = Draws.of(figures.plain(like.x0), figures.plain(samples), counted.numpy(), windows)
    return figures.compute() | ({} if draws is None else draw_figures(draws))


def questions_of(figures: RegionMetrics, samples: Float[Tensor, "N L M"], like: Clean) -> list[Question]:
    """Return what was drawn of the first windows as a question to baselines; as `judge` otherwise."""
    first = [rows.start for rows in same_windows(like)][: -(-KEPT // like.x0.shape[1])]
    starts = like.apply(lambda value: value[first])
    return [Question.of(figures.plain(starts.x0), drawn(samples, like)[first], starts)] if first else []
