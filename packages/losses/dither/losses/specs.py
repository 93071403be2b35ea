"""Specs of the losses. Read without torch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Spec, hookimpl
from dither.registry.kinds import FEATURES, TOKENS, HeadSpec, LossSpec, ProcessFacts
from dither.registry.spec.base import components_in

from .hybrid import Hybrid
from .options import Link, Reduction

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Loss

__all__ = [
    "BCE",
    "MSE",
    "FlowKL",
    "Huber",
    "MaskedCE",
    "Poisson",
    "ScoreEntropy",
    "check_experiment",
    "register_components",
]


class _TokenLoss(LossSpec):
    serves = TOKENS
    bound = True
    reduction: Literal["token", "sample"] = "token"
    """Training loss in nats per token, or per sample (graph). Evaluation gives the bound per token
    either way."""
    training: Literal["bound", "plain"] = "bound"
    """What training minimises: this bound, or the unweighted cross-entropy of the tokens that noise
    made uncertain, whose gradient has a lower variance and another weight of each time. Evaluation
    gives the bound either way."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require a training loss that trains the whole prediction."""
        yield from super().check(process)
        if self.training == "plain" and process.predict == "score":
            message = (
                'training = "plain" leaves the scale of predicted scores untrained'
            )
            yield Misfit(
                message,
                ("training",),
                ("process",),
                "set another predict",
                "process-mismatch",
            )

    def build_training(self, process: ProcessFacts) -> Loss | None:
        """Return the unweighted cross-entropy if that is minimised."""
        from .chunked import ChunkedCrossEntropy

        if self.training == "bound":
            return None
        return self._reduced(ChunkedCrossEntropy())

    def _reduced(self, loss: Loss) -> Loss:
        from .reductions import PerSample

        return loss if self.reduction == "token" else PerSample(loss)


class MaskedCE(_TokenLoss):
    """Weighted cross-entropy on masked tokens: the NELBO of an absorbing process in closed form (MDLM).

    In nats: the mean is a bound per token, over real tokens that are not known, masked or not.
    """

    name = "masked-ce"

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require a process that masks tokens, and predicts them."""
        yield from super().check(process)
        fix = (
            'use loss "score-entropy", the bound of every token process and prediction'
        )
        if process.space.data != "tokens":
            return
        if process.prior != "mask":
            message = f'loss "{self.name}" requires a process that masks tokens, not "{process.name}"'
            yield Misfit(
                message, related=("process",), help=fix, code="process-mismatch"
            )
        elif process.predict == "score":
            # Cross-entropy normalises scores: it is that of "plug-in", and constant in the scale,
            # which "euler" reads.
            message = (
                f'loss "{self.name}" leaves the scale of predicted scores untrained'
            )
            fix = 'set predict = "plug-in", whose loss is the same; or use loss "score-entropy"'
            yield Misfit(
                message, related=("process",), help=fix, code="process-mismatch"
            )

    def build(self, process: ProcessFacts) -> Loss:
        from .chunked import ChunkedMaskedCE

        return self._reduced(ChunkedMaskedCE())


class ScoreEntropy(_TokenLoss):
    """Score entropy (SEDD): the NELBO of every token process and every prediction.

    It is never negative, and 0 at the true score. In nats: the mean is a bound per token, over real
    tokens that are not known.
    """

    name = "score-entropy"

    def build(self, process: ProcessFacts) -> Loss:
        from .chunked import ChunkedScoreEntropy

        return self._reduced(ChunkedScoreEntropy())


class FlowKL(_TokenLoss):
    """Generalised KL divergence of discrete flow matching: the NELBO of sampler "discrete-flow" without a corrector.

    Under an absorbing process it is "masked-ce". In nats: the mean is a bound per token, over real
    tokens that are not known.
    """

    name = "flow-kl"

    def traits(self) -> frozenset[str]:
        """Return that it is the bound of jumps straight to x_0."""
        return frozenset({"own-jumps"})

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require one distribution of replaced tokens at all times."""
        yield from super().check(process)
        if process.prior_varies:
            message = f'loss "{self.name}" requires a constant prior, not process "{process.name}"'
            yield Misfit(
                message,
                related=("process",),
                help='use loss "score-entropy"',
                code="process-mismatch",
            )

    def build(self, process: ProcessFacts) -> Loss:
        from .tokens import flow_kl

        return self._reduced(flow_kl)


class _FeatureLoss(LossSpec):
    serves = FEATURES
    reduction: Reduction = "element-mean"
    """The mean over target elements (element-mean); the sum over features, averaged over regions
    with any target (region-sum); or the mean over all elements (zero-padded)."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require a process without predicted variances, which only "hybrid" trains."""
        yield from super().check(process)
        if isinstance(process.space, FeatureSpace) and process.space.outputs > 1:
            message = f'loss "{self.name}" does not train the variances of process'
            yield Misfit(
                f'{message} "{process.name}"',
                related=("process",),
                help='use loss "hybrid", or process "gaussian"',
                code="process-mismatch",
            )


