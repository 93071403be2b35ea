"""Samplers and posteriors of tokens equal those of the schedulers and of the LLaDA2 pipeline of diffusers (0.42).

Its BlockRefinementScheduler unmasks what is above a threshold, or the likeliest; its DiscreteDDIMScheduler takes steps
of uniform noise with alpha = 1 - t; its EntropyBoundScheduler noises undecided tokens again.
Where they differ from ours: theirs unmasks above the threshold and not at it; and
with a number of steps that does not divide the block, the first steps unmask one token more, where ours rounds.
"""

from types import SimpleNamespace

import pytest
import torch
from diffusers.pipelines.llada2.pipeline_llada2 import LLaDA2Pipeline
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler
from diffusers.schedulers.scheduling_discrete_ddim import DiscreteDDIMScheduler
from diffusers.schedulers.scheduling_entropy_bound import EntropyBoundScheduler
from scipy.stats import chi2_contingency
from torch import Tensor, nn

from dither.processes.samplers.blocks import Blocks
from dither.processes.samplers.ordered import Ordered
from dither.processes.samplers.predictor_corrector import PredictorCorrector
from dither.processes.schedules.alpha import LogLinear
from dither.processes.tokens import unmasking
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import Field, TokenSpace

ROWS, LENGTH, IDS = 5, 12, 6
LINEAR = LogLinear(eps=1e-12).build()
"""alpha = 1 - t."""


