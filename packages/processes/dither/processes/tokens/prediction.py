"""What a model says of tokens, held at once or asked for where it is needed.

A reading gives the raw output its meaning. Samplers ask it piece by piece (`pieces`), for the positions that a step may
change. Where the model was not called yet, it is called when the first piece is asked for, and never if none is; and
where its head treats positions alike, that is applied to these positions only, a chunk at a time, so that `B L V`
numbers are never held. Letters: B batch, L length, V vocabulary, N chosen positions, n those of a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.flow.records import Noise, State

from ..precision import wide
from .categorical import draw_log
from .posterior import Posterior, lookup

if TYPE_CHECKING:
    from dither.registry.flow.protocols import RawLater

__all__ = ["CategoricalPrediction", "LaterReading", "PredictionType", "as_categorical", "clean_pieces", "sample_clean"]

PredictionType = Literal["posterior", "plug-in", "score"]

NEAR = 1 << 20
"""Numbers of a piece on a CPU: what is made of them then stays in its caches, and in memory that is used again."""


class CategoricalPrediction:
    """The raw output of a model under its meaning; a `TokenPrediction`.

    Args:
        log: What the model says, with ids that cannot be at -inf: log p(x_0 | x_t) normalised (posterior), log p(x_0 |
            the other positions) normalised (plug-in), or log p_t(y) / p_t(x_t) with 0 at x_t (score).
        meaning: Which of them it is.
        evidence: x_t and its level.
    """

    def __init__(self, log: Float[Tensor, "B L V"], meaning: PredictionType, evidence: Posterior) -> None:
        self.log, self.meaning, self.evidence = log, meaning, evidence

    def log_clean(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | x_t), normalised; -inf on ids that cannot be."""
        return self.log if self.meaning == "posterior" else self.evidence.posterior(self.log_context())

    def log_context(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | the other positions), normalised: the x_0 to plug into q(x_s | x_t, x_0)."""
        if self.meaning == "posterior":
            return self.evidence.context(self.log)
        return self.log if self.meaning == "plug-in" else self.evidence.context_of_score(self.log)

    def log_score(self) -> Float[Tensor, "B L V"]:
        """Return log p_t(y) / p_t(x_t) with one position changed to y; 0 at y = x_t.

        Under an absorbing prior it is exact at MASK, the only place where a reverse rate needs it.
        """
        return self.log if self.meaning == "score" else self.evidence.score(self.log_context())

    def log_leaving(self) -> Float[Tensor, "B L"]:
        """Return the log of the sum of all scores but that of x_t, which is (1 - p_t(x_t)) / p_t(x_t)."""
        x, evidence = self.evidence.x, self.evidence
        if self.meaning == "score":
            return self.log.scatter(-1, x[..., None], -torch.inf).logsumexp(-1)
        log_m = wide(self.log_context().gather(-1, x[..., None])[..., 0])
        alpha, lost, landing = evidence.log_alpha.exp(), evidence.log_lost.exp(), lookup(evidence.prior, x)
        away = -alpha * log_m.expm1() + lost * (1 - landing)
        return away.log() - (alpha * log_m.exp() + lost * landing).log()

    def sharpened(self, sharpen: Callable[[Tensor], Tensor]) -> CategoricalPrediction:
        """Return another reading, in which what the model believes of x_0 before it sees x_t was changed."""
        return CategoricalPrediction(sharpen(self.log_context()), "plug-in", self.evidence)

    def pieces(self, where: Bool[Tensor, "B L"]) -> Iterator[CategoricalPrediction]:
        """Yield readings of the chosen positions in order, each as one sample `1 n V`; here all of them at once."""
        if where.any():
            yield CategoricalPrediction(self.log[where][None], self.meaning, self.evidence.rows(where))


class LaterReading:
    """A `TokenPrediction` of a model that is asked when it is needed, and where.

    Args:
        read: Raw output, state and noise -> a reading, as `TokenProcess.read`.
        raw: What the model will say.
        state: What it sees.
        evidence: x_t and its level.
        sharpen: As in `sharpened`.
    """

    def __init__(
        self,
        read: Callable[[Tensor, State, Noise], CategoricalPrediction],
        raw: RawLater,
        state: State,
        evidence: Posterior,
        meaning: PredictionType,
        sharpen: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.read, self.raw, self.state, self.evidence, self.sharpen = read, raw, state, evidence, sharpen
        self.meaning: PredictionType = meaning if sharpen is None else "plug-in"

    @cached_property
    def whole(self) -> CategoricalPrediction:
        """The reading of every position."""
        return self._sharpened(self.read(self.raw.whole(), self.state, self.evidence.noise))

    def log_clean(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | x_t), normalised; -inf on ids that cannot be."""
        return self.whole.log_clean()

    def log_context(self) -> Float[Tensor, "B L V"]:
        """Return log p(x_0 | the other positions), normalised."""
        return self.whole.log_context()

    def log_score(self) -> Float[Tensor, "B L V"]:
        """Return log p_t(y) / p_t(x_t) with one position changed to y; 0 at y = x_t."""
        return self.whole.log_score()

    def sharpened(self, sharpen: Callable[[Tensor], Tensor]) -> LaterReading:
        """Return another reading of the same output, in which what is believed before x_t is seen was changed."""
        first = self.sharpen
        both = sharpen if first is None else lambda log: sharpen(first(log))
        return LaterReading(self.read, self.raw, self.state, self.evidence, self.meaning, both)

    def pieces(self, where: Bool[Tensor, "B L"]) -> Iterator[CategoricalPrediction]:
        """Yield readings of the chosen positions in order, each as one sample `1 n V`."""
        if not where.any():
            return
        if not self.raw.by_rows:
            yield from self.whole.pieces(where)
            return
        chosen, start = self.evidence.rows(where), 0
        for raw in _near(self.raw.rows(where)):
            part = slice(start, start + raw.shape[1])
            noise = chosen.noise.apply(lambda value, part=part: value[:, part])  # type: ignore[misc]
            yield self._sharpened(self.read(raw, State.of(chosen.x[:, part]), noise))
            start = part.stop

    def _sharpened(self, reading: CategoricalPrediction) -> CategoricalPrediction:
        return reading if self.sharpen is None else reading.sharpened(self.sharpen)


