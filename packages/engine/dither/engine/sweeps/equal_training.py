"""Steps with which every arm of a comparison spends as much on training as the first one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dither.registry.config.errors import Problem, Refused

from ..config.compare_options import Currency
from ..config.component_errors import annotate_build_errors
from ..config.load_experiment import Loaded
from .arms import Arm, training_key

if TYPE_CHECKING:
    from ..training.trainer import Trainer

__all__ = ["equal_training"]

COUNTED = 4
"""Steps over which FLOPs are averaged: those of batches with padding differ."""
PAIRS = 15
"""Steps of both arms that are timed, one after the other; slow first ones do not move the median."""


def equal_training(
    arms: Sequence[tuple[Arm, Loaded]],
    currency: Currency,
) -> tuple[list[tuple[Arm, Loaded]], dict[str, float]]:
    """Return the arms with the steps that cost as much as those of the first one, and what a step costs.

    The cost is that of a training step, in `currency`, by name of the arm; seconds are relative to
    the first arm. Evaluation and sampling are not part of it.

    Raises:
        Refused: No FLOPs are counted (`misfit`).
    """
    first = arms[0][1]
    by_weights: dict[str, float] = {}
    costs = {}
    for arm, loaded in arms:
        key = training_key(loaded)
        # Arms that differ in sampling only are trained alike.
        if key not in by_weights:
            by_weights[key] = _cost_of_step(loaded, first, currency)
        costs[arm.name] = by_weights[key]
        if not costs[arm.name]:
            message = (
                f'a training step of arm "{arm.name}" has no FLOPs that torch counts'
            )
            raise Refused(Problem(message, help="--equal seconds", code="misfit"))

    spent = first.experiment.train.steps * costs[arms[0][0].name]
    equal = []
    for arm, loaded in arms:
        steps = max(1, round(spent / costs[arm.name]))
        equal.append((arm, loaded.with_options("train", steps=steps)))
    return equal, costs


def _cost_of_step(loaded: Loaded, first: Loaded, currency: Currency) -> float:
    if currency == "steps":
        return 1.0
    if currency == "samples":
        return float(loaded.experiment.train.batch_size)
    return _flops(loaded) if currency == "flops" else _relative_seconds(loaded, first)


def _flops(loaded: Loaded) -> float:
    from ..training.step_cost import step_flops

    trainer = _trainer(loaded)
    return statistics.mean(step_flops(trainer) for _ in range(COUNTED))


def _relative_seconds(loaded: Loaded, first: Loaded) -> float:
    """Return the median time of a step, divided by that of the first arm.

    Steps of both alternate, so that other work of the machine slows both.
    """
    from ..training.step_cost import timed

    # Noise of the timing must not change the steps of the first arm.
    if loaded is first:
        return 1.0
    trainers = [_trainer(loaded), _trainer(first)]
    seconds: list[list[float]] = [[], []]
    for _ in range(PAIRS):
        for trainer, times in zip(trainers, seconds, strict=True):
            times.append(timed(trainer.advance, trainer.device))
    own, of_first = (statistics.median(times) for times in seconds)
    return own / of_first


def _trainer(loaded: Loaded) -> Trainer:
    from ..runs.loading import build
    from ..training.trainer import Trainer

    system, _ = build(loaded, training=True)
    experiment = loaded.experiment
    with annotate_build_errors(loaded.plugins.catalog):
        return Trainer(system, experiment.train, experiment.seed)
