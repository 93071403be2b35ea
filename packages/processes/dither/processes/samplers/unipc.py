"""UniPC (Zhao et al. 2023, B_2(h) of x_0 predictions): a predictor in log-SNR time, corrected without more calls.

The prediction at the end of a step first corrects that step, then begins the next one. As in
DPM-Solver++ the first steps have lower orders, and the last, to clean data, takes the predicted x_0.
Letters: B batch, L length, M features, K predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .dpm_solver import log_snr, solve
from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean, Noise

__all__ = ["UniPC"]


class UniPC(GaussianSampler):
    """UniPC: a predictor and a corrector in log-SNR time, for ten calls and fewer. It adds no noise."""

    name = "unipc"
    steps: int = Field(12, ge=1, le=1_000_000)
    """K, the calls of the model; the last one predicts the clean sample."""
    order: Literal[1, 2, 3] = 2
    """Predictions in a step of the predictor; the corrector has one more."""

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        from ..features.signal import diffusion_norm

        state = process.prior(like)
        times = self._distinct_times(process, like)
        # Noise and predicted x_0 at the latest times
        points: list[tuple[Noise, Tensor]] = []
        start = state.x
        for number, (t, s) in enumerate(pairwise(times)):
            now = process.schedule(t)
            then = process.schedule(s)
            x0 = model(state, t).x0
            if number > 0:
                # The step that led here once more, with the prediction at its end
                before = points[-1][0]
                y = start * diffusion_norm(process, before, start)
                x = _step(y, points, now, x0) / diffusion_norm(process, now, y)
                state = process.replace(state, x, like)
            points = [*points, (now, x0)][-self.order :]
            start = state.x
            y = start * diffusion_norm(process, now, start)
            # The steps before the last one have lower orders, too.
            x = _step(y, points[number - len(times) :], then)
            x = x / diffusion_norm(process, then, y)
            state = process.replace(state, x, like)
            yield state.x
        yield process.finish(state, model(state, times[-1]), like)

    def _distinct_times(
        self, process: GaussianProcess, like: Clean
    ) -> Float[Tensor, "K B"]:
        """Return the times of the calls, each with less noise than the one before it.

        Even log-SNR has times next to 1 that float32 does not distinguish, and a step without a
        change of noise has no difference quotient.
        """
        import torch

        times = self.times(process, like)
        sigma = process.schedule(times[:, 0]).sigma
        is_first = torch.ones_like(sigma[:1], dtype=torch.bool)
        return times[torch.cat([is_first, sigma.diff() < 0])]


def _step(
    x: Float[Tensor, "B L M"],
    points: Sequence[tuple[Noise, Float[Tensor, "B L M"]]],
    then: Noise,
    x0_then: Float[Tensor, "B L M"] | None = None,
) -> Float[Tensor, "B L M"]:
    """Return x at the noise `then`, in the coordinates of diffusion, from that of the latest point.

    With the prediction there, this is the corrector.
    """
    import torch

    now, x0 = points[-1]
    start = log_snr(now)
    h = log_snr(then) - start
    # Earlier predictions, and perhaps that at the end, as difference quotients in units of h
    ratios = []
    quotients = []
    for noise, earlier in reversed(points[:-1]):
        ratio = (log_snr(noise) - start) / h
        ratios.append(ratio)
        quotients.append((earlier - x0) / ratio.to(x0.dtype)[:, None, None])
    if x0_then is not None:
        ratios.append(torch.ones_like(h))
        quotients.append(x0_then - x0)
    line = x0
    for weight, quotient in zip(_weights(ratios, h), quotients, strict=True):
        line = line + weight.to(x0.dtype)[:, None, None] * quotient
    return solve(x, line, now, then, h)


def _weights(
    ratios: Sequence[Float64[Tensor, " B"]], h: Float64[Tensor, " B"]
) -> Sequence[Float64[Tensor, " B"]]:
    """Return the weights of K quotients: sum of weight ratio^i = phi_i+2(-h) i! / B(h), i < K (eq. 5)."""
    import torch

    # A single quotient has the weight 1 / 2 for every h, as in the code of the paper.
    if len(ratios) < 2:
        return [torch.full_like(h, 0.5) for _ in ratios]
    growth = (-h).expm1()
    phi = growth / -h - 1
    factorial = 1
    sums = []
    for power in range(len(ratios)):
        sums.append(phi * factorial / growth)
        factorial *= power + 2
        phi = phi / -h - 1 / factorial
    rows = torch.stack(list(ratios), -1)
    powers = torch.stack([rows**power for power in range(len(ratios))], -2)
    weights: Tensor = torch.linalg.solve(powers, torch.stack(sums, -1))
    return weights.unbind(-1)