class Model(nn.Module):
    """Logits from the ids before and in the window, and as little as possible else: a model of both libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Parameter(torch.randn(IDS + 1, 16, dtype=torch.float64))
        self.out = nn.Parameter(
            2 * torch.randn(LENGTH, 16, IDS + 1, dtype=torch.float64)
        )
        self.device, self.dtype, self.calls = torch.device("cpu"), torch.float64, 0

    @torch.no_grad()
    def forward(self, x: Tensor, **_) -> SimpleNamespace:
        self.calls += 1
        h = self.into[x]
        mixed = (h + h.cumsum(1).roll(1, 1) / 3 + h.mean(1, keepdim=True)).tanh()
        logits = torch.einsum("bld,ldv->blv", mixed, self.out[: x.shape[1]])
        logits[..., IDS] = torch.finfo(logits.dtype).min  # MASK
        return SimpleNamespace(logits=logits)


class Session:
    """Our side of the model: finished blocks are its context."""

    def __init__(self, process, model: Model) -> None:
        self.process, self.model, self.past = (
            process,
            model,
            torch.zeros(ROWS, 0).long(),
        )

    def append(self, x: Tensor) -> None:
        self.past = torch.cat([self.past, x], 1)

    def __call__(self, state: State, t: Tensor, at: Tensor | None = None):
        logits = self.model(torch.cat([self.past, state.x], 1)).logits[
            :, self.past.shape[1] :
        ]
        pred = self.process.read(logits, state, self.process.schedule(t.double()))
        return pred if at is None else pred.at(at)


def masked(process_of):
    return process_of(
        "absorbing", TokenSpace((Field("text", LENGTH, IDS),)), schedule=LINEAR
    )


def greedy(steps: int, threshold: float | None) -> Ordered:
    return Ordered(
        temperature=0.0,
        **({"steps": steps} if threshold is None else {"threshold": threshold}),
    )


@pytest.mark.parametrize(
    ("steps", "threshold"),
    [(LENGTH, 0.3), (LENGTH, 0.6), (LENGTH, 0.95), (12, None), (4, None)],
)
def test_ordered_is_block_refinement(
    process_of, steps: int, threshold: float | None
) -> None:
    """With a threshold at least one token per step; without, as many per step as were asked for. Every state."""
    process, model = masked(process_of), Model()
    scheduler = BlockRefinementScheduler()
    scheduler.set_timesteps(steps, block_length=LENGTH)
    states = list(
        greedy(steps, threshold).build()(
            process, Session(process, model), Clean.of(torch.zeros(ROWS, LENGTH).long())
        )
    )
    x = torch.full((ROWS, LENGTH), IDS)
    for step, ours in enumerate(states):
        options = {
            "mask_token_id": IDS,
            "temperature": 0.0,
            "threshold": 2.0 if threshold is None else threshold,
        }
        x = scheduler.step(model(x).logits, step, x, **options).prev_sample
        assert torch.equal(x, ours)
    assert not (x == IDS).any()
    assert (
        len(states) == steps
        if threshold is None
        else len(states) < LENGTH + (threshold > 0.9)
    )


@pytest.mark.parametrize("size", [3, 4, 6])
@pytest.mark.parametrize("prompt", [0, 2, 4])
@pytest.mark.parametrize("threshold", [0.4, 0.8])
def test_blocks_are_the_pipeline_of_llada2(
    process_of, size: int, prompt: int, threshold: float
) -> None:
    """Whole generations after a prompt that may end inside a block."""
    process, model, theirs = masked(process_of), Model(), Model()
    theirs.load_state_dict(model.state_dict())
    ids = torch.randint(IDS, (ROWS, LENGTH))
    pipeline = LLaDA2Pipeline(theirs, BlockRefinementScheduler(), tokenizer=None)
    pipeline.set_progress_bar_config(disable=True)
    options = {
        "temperature": 0.0,
        "threshold": threshold,
        "editing_threshold": None,
        "output_type": "seq",
    }
    expected = pipeline(
        input_ids=ids[:, :prompt], gen_length=LENGTH - prompt, block_length=size, num_inference_steps=size,
        mask_token_id=IDS, eos_early_stop=False, **options,
    ).sequences  # fmt: skip
    known = torch.arange(LENGTH).expand(ROWS, -1) < prompt
    sampler = Blocks(size=size, inner=greedy(size, threshold)).build()
    *_, x = sampler(process, Session(process, model), Clean.of(ids, known=known))
    assert torch.equal(x[:, prompt:], expected)
    assert (
        model.calls <= theirs.calls <= model.calls + LENGTH // size - prompt // size
    )  # it calls on finished blocks


@pytest.mark.parametrize("bound", [0.5, 2.0, 6.0])
def test_entropy_bound_under_uniform_noise(
    process_of, recorder, monkeypatch, bound: float
) -> None:
    """Every call decides the positions of diffusers' scheduler, or more if the schedule requires more."""
    process, model = (
        process_of(
            "uniform", TokenSpace((Field("text", LENGTH, IDS),)), schedule=LINEAR
        ),
        Model(),
    )

    def predict(state: State, t: Tensor, at: Tensor) -> CategoricalPrediction:
        logits = model(state.x).logits[..., :IDS]
        return process.read(logits, state, process.schedule(t.double())).at(at)

    session = recorder(process, session=predict)
    sampler = Ordered(by="entropy", entropy_bound=bound, steps=LENGTH // 2)
    # Both take the likeliest id: temperature 0 would change what theirs decides.
    monkeypatch.setattr(unmasking, "draw_log", lambda log_p: log_p.argmax(-1))
    monkeypatch.setattr(torch, "multinomial", lambda p, **_: p.argmax(-1, keepdim=True))
    *_, last = sampler.build()(
        process, session, Clean.of(torch.zeros(ROWS, LENGTH).long())
    )

    scheduler = EntropyBoundScheduler(entropy_bound=bound, t_max=1.0, t_min=1.0)
    times = [*session.times, torch.zeros(ROWS)]
    states = [*session.states, last]
    active = torch.ones(ROWS, dtype=torch.bool)
    same = 0
    for call, x in enumerate(session.states):
        theirs = scheduler.step(model(x).logits[..., :IDS], call, x)
        accepted = theirs.accepted_index
        count = LENGTH - (LENGTH * times[call + 1]).round().long()
        required = 2 * (call + 1)
        assert torch.equal(count[active], accepted.sum(1).clamp_min(required)[active])
        changed = states[call + 1] != theirs.sampled_tokens
        assert not (changed & accepted)[active].any()
        same += int((accepted.sum(1) >= required)[active].sum())
        active = active & (count < LENGTH)
    assert same >= ROWS
    assert not active.any()


@pytest.mark.parametrize("step", range(5))
def test_discrete_ddim_is_the_ancestral_step(
    process_of, transition, likely, step: int
) -> None:
    """Draws of both have the distribution sum over x_0 of p(x_0 | x_t) q(x_s | x_t, x_0), from its definition."""
    process = process_of(
        "uniform", TokenSpace((Field("text", 1, IDS),)), schedule=LINEAR
    )
    scheduler, n = DiscreteDDIMScheduler(num_inference_steps=5), 40_000
    t, s = (torch.full((n,), 1 - (step + k) / 5, dtype=torch.float64) for k in (0, 1))
    x, logits = (
        torch.full((n, 1), 2),
        torch.randn(IDS, dtype=torch.float64).expand(n, 1, IDS),
    )
    now, then = process.schedule(t), process.schedule(s)
    prior, sigmas = (
        process.prior_probs()[0],
        [float(noise.sigma[0]) for noise in (now, then)],
    )
    until_s, after = (
        transition(prior, sigmas[1]),
        transition(prior, sigmas[0] - sigmas[1]),
    )
    given = until_s * after[:, 2]  # row x_0: proportional to q(x_s | x_t = 2, x_0)
    law = logits[0, 0].softmax(-1) @ (given / given.sum(1, keepdim=True))
    state = State.of(x)
    ours = process.step(
        state, process.read(logits, state, now), now, then, Clean.of(x)
    ).x
    theirs = scheduler.step(logits, step, x, temperature=1.0).prev_sample
    assert min(likely(ours, law), likely(theirs, law)) > 1e-3


@pytest.mark.parametrize("step", range(4))
def test_leave_one_out_denoiser_and_gibbs_conditional(
    process_of, monkeypatch, step: int
) -> None:
    """Theirs is our log p(x_0 | the other positions), and the conditional of its corrector our normalised score."""
    process = process_of(
        "uniform", TokenSpace((Field("text", LENGTH, IDS),)), schedule=LINEAR
    )
    scheduler, seen = DiscreteDDIMScheduler(num_inference_steps=5), []
    x, logits = (
        torch.randint(IDS, (ROWS, LENGTH)),
        3 * torch.randn(ROWS, LENGTH, IDS, dtype=torch.float64),
    )
    alpha, state = (step + 1) / 5, State.of(x)
    pred = process.read(
        logits,
        state,
        process.schedule(torch.full((ROWS,), 1 - alpha, dtype=torch.float64)),
    )
    loo = scheduler._to_loo_logits(logits, x, alpha).log_softmax(-1)
    torch.testing.assert_close(pred.log_context(), loo, rtol=0, atol=1e-9)
    choose = scheduler._select_positions
    monkeypatch.setattr(
        scheduler,
        "_select_positions",
        lambda x, log, g: seen.append(log) or choose(x, log, g),
    )
    scheduler.step_correct(logits, step, x)
    torch.testing.assert_close(
        pred.log_score().log_softmax(-1), seen[0], rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("corrector", ["gibbs", "gibbs-margin"])
def test_gibbs_corrections_are_those_of_discrete_ddim(process_of, corrector) -> None:
    """From one state the corrected states have the frequencies of diffusers' leave-one-out corrector."""
    n, alpha, length = 20_000, 0.6, 2
    space = TokenSpace((Field("text", length, IDS),))
    process = process_of("uniform", space, schedule=LINEAR)
    logits = torch.randn(1, length, IDS, dtype=torch.float64).expand(n, -1, -1)
    x = torch.tensor([[1, 4]]).expand(n, -1)
    theirs = DiscreteDDIMScheduler(
        num_inference_steps=5,
        corrector_selection={"gibbs": "random"}.get(corrector, "lowest_log_margin"),
    )
    # After the third of five steps alpha is 3/5.
    expected = theirs.step_correct(logits, 2, x).prev_sample

    def session(state: State, t: Tensor, at: Tensor) -> CategoricalPrediction:
        return process.read(logits, state, process.schedule(t)).at(at)

    sampler = PredictorCorrector(corrector=corrector)
    t = torch.full((n,), 1 - alpha, dtype=torch.float64)
    ours = sampler.resample(process, session, State.of(x), t, Clean.of(x)).x
    counts = [
        torch.bincount(sample[:, 0] * IDS + sample[:, 1], minlength=IDS**2).double()
        for sample in (ours, expected)
    ]
    table = torch.stack(counts)
    table = table[:, table.sum(0) > 10]
    assert chi2_contingency(table.numpy()).pvalue > 1e-3