def _near(raws: Iterable[Float[Tensor, "1 N V"]]) -> Iterator[Float[Tensor, "1 n V"]]:
    """Cut what comes into pieces that a CPU has close at hand while they are read."""
    for raw in raws:
        near = raw.device.type == "cpu"
        yield from torch.split(raw, max(1, NEAR // raw.shape[-1]) if near else raw.shape[1], 1)


def as_categorical(
    pred: Any, evidence: Posterior, form: Literal["posterior", "score"]
) -> CategoricalPrediction | LaterReading:
    """Return a prediction as a reading; of one of another make, what it says in the given form."""
    if isinstance(pred, (CategoricalPrediction, LaterReading)):
        return pred
    return CategoricalPrediction(pred.log_score() if form == "score" else pred.log_clean(), form, evidence)


def clean_pieces(pred: Any, where: Bool[Tensor, "B L"]) -> Iterator[Float[Tensor, "n V"]]:
    """Yield log p(x_0 | x_t) of the chosen positions in order, of any prediction."""
    if isinstance(pred, (CategoricalPrediction, LaterReading)):
        for piece in pred.pieces(where):
            yield piece.log_clean()[0]
    elif where.any():
        yield pred.log_clean()[where]


def sample_clean(pred: Any, where: Bool[Tensor, "B L"]) -> Int[Tensor, " N"]:
    """Draw from p(x_0 | x_t) at the chosen positions, of any prediction."""
    none = torch.zeros(0, dtype=torch.long, device=where.device)
    return torch.cat([none, *(draw_log(log) for log in clean_pieces(pred, where))])
