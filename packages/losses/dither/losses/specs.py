"""The menu of this package. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Spec, TokenSpace, hookimpl
from dither.registry.config.errors import nearest
from dither.registry.kinds import FEATURES, TOKENS, ProcessFacts
from dither.registry.kinds.costs import Cost
from dither.registry.kinds.training import LossSpec

from .costs import cost_in_columns, cost_in_rows, cost_read, table_size

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Loss

__all__ = ["MSE", "Huber", "MaskedCE", "MaskedCEActive", "Poisson", "ScoreEntropy", "SeedLoss", "register_components"]

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

USE_SCORE_ENTROPY = 'use loss "score-entropy", which is the bound of every token process and meaning'


class MaskedCE(LossSpec):
    """Weighted cross entropy on masked tokens: the NELBO of an absorbing process in closed form (MDLM).

    In nats: the mean is a bound per token, over real tokens that are not known, masked or not.
    """

    name: ClassVar[str] = "masked-ce"
    serves = TOKENS
    bound = True
    reduction: Literal["token", "sample"] = "token"
    """What training sees: nats per token, or per sample (graph). Evaluation gives the bound per token either way."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield why the closed form does not hold for the process."""
        yield from super().check(process)
        yield from _not_closed(self.name, process)

    def cost(self, process: ProcessFacts) -> Cost:
        """The gradient of the logarithms, before and after normalising."""
        return Cost(passing=2 * table_size(process.space))

    def fused_cost(self, process: ProcessFacts, *, half: bool = False) -> Cost:
        """Tiles of whole rows, of which each is normalised."""
        return cost_in_rows(process, half=half)

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        from .fused.losses import FusedMaskedCE

        return _reduced(FusedMaskedCE(), self.reduction)


class MaskedCEActive(LossSpec):
    """Weighted cross entropy divided by the number of masked tokens of the sample, as Davis/BD_Generation has it.

    Kept to compare with that system. It is no bound: with even logits it is log V (1 + 1/2 + .. + 1/N), not log V per
    token.
    """

    name: ClassVar[str] = "masked-ce-active"
    serves = TOKENS
    weights: dict[str, NotNegative | list[NotNegative]] = {}
    """By name of the field: how much its tokens count (lambda), or one number per clean id, in order. Default 1."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield why the weights do not hold for the process."""
        yield from super().check(process)
        yield from _not_closed(self.name, process)
        if not isinstance(process.space, TokenSpace):
            return
        clean = {f.name: sum(i not in (f.mask, f.pad) for i in range(f.size)) for f in process.space.fields}
        for name, said in self.weights.items():
            if name not in clean:
                what = f'no field is named "{name}"; fields: {", ".join(clean)}'
                close = nearest(name, clean)
                yield Misfit(what, ("weights", name), ("task",), f'did you mean "{close}"?' if close else None)
            elif isinstance(said, list) and len(said) != clean[name]:
                what = f'field "{name}" has {clean[name]} clean ids, but here are {len(said)} weights'
                yield Misfit(what, ("weights", name), ("task",))

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield that its figures are no likelihood."""
        message = 'loss "masked-ce-active" is no bound on -log p(x_0): its nats compare with those of no other loss'
        yield Misfit(message, help='use loss "masked-ce"')

    def cost(self, process: ProcessFacts) -> Cost:
        """The gradient of the logarithms, before and after normalising."""
        return Cost(passing=2 * table_size(process.space))

    def fused_cost(self, process: ProcessFacts, *, half: bool = False) -> Cost | None:
        """Tiles of whole rows, of which each is normalised; a weighted loss has no such form."""
        return None if self.weights else cost_in_rows(process, half=half)

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        from .fused.losses import FusedMaskedCE
        from .reductions import PerActive

        if not (self.weights and isinstance(process.space, TokenSpace)):
            return PerActive(FusedMaskedCE())
        from .reductions import Weighted, weight_table

        return Weighted(PerActive(FusedMaskedCE()), weight_table(process.space, self.weights))


class ScoreEntropy(LossSpec):
    """Score entropy (SEDD): the NELBO of every token process, whatever the model predicts.

    It is never negative, and 0 at the true score. In nats: the mean is a bound per token, over real tokens that are not
    known.
    """

    name: ClassVar[str] = "score-entropy"
    serves = TOKENS
    bound = True
    reduction: Literal["token", "sample"] = "token"
    """What training sees: nats per token, or per sample (graph). Evaluation gives the bound per token either way."""

    def cost(self, process: ProcessFacts) -> Cost:
        """Scores are kept; five more tables of their size pass. Scores of a model of clean ids are worked out first."""
        table = table_size(process.space)
        steps = {"score": 0, "plug-in": 2, "posterior": 3}[process.predict]
        return Cost(kept=(1 + steps) * table, passing=21 * table // 4)

    def fused_cost(self, process: ProcessFacts, *, half: bool = False) -> Cost:
        """Tiles along the ids where scores meet an even prior or a single id; else the process reads whole rows."""
        closed = process.predict == "score" and process.prior in {"uniform", "mask"}
        return cost_in_columns(process, half=half) if closed else cost_read(process, half=half)

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        from .fused.losses import FusedScoreEntropy

        return _reduced(FusedScoreEntropy(), self.reduction)


class SeedLoss(LossSpec):
    """The score entropy of seed 004 as its document writes it: of a softmax, and without the rate. To compare with.

    It is no bound, and the truth is not where it is least: docs/seed-004.md has what it costs.
    """

    name: ClassVar[str] = "seed-004"
    serves = TOKENS

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield unless the process is the seed's: uniform, with a model that gives the logarithms of scores."""
        yield from super().check(process)
        if process.space.data == "tokens" and (process.prior, process.predict) != ("uniform", "score"):
            message = f'loss "seed-004" is for process "uniform" with predict = "score", not "{process.name}" with '
            yield Misfit(f'{message}predict = "{process.predict}"', related=("process",), help=USE_SCORE_ENTROPY)

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield what is wrong with it."""
        message = (
            'loss "seed-004" takes a softmax for scores and leaves out the rate: it is least where all is on one id'
        )
        yield Misfit(f"{message}, falls below 0, and is no bound on -log p(x_0)", help='use loss "score-entropy"')

    def cost(self, process: ProcessFacts) -> Cost:
        """The softmax is kept, and passes once more with its gradient."""
        return Cost(kept=table_size(process.space), passing=3 * table_size(process.space))

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        from .seed_004 import seed_004

        return seed_004


def _not_closed(name: str, process: ProcessFacts) -> Iterable[Misfit]:
    """Yield why the closed form of an absorbing process does not hold."""
    if process.space.data == "tokens" and process.prior != "mask":
        message = f'loss "{name}" is for an absorbing process, but "{process.name}" does not mask tokens'
        yield Misfit(message, related=("process",), help=USE_SCORE_ENTROPY)
    elif process.space.data == "tokens" and process.predict != "posterior":
        message = f'loss "{name}" needs a model that predicts the posterior, not predict = "{process.predict}"'
        yield Misfit(message, related=("process",), help=USE_SCORE_ENTROPY)


def _reduced(loss: Loss, reduction: str) -> Loss:
    """Return a loss per token with its weights, or one per sample."""
    if reduction == "token":
        return loss
    from .reductions import PerSample

    return PerSample(loss)


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer what this package makes."""
    return [Huber, MSE, MaskedCE, MaskedCEActive, Poisson, ScoreEntropy, SeedLoss]


