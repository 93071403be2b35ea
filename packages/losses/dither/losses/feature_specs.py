"""The menu of losses on features. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit
from dither.registry.costs import Cost
from dither.registry.kinds import FEATURES, LossSpec, ProcessFacts

from .costs import table_size

if TYPE_CHECKING:
    from dither.registry.parts import Loss

__all__ = ["MSE", "Huber", "Poisson"]


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
