"""Unmask the most confident positions first (MaskGIT, Chang et al. 2022; LLaDA, Nie et al. 2025).

After the step to time s, round(N (1 - alpha(s))) of N tokens are still masked, and none after the
last. The model gets the time at which the actual share of masked tokens is expected. Scores are
taken before temperature, top-k and top-p.
Letters: B batch, L length, N chosen positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from .options import TokenSampler, no_effect

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean, TokenPrediction

__all__ = ["Ordered"]


class Ordered(TokenSampler):
    """The most confident positions first, as many per step as the schedule requires (MaskGIT, LLaDA).

    The model gets the time at which the actual share of masked tokens is expected. With one
    position per step any order except "drawn" has the distribution of the data under a perfect
    model; several are drawn as if independent.
    """

    name = "ordered"
    requires = "mask"
    by: Literal["confidence", "drawn", "margin", "entropy", "random"] = "confidence"
    """The confidence score. confidence: probability of the likeliest id. drawn: probability of the
    id that was drawn, which prefers likely ids (MaskGIT; LLaDA, where at temperature 0 both are
    one). margin: of the likeliest over the next. entropy: the lowest entropy first."""
    steps: int = Field(64, ge=1, le=1_000_000)
    """Maximum number of model calls; a step that reveals no position makes none."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Instead of `steps`: unmask every position whose likeliest id has at least this probability,
    and at least the likeliest (Fast-dLLM, Wu et al. 2025). Requires by = "confidence"."""
    entropy_bound: float | None = Field(None, ge=0, le=1000)
    """Instead of `steps`: unmask the first positions of the order as long as their entropies
    without the largest one add up to at most this many nats, a bound on the mutual information that
    drawing them independently ignores (EB-Sampler, Ben-Hamu et al. 2025). Requires by =
    "entropy"."""
    noise: float = Field(0.0, ge=0, le=1000)
    """Gumbel noise added to the score, falling with the share still masked: more of it gives more
    varied samples. The scores are log p (confidence, drawn), p (margin), nats (entropy)."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that masks tokens, and options that have an effect."""
        yield from super().check(process, model)
        for option, by in (("threshold", "confidence"), ("entropy_bound", "entropy")):
            if getattr(self, option) is None:
                continue
            yield from no_effect(self, ("steps",), f"with {option}")
            if self.by != by:
                message = f'{option} requires by = "{by}", not by = "{self.by}"'
                yield Misfit(
                    message, (option,), ("sampler", "by"), f'set sampler.by = "{by}"'
                )
            if self.noise:
                yield Misfit(
                    f"{option} requires noise = 0", (option,), ("sampler", "noise")
                )
        if self.by == "random":
            yield from no_effect(self, ("noise",), 'with by = "random"')

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        import torch

        from dither.registry.contracts.records import State

        from ..timestep_sampling import reveal_counts, time_of
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, fully_masked, top_positions

        x, masked = fully_masked(process, like, self.name)
        revealed = False
        # How many positions each call unmasks follows from the schedule, or from the prediction.
        if self.threshold is None and self.entropy_bound is None:
            calls = reveal_counts(process, masked.sum(1), self.steps)
        else:
            calls = _until_clean(masked)
        for due, share in calls:
            # The time at which training masks the share that is masked now: B
            t = time_of(process.schedule, share).to(torch.get_default_dtype())
            if self.by == "random":
                # No score depends on the model, so that it predicts the chosen positions only.
                chosen = top_positions(
                    torch.rand(x.shape, device=x.device), masked, due
                )
                rows = model(State.of(x), t, at=chosen)
                x = fill(x, chosen, warp_prediction(rows, self))
            else:
                rows = model(State.of(x), t, at=masked)
                x, chosen = self._unmask(x, rows, masked, due, share)
            # In place, for `_until_clean` watches it.
            masked &= ~chosen
            revealed = True
            yield x

        # A sample whose positions are all known is yielded once.
        if not revealed:
            yield x

    def _unmask(
        self,
        x: Int[Tensor, "B L"],
        rows: TokenPrediction,
        masked: Bool[Tensor, "B L"],
        due: Int[Tensor, " B"],
        share: Float[Tensor, " B"],
    ) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
        """Draw the ids of the `due` positions of highest score; return the new state and these positions."""
        import torch

        from ..precision import wide
        from ..tokens.categorical import draw_log
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, gumbel, log_prob, top_positions

        # Scores of the N masked positions, whose predictions are `rows`
        drawn = x
        if self.by == "drawn":
            ids = draw_log(warp_prediction(rows, self).log_clean()[0])
            drawn = x.masked_scatter(masked, ids)
            row_scores = log_prob(rows, ids)
        else:
            row_scores = _scores(rows.log_clean()[0].exp(), self.by).float()

        # N -> B L; other positions are never chosen
        score = torch.zeros(x.shape, dtype=row_scores.dtype, device=x.device)
        score = score.masked_scatter(masked, row_scores)
        # The noise falls to 0 as the sample is finished (LLaDA's Gumbel noise, MaskGIT's annealing).
        if self.noise:
            score = wide(score) + self.noise * share[:, None] * gumbel(score)

        # At least one is always unmasked, so that sampling ends.
        if self.threshold is not None:
            due = _count_likely(score, masked, self.threshold).maximum(due)
        if self.entropy_bound is not None:
            due = _count_certain(score, masked, self.entropy_bound).maximum(due)
        chosen = top_positions(score, masked, due)
        if self.by == "drawn":
            return torch.where(chosen, drawn, x), chosen
        # Ids are drawn at the chosen positions only: 1 N V -> 1 n V
        rows = rows.at(chosen[masked][None])
        return fill(x, chosen, warp_prediction(rows, self)), chosen


def _until_clean(
    masked: Bool[Tensor, "B L"],
) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, " B"]]]:
    """Yield one due position and the share still masked, as long as any of `masked` is True."""
    from ..precision import wide

    total = masked.sum(1)
    while bool(masked.any()):
        left = masked.sum(1)
        yield left.clamp_max(1), wide(left) / total.clamp_min(1)


def _count_likely(
    score: Float[Tensor, "B L"], masked: Bool[Tensor, "B L"], threshold: float
) -> Int[Tensor, " B"]:
    """Return how many positions have a likeliest id of at least this probability, whose logarithm is the score."""
    return ((score >= math.log(threshold)) & masked).sum(1)


def _count_certain(
    score: Float[Tensor, "B L"], masked: Bool[Tensor, "B L"], bound: float
) -> Int[Tensor, " B"]:
    """Return how many positions have entropies that, without the largest one, add up to at most the bound."""
    # Scores are minus entropies: the lowest entropies come first, positions that are not masked last.
    falling = score.masked_fill(~masked, -math.inf).sort(1, descending=True).values
    entropy = -falling
    # Of the first n entropies the n-th is the largest: their sum without it is that of n - 1.
    risk = entropy.nan_to_num(posinf=0.0).cumsum(1) - entropy
    within = (risk <= bound) & entropy.isfinite()
    # How many come before the first that is beyond the bound
    return within.long().cumprod(1).sum(1)


def _scores(p: Float[Tensor, "N V"], by: str) -> Float[Tensor, " N"]:
    """Return the score of each position; the highest are unmasked first."""
    import torch

    if by == "confidence":
        return p.amax(-1).log()
    if by == "margin":
        falling = p.topk(2, -1).values
        return falling[..., 0] - falling[..., 1]
    # entr(p) = -p log p, 0 at p = 0
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return -entropy
