"""Rejection sampling: draw until samples meet the goal of the task, with any sampler. Letters: N samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from dither.registry.flow.records import Clean, Goal

from ..training.diffusion import Diffusion
from ..training.randomness import mix_seed
from .row_prediction import ModelCalls
from .session import draw
from .trajectory import TrajectoryRecorder

__all__ = ["AcceptedSamples", "draw_accepted", "missing_samples"]


@dataclass(frozen=True)
class AcceptedSamples:
    """Samples that meet their goal.

    Attributes:
        samples: All of them meet the goal.
        like: Conditions and known values of each.
        figures: Metrics: share of first draws that meet the goal ("satisfied", and "satisfied/NAME" for each part of
            it), "drawings_per_sample", "model_calls_per_sample" (a call is one row through the model), and
            "undelivered", the number of missing samples.
    """

    samples: Shaped[Tensor, "N L *M"]
    like: Clean
    figures: dict[str, float]


def draw_accepted(
    system: Diffusion,
    like: Clean,
    seed: int,
    batch_size: int | None = None,
    tries: int = 64,
    stopped: Callable[[], bool] = lambda: False,
    watch: TrajectoryRecorder | None = None,
) -> AcceptedSamples | None:
    """Draw samples; redraw those that do not meet the goal of `like`, up to `tries` times; None if stopped.

    Accepted samples have the distribution of the sampler given that the goal is met, for each row separately, so that
    differences between rows, such as their length, keep their frequencies. `watch` records accepted samples.
    """
    goal = like.goal
    assert goal is not None, "there is a goal to meet"
    open_rows = torch.arange(len(like.valid))
    samples, figures, drawn = like.x0.clone(), dict[str, float](), 0
    calls = ModelCalls()
    for round_ in range(tries):
        if not len(open_rows):
            break
        rows = open_rows
        some = like.apply(lambda value, rows=rows: value[rows.to(value.device)])  # type: ignore[misc]
        new = draw(system, some, mix_seed(seed, round_) if round_ else seed, batch_size, stopped, watch, calls)
        if new is None:
            return None
        drawn += len(rows)
        satisfied, met = _satisfied(goal, new)
        figures = figures or {"satisfied": _share(met), **{f"satisfied/{k}": _share(v) for k, v in satisfied.items()}}
        samples[rows[met]] = new[met].to(samples)
        open_rows = rows[~met]
        if watch is not None:
            watch.keep(rows, met)
    done = torch.ones(len(like.valid), dtype=torch.bool).index_fill(0, open_rows, False)
    delivered = max(int(done.sum()), 1)
    figures["drawings_per_sample"] = drawn / delivered
    figures["model_calls_per_sample"] = calls.rows / delivered
    figures["undelivered"] = float(len(open_rows))
    return AcceptedSamples(samples[done], like.apply(lambda value: value[done.to(value.device)]), figures)


def missing_samples(figures: Mapping[str, float]) -> list[str]:
    """Return lines to print if samples are missing."""
    missing = int(figures.get("undelivered", 0))
    if not missing:
        return []
    shares = {key.partition("/")[2]: value for key, value in figures.items() if key.startswith("satisfied/")}
    rarest = min(shares, key=lambda key: shares[key])
    return [
        f"{missing} samples are missing: none of their draws met the constraints",
        f'the rarest is {rarest}, met by {shares[rarest]:.1%} at first; use sampler "guided", or raise sample.tries',
    ]


def _satisfied(goal: Goal, x: Tensor) -> tuple[dict[str, Bool[Tensor, " N"]], Bool[Tensor, " N"]]:
    satisfied = goal.satisfied(x)
    return satisfied, torch.stack([torch.ones(len(x), dtype=torch.bool), *satisfied.values()]).all(0)


def _share(met: Bool[Tensor, " N"]) -> float:
    return float(met.double().mean()) if len(met) else float("nan")
