"""A one-file plugin: losses and a sampler as published elsewhere, kept for comparison. No torch at import.

    python -m experiments.run exp.toml -p docs/examples/seed_004.py

- loss and sampler "seed-004": the score entropy and the "Euler" sampler of reference model 004 as its document writes
  them. docs/results.md has what they cost; use "score-entropy" and "ancestral" or "euler" instead.
- loss "masked-ce-active": masked cross-entropy divided by the number of masked tokens, as in Davis/BD_Generation.

Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dither.registry import Misfit, Spec, TokenSpace, hookimpl
from dither.registry.kinds import (
    TOKENS,
    LossSpec,
    ModelFacts,
    ProcessFacts,
    SamplerSpec,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Loss, Process, Sampler, Session
    from dither.registry.contracts.records import (
        Clean,
        Measured,
        Noised,
        TokenPrediction,
    )

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SeedLoss(LossSpec):
    """Score entropy as in the document: of a softmax, without the rate. It is not a bound."""

    name = "seed-004"
    serves = TOKENS

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require the process of the document."""
        yield from super().check(process)
        yield from uniform_scores(self, process)

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield what is wrong with it."""
        message = 'loss "seed-004" has its minimum where all mass is on one id, and is no bound on -log p(x_0)'
        yield Misfit(message, help='use loss "score-entropy"')

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        return seed_004


def seed_004(pred: TokenPrediction, noised: Noised) -> Measured:
    """Return p - n + c with s = softmax(l), l = 0 at x = x_t, e = exp(sigma) - 1 and r = 1 - V / (e + V).

        p = mean_v s_v - s_x / V
        n = r p where x = x_0, else s_{x_0} / e + p
        c = (V-1)/V r (log r - 1) where x = x_0, else ((-log r - 1) / r - (V - 2)) / V

    c is right; s should be exp(l), and n should have l in place of s. As it is, p - n is linear in s, so that its
    minimum is where all of s is on one id, whatever the data. The rate is missing, too. r is computed in float64: in
    float32 it cancels to 0 for most V.
    """
    import torch

    from dither.registry.contracts.records import Measured, over

    if noised.prior is None:
        raise TypeError("loss seed-004 requires a token process")
    x, x0 = noised.state.x, noised.x0
    share = noised.prior.expand(x.shape[1], -1).gather(1, x.T).T  # 1 / V
    active = ~noised.fixed & (share > 0)
    s = torch.where(active[..., None], pred.log_score(), 0.0).softmax(-1)
    s_x, s_x0 = (s.gather(-1, ids[..., None])[..., 0] for ids in (x, x0))
    e = over(noised.noise.sigma, x).to(share.dtype).expm1()
    size = torch.where(active, share, 1.0).reciprocal()
    r = 1 - size / (e + size)
    p = (s * noised.prior.to(s.dtype)).sum(-1) - s_x * share
    n = torch.where(x == x0, r * p, s_x0 / torch.where(x == x0, 1.0, e) + p)
    stayed = (size - 1) / size * (torch.special.xlogy(r, r) - r)
    safe = torch.where(
        x == x0, 1.0, r
    )  # a replaced token had some noise, so that r > 0
    moved = ((-safe.log() - 1) / safe - (size - 2)) / size
    values: Tensor = torch.where(
        active, p - n + torch.where(x == x0, stayed, moved), 0.0
    ).to(s.dtype)
    return Measured(values, (~noised.fixed).to(values.dtype))


class MaskedCEActive(LossSpec):
    """Masked cross-entropy divided by the number of masked tokens of the sample. It is not a bound.

    With uniform logits it is log V (1 + 1/2 + .. + 1/N), not log V per token.
    """

    name = "masked-ce-active"
    serves = TOKENS
    weights: dict[str, Weight | list[Weight]] = {}
    """By name of the field: weight of its tokens (lambda), or one weight per clean id, in order. By default 1."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Require a process that masks tokens, a model of the posterior, and weights that fit."""
        yield from super().check(process)
        if not isinstance(process.space, TokenSpace):
            return
        if (process.prior, process.predict) != ("mask", "posterior"):
            message = f'loss "{self.name}" requires a process that masks tokens and predict = "posterior"'
            yield Misfit(
                message,
                related=("process",),
                help='use loss "score-entropy"',
                code="process-mismatch",
            )
        clean = {
            f.name: sum(i not in (f.mask, f.pad) for i in range(f.size))
            for f in process.space.fields
        }
        for name, weight in self.weights.items():
            if name not in clean:
                message = f'unknown field "{name}"; fields: {", ".join(clean)}'
                yield Misfit(
                    message, ("weights", name), ("task",), code="unknown-value"
                )
            elif isinstance(weight, list) and len(weight) != clean[name]:
                message = (
                    f'field "{name}" has {clean[name]} clean ids, not {len(weight)}'
                )
                yield Misfit(message, ("weights", name), ("task",))

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield that it is no likelihood."""
        message = 'loss "masked-ce-active" is no bound on -log p(x_0): its nats are not comparable with other losses'
        yield Misfit(message, help='use loss "masked-ce"')

    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss."""
        assert isinstance(process.space, TokenSpace)
        return partial(
            masked_ce_active,
            table=weight_table(process.space, self.weights) if self.weights else None,
        )


