"""The figures of baselines, on the elements that a model was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .baselines import Question, Reference
from .metrics import RegionMetrics, figures_of

__all__ = ["baseline_figures"]


def baseline_figures(
    fresh: Callable[[], RegionMetrics], fit: Callable[[int], Reference], questions: Mapping[str, Sequence[Question]]
) -> dict[str, float]:
    """Return `FIGURE/BASELINE` for everything that a baseline answers; empty where nothing was asked.

    Args:
        fresh: Makes the figures that are to be filled in.
        fit: From the number of a cell type, or -1, to the baselines fitted on it; one is held at a time.
        questions: What was asked, by what is to stand before the name of its figures.
    """
    figures: dict[tuple[str, str], RegionMetrics] = {}
    every = [(before, question) for before, asked in questions.items() for question in asked]
    for cell in np.unique(np.concatenate([np.zeros(0, np.int64), *(question.cell for _, question in every)])).tolist():
        reference = fit(cell)
        for before, question in every:
            part = question.of_cell(cell)
            if not part.wanted.any():
                continue
            for name, guess, counted in reference.answers(part):
                figures.setdefault((before, name), fresh()).answers.add(part.truth, guess, counted)
        del reference  # before the next one is fitted: each holds a copy of the training regions
    return {
        f"{before}{figure}/{name}": value
        for (before, name), each in figures.items()
        for figure, value in figures_of(each.answers, each.groups, each.mean).items()
        if figure != "constant_columns" and (name != "logistic" or figure.startswith("accessibility"))
    }
