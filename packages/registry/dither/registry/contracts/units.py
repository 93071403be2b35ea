"""Units of metrics, which their names contain. No torch."""

from __future__ import annotations

import re

__all__ = ["is_likelihood"]

# Not `judge_perplexity` or `ngram_perplexity`, which another model gives to samples.
LIKELIHOOD = re.compile(r"(^|_)((nats|bits)_per_|perplexity($|_ci95$))")


def is_likelihood(metric: str) -> bool:
    """Return whether a metric of an evaluation, by its unit, is computed from a bound on the likelihood."""
    return LIKELIHOOD.search(metric.partition("/")[0]) is not None
