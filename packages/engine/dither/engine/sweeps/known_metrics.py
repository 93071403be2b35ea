"""The metrics that the runs of an experiment will have, before the first one starts."""

from __future__ import annotations

from ..config.load_experiment import Loaded
from .directory import require_metric

__all__ = ["require_measured"]

SAMPLES = 64
"""Held-out samples of the evaluation that lists the metrics; a few have no AUC."""
DRAWN = 2


def require_measured(loaded: Loaded, metric: str | None) -> None:
    """Refuse a metric that runs of an experiment will not have (`unknown-metric`).

    Headlines of the task and the loss are known; otherwise initial weights are measured.
    """
    experiment = loaded.experiment
    if metric is None or metric in ("valid/loss", *experiment.task.headline):
        return
    kind = metric.partition("/")[0]
    known = dict.fromkeys(_measure(loaded, kind), 0.0)
    require_metric(metric, [known], "--metric")


def _measure(loaded: Loaded, kind: str) -> list[str]:
    """Return the metrics of initial weights, of an evaluation or of samples; none if unknown."""
    from ..runs.loading import build
    from ..sampling.samples import make_samples
    from ..training.evaluation import evaluate

    system, _ = build(loaded)
    system.eval()
    seed = loaded.experiment.seed
    if kind == "sample":
        drawn = make_samples(system, DRAWN, seed, pictures=False)
        # Initial weights may meet the goal of a task in no sample.
        if drawn is None or not len(drawn.samples):
            return []
        metrics = drawn.metrics
    else:
        metrics = evaluate(system, samples=SAMPLES, batch_size=SAMPLES, seed=seed) or {}
    return [f"{kind}/{name}" for name in metrics]