class OnFeatures(LossSpec):
    """A loss on what the process took away."""

    serves = FEATURES
    reduction: Literal["element-mean", "region-sum", "zero-padded"] = "element-mean"
    """The mean over wanted elements; the sum over features, mean over regions with any; or the mean over everything."""

    def cost(self, process: ProcessFacts) -> Cost:
        """Errors and their squares."""
        size = table_size(process.space)
        return Cost(kept=5 * size // 4, passing=2 * size)


class MSE(OnFeatures):
    """Masked mean squared error, over what the process took away.

    Where the head tells a law ("token-diffusion"), the error is that of its own noise, which is how it is trained.
    """

    name: ClassVar[str] = "mse"
    target: Literal["raw", "x0"] = "raw"
    """What is compared: what the process predicts (x0, eps or velocity), or the clean sample. The error of an x0 that
    was worked out from eps is that of eps divided by the signal-to-noise ratio, and so nearly all at large t."""
    min_snr: float | None = Field(None, gt=0)
    """Bound on the weight of low Gaussian noise, about 5 (Min-SNR); by default every time counts the same."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield why the options make no sense for the process."""
        yield from super().check(process)
        if self.min_snr is not None and process.prior != "gaussian":
            message = f'min_snr has no effect under process "{process.name}", which adds no Gaussian noise'
            yield Misfit(message, ("min_snr",), ("process",))

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss; `raw` becomes what the process predicts."""
        from .features import SquaredError

        return SquaredError(_compared(self.target, process), self.reduction, self.min_snr)


class Huber(OnFeatures):
    """Squared error that grows in a straight line beyond delta, so that a few large errors do not rule."""

    name: ClassVar[str] = "huber"
    delta: float = Field(1.0, gt=0, le=1e6)
    """Error up to which it is half the square, in the units of the samples."""
    target: Literal["raw", "x0"] = "raw"
    """What is compared: what the process predicts (x0, eps or velocity), or the clean sample."""

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss; `raw` becomes what the process predicts."""
        from .features import Huber

        return Huber(self.delta, _compared(self.target, process), self.reduction)


class Poisson(OnFeatures):
    """Minus the log likelihood of counts under Poisson laws, but for a constant: rate - x0 log rate.

    Samples must not be negative, so they must not be standardised.
    """

    name: ClassVar[str] = "poisson"
    link: Literal["none", "softplus", "log"] = "none"
    """How a rate comes from what the model says of x0. none: it is the rate; take a head that gives no negative number.
    softplus: log(1 + exp x). log: exp x. Under the last two, figures and samples are of x and not of the rate."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield unless the model speaks of x0."""
        yield from super().check(process)
        if process.space.data == "features" and process.predict != "x0":
            message = f'loss "poisson" takes what a model says of x0, not predict = "{process.predict}"'
            yield Misfit(message, related=("process",), help='set predict = "x0"')
        if isinstance(process.space, FeatureSpace) and process.space.standardised:
            message = (
                'loss "poisson" is for samples that are never negative, and standardised ones are below their mean'
            )
            yield Misfit(message, related=("task", "standardise"), help="set task.standardise = false")

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield what no part can see of the data before a run."""
        yield Misfit('loss "poisson" is for samples that are never negative: counts, or logarithms of 1 + a count')

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        from .features import PoissonNLL

        return PoissonNLL(self.link, self.reduction)


def _compared(target: str, process: ProcessFacts) -> str:
    return "x0" if target == "x0" else process.predict
