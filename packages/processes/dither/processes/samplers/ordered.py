"""Decide the most confident positions first (MaskGIT, Chang et al. 2022; LLaDA, Nie et al. 2025).

After the step to time s, round(N (1 - alpha(s))) of N tokens are still noise, and none after the
last. The model gets the time at which the actual share of noise is expected. Scores are taken
before temperature, top-k and top-p.

A prior on MASK alone marks the noise, and decided tokens stay. Under any other every call predicts
all N tokens, draws the most confident ones and the rest from the prior again (reparameterized
diffusion, Zheng et al. 2023; DiffusionGemma): more of them after each call.
Letters: B batch, L length, N chosen positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from ..options import no_effect
from .options import TokenSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean, TokenPrediction

__all__ = ["Ordered"]


class Ordered(TokenSampler):
    """The most confident positions first, as many per step as the schedule requires (MaskGIT, LLaDA).

    The model gets the time at which the actual share of noise is expected. With one position per
    step any order except "drawn" has the distribution of the data under a perfect model; several
    are drawn as if independent. Under noise without a mark all positions are decided again at each
    step, and the least confident are noised again (DiffusionGemma): samples stay likelier and less
    varied than those of the model.
    """

    name = "ordered"
    requires = "tokens"
    by: Literal["confidence", "drawn", "margin", "entropy", "random"] = "confidence"
    """The confidence score. confidence: probability of the likeliest id. drawn: probability of the
    id that was drawn, which prefers likely ids (MaskGIT; LLaDA, where at temperature 0 both are
    one). margin: of the likeliest over the next. entropy: the lowest entropy first."""
    steps: int = Field(64, ge=1, le=1_000_000)
    """Maximum number of model calls; a step that decides no position makes none."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Decide every position whose likeliest id has at least this probability, and at least the
    likeliest: instead of `steps` under masks, else on top of them (Fast-dLLM, Wu et al. 2025).
    Requires by = "confidence"."""
    entropy_bound: float | None = Field(None, ge=0, le=1000)
    """Decide the first positions of the order as long as their entropies without the largest one
    add up to at most this many nats, a bound on the mutual information that drawing them
    independently ignores: instead of `steps` under masks, else on top of them (EB-Sampler, Ben-Hamu
    et al. 2025). Requires by = "entropy"."""
    stop: float | None = Field(None, gt=0, le=1000)
    """Decide all positions of a sample once their likeliest ids are those of the call before and
    their mean entropy is at most this many nats (DiffusionGemma has 0.005)."""
    noise: float = Field(0.0, ge=0, le=1000)
    """Gumbel noise added to the score, falling with the share of noise: more of it gives more
    varied samples. The scores are log p (confidence, drawn), p (margin), nats (entropy)."""

    def steers(self, process: ProcessFacts) -> bool:
        """Return True without masks: what is decided first depends on the noise."""
        return process.prior != "mask"

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Reject options without effect."""
        yield from super().check(process, model)
        for option, by in (("threshold", "confidence"), ("entropy_bound", "entropy")):
            if getattr(self, option) is None:
                continue
            if process.prior == "mask":
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
            yield from no_effect(self, ("noise", "stop"), 'with by = "random"')

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        import torch

        from dither.registry.contracts.records import State

        from ..precision import wide
        from ..timestep_sampling import reveal_counts, time_of
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import draw_prior, fill, top_positions, uncertain

        x = process.prior(like).x
        # Positions that hold noise, at first all that are not known
        noisy = uncertain(process, x, like)
        count = noisy.sum(1)
        if not bool(noisy.any()):
            yield x
            return

        # How many positions each call decides follows from the schedule, or from the prediction alone.
        adaptive = self.threshold is not None or self.entropy_bound is not None
        steps: Iterable[Int[Tensor, " B"]] = repeat(count.clamp_max(1))
        if not (adaptive and process.absorbing):
            steps = (due for due, _ in reveal_counts(process, count, self.steps))

        # The likeliest ids of the last call
        likeliest = torch.full_like(x, -1)
        scheduled = torch.zeros_like(count)
        for increment in steps:
            # The time at which training noises the share that is noise now: B
            share = wide(noisy.sum(1)) / count.clamp_min(1)
            t = time_of(process.schedule, share).to(torch.get_default_dtype())
            if not process.absorbing:
                x = torch.where(noisy, draw_prior(process, t, like), x)

            # If masks mark the noise they alone are predicted, else all positions of a sample with noise.
            among = uncertain(process, x, like) & noisy.any(1, keepdim=True)
            # Decided positions stay under masks, which leaves the increment; else they are in `among`
            # and decided again.
            scheduled = scheduled + increment
            decided = count - among.sum(1)
            due = scheduled - decided
            if self.by == "random":
                # No score depends on the model, so that it predicts the chosen positions only.
                chosen = top_positions(torch.rand(x.shape, device=x.device), among, due)
                rows = model(State.of(x), t, at=chosen)
                x = fill(x, chosen, warp_prediction(rows, self))
            else:
                rows = model(State.of(x), t, at=among)
                if self.stop is not None:
                    log_p = rows.log_clean()[0]
                    before = likeliest
                    likeliest = before.masked_scatter(among, log_p.argmax(-1))
                    settled = (likeliest == before).all(1)
                    settled &= _mean_entropy(log_p, among) <= self.stop
                    due = torch.where(settled, count, due)
                x, chosen = self._decide(x, rows, among, due, share)
            noisy = among & ~chosen
            yield x
            if not bool(noisy.any()):
                return

    def _decide(
        self,
        x: Int[Tensor, "B L"],
        rows: TokenPrediction,
        among: Bool[Tensor, "B L"],
        due: Int[Tensor, " B"],
        share: Float[Tensor, " B"],
    ) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
        """Draw the ids of the `due` positions of highest score; return the new state and these positions."""
        import torch

        from ..precision import wide
        from ..tokens.categorical import draw_log
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, gumbel, log_prob, top_positions

        # Scores of the N positions of `among`, whose predictions are `rows`
        drawn = x
        if self.by == "drawn":
            ids = draw_log(warp_prediction(rows, self).log_clean()[0])
            drawn = x.masked_scatter(among, ids)
            row_scores = log_prob(rows, ids)
        else:
            row_scores = _scores(rows.log_clean()[0].exp(), self.by).float()

        # N -> B L; other positions are never chosen
        score = torch.zeros(x.shape, dtype=row_scores.dtype, device=x.device)
        score = score.masked_scatter(among, row_scores)
        # The noise falls to 0 as the sample is finished (LLaDA's Gumbel noise, MaskGIT's annealing).
        if self.noise:
            score = wide(score) + self.noise * share[:, None] * gumbel(score)

        # At least one is always decided, so that sampling ends.
        if self.threshold is not None:
            likely = _count_likely(score, among, self.threshold)
            due = likely.maximum(due).clamp_min(1)
        if self.entropy_bound is not None:
            due = _count_certain(score, among, self.entropy_bound).maximum(due)
        chosen = top_positions(score, among, due)
        if self.by == "drawn":
            return torch.where(chosen, drawn, x), chosen
        # Ids are drawn at the chosen positions only: 1 N V -> 1 n V
        rows = rows.at(chosen[among][None])
        return fill(x, chosen, warp_prediction(rows, self)), chosen


def _mean_entropy(
    log_p: Float[Tensor, "N V"], among: Bool[Tensor, "B L"]
) -> Float[Tensor, " B"]:
    """Return the mean entropy of the chosen positions of each sample, whose predictions are the rows; 0 of none."""
    entropy = -_scores(log_p.exp(), "entropy")
    total = entropy.new_zeros(among.shape).masked_scatter(among, entropy).sum(1)
    return total / among.sum(1).clamp_min(1)


def _count_likely(
    score: Float[Tensor, "B L"], among: Bool[Tensor, "B L"], threshold: float
) -> Int[Tensor, " B"]:
    """Return how many positions have a likeliest id of at least this probability, whose logarithm is the score."""
    return ((score >= math.log(threshold)) & among).sum(1)


def _count_certain(
    score: Float[Tensor, "B L"], among: Bool[Tensor, "B L"], bound: float
) -> Int[Tensor, " B"]:
    """Return how many positions have entropies that, without the largest one, add up to at most the bound."""
    # Scores are minus entropies: the lowest entropies come first, the others last.
    falling = score.masked_fill(~among, -math.inf).sort(1, descending=True).values
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