def masked_ce_active(
    pred: TokenPrediction, noised: Noised, *, table: Tensor | None = None
) -> Measured:
    """Return the mean over samples of weighted cross-entropy per masked token; `table` weighs positions and ids."""
    from dither.losses.reductions import PerSample
    from dither.losses.tokens import masked_ce
    from dither.registry.contracts.records import Measured

    measured = PerSample(masked_ce)(pred, noised)
    values = measured.values / noised.target_mask.sum(1, keepdim=True).clamp_min(1)
    if table is not None:
        values = (
            values
            * table.to(values)
            .expand(*noised.x0.shape, -1)
            .gather(-1, noised.x0[..., None])[..., 0]
        )
    return Measured(values, measured.weights)


def weight_table(
    space: TokenSpace, weights: Mapping[str, float | Sequence[float]]
) -> Tensor:
    """Return the weight of each position and id, `L V`."""
    import torch

    table = torch.ones(space.length, space.vocab)
    for field, rows in zip(
        space.fields,
        space.split(torch.arange(space.length)[None]).values(),
        strict=True,
    ):
        weight = weights.get(field.name, 1.0)
        clean = [i for i in range(field.size) if i not in (field.mask, field.pad)]
        for place, i in enumerate(clean):
            table[rows[0], i] = (
                weight[place] if isinstance(weight, Sequence) else float(weight)
            )
    return table


class SeedSampler(SamplerSpec):
    """The "Euler" sampler as the document writes it: x ~ softmax(logits) at every step.

    Samples do not have the distribution of the data however good the model is.
    """

    name = "seed-004"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Times from 1 to 0, both ends included; the model is called once at each."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require the process of the document."""
        yield from super().check(process, model)
        yield from uniform_scores(self, process)

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield what is wrong with it."""
        message = (
            'sampler "seed-004" redraws every token at every step: '
            "samples have another distribution than the model"
        )
        yield Misfit(message, help='use sampler "ancestral"')

    def build(self) -> Sampler:
        """Return the sampler."""
        return partial(sample, options=self)


def sample(
    process: Process, model: Session, like: Clean, *, options: SeedSampler
) -> Iterator[Tensor]:
    """Resample every position given the others as they were, all at once; yield every state, the sample last."""
    import torch

    from dither.processes.tokens.categorical import draw
    from dither.registry.contracts.records import State

    state = process.prior(like)
    for t in torch.linspace(1, 0, options.steps, device=like.valid.device):
        drawn = draw(model(state, t.expand(len(like.valid))).log_score().softmax(-1))
        state = State.of(torch.where(like.fixed, like.x0, drawn))
        yield state.x


def uniform_scores(spec: Spec, process: ProcessFacts) -> Iterable[Misfit]:
    """Require a uniform process with predicted scores."""
    if process.space.data == "tokens" and (process.prior, process.predict) != (
        "uniform",
        "score",
    ):
        message = f'{spec.kind} "{spec.name}" requires process "uniform" with predict = "score"'
        yield Misfit(
            message,
            related=("process",),
            help='use "score-entropy" or "ancestral"',
            code="process-mismatch",
        )


@hookimpl
def register_components() -> list[type[Spec]]:
    """Register two losses and a sampler."""
    return [MaskedCEActive, SeedLoss, SeedSampler]