class _ErrorLoss(_FeatureLoss):
    target: Literal["raw", "x0"] = "raw"
    """What is compared: the prediction of the process (x0, eps or a velocity), or the clean sample.
    The error of an x0 computed from eps is that of eps divided by the signal-to-noise ratio, and so
    dominated by large t."""

    def compared(self, process: ProcessFacts) -> str:
        """Return the prediction that is compared; "raw" is that of the process."""
        return "x0" if self.target == "x0" else process.predict


class MSE(_ErrorLoss):
    """Mean squared error over the elements that the process masked or noised.

    If the head predicts a distribution ("token-diffusion"), the error is that of its own noise,
    which trains it.
    """

    name = "mse"
    denoises = True
    min_snr: float | None = Field(None, gt=0)
    """Bound on the weight of low Gaussian noise, about 5 (Min-SNR); by default all times have the
    same weight."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Reject options without effect."""
        yield from super().check(process)
        if self.min_snr is not None and process.prior != "gaussian":
            message = f'min_snr has no effect under process "{process.name}", which adds no Gaussian noise'
            yield Misfit(message, ("min_snr",), ("process",), code="no-effect")

    def build(self, process: ProcessFacts) -> Loss:
        from .features import squared_error

        return partial(
            squared_error,
            target=self.compared(process),
            reduction=self.reduction,
            min_snr=self.min_snr,
        )


class Huber(_ErrorLoss):
    """Squared error that grows linearly beyond delta, so that a few large errors do not dominate."""

    name = "huber"
    delta: float = Field(1.0, gt=0, le=1e6)
    """Error up to which the loss is half the square, in the units of the samples."""

    def build(self, process: ProcessFacts) -> Loss:
        from .features import huber

        return partial(
            huber,
            delta=self.delta,
            target=self.compared(process),
            reduction=self.reduction,
        )


class _Likelihood(_FeatureLoss):
    """The likelihood of clean samples of a restricted range, given the predicted x0."""

    values: ClassVar[str]

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require a model that predicts x0, and samples that are not standardised."""
        yield from super().check(process)
        if process.space.data == "features" and process.predict != "x0":
            message = f'loss "{self.name}" requires predict = "x0", not predict = "{process.predict}"'
            yield Misfit(
                message,
                related=("process",),
                help='set predict = "x0"',
                code="process-mismatch",
            )
        if isinstance(process.space, FeatureSpace) and process.space.standardised:
            message = f'loss "{self.name}" requires samples that are {self.values}; standardised ones are not'
            yield Misfit(
                message,
                related=("task", "standardise"),
                help="set task.standardise = false",
            )


class BCE(_Likelihood):
    """Binary cross-entropy: negative log-likelihood of 0 and 1 under predicted probabilities, in nats.

    Use head "sigmoid", whose output is a probability; columns may also hold shares from 0 to 1.
    """

    name = "bce"
    values = "from 0 to 1"

    def build(self, process: ProcessFacts) -> Loss:
        from .features import binary_cross_entropy

        return partial(binary_cross_entropy, reduction=self.reduction)

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Warn about samples, which cannot be checked before the data are read."""
        yield Misfit('loss "bce" requires samples from 0 to 1')


class Poisson(_Likelihood):
    """Negative log-likelihood of counts under Poisson distributions, up to a constant: rate - x0 log rate.

    Samples must not be negative, so they must not be standardised.
    """

    name = "poisson"
    values = "never negative"
    link: Link = "none"
    """The rate as a function of the predicted x0. none: it is the rate; use a head without negative
    output. softplus: log(1 + exp x). log: exp x. Under the last two, metrics and samples are of x
    and not of the rate."""

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Warn about samples, which cannot be checked before the data are read."""
        yield Misfit(
            'loss "poisson" requires samples that are never negative: counts, or logarithms of '
            "1 + a count"
        )

    def build(self, process: ProcessFacts) -> Loss:
        from .features import poisson_nll

        return partial(poisson_nll, link=self.link, reduction=self.reduction)


@hookimpl
def check_experiment(experiment: Any) -> Iterable[Misfit]:
    """Reject cross-entropy of a head whose output is not a probability."""
    if not isinstance(experiment.loss, BCE):
        return
    for path, head in components_in(experiment.model, ("model",)):
        if isinstance(head, HeadSpec) and "probabilities" not in head.traits():
            message = f'loss "bce" requires probabilities, which head "{head.name}" does not give'
            yield Misfit(message, ("loss",), path, 'use head "sigmoid"')


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register the losses."""
    return [BCE, FlowKL, Huber, Hybrid, MSE, MaskedCE, Poisson, ScoreEntropy]
