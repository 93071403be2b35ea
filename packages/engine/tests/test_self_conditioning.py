"""Self-conditioning in training and sampling: which prediction the model is given, call by call."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.hub import export_program
from dither.engine.sampling.session import Session, draw
from dither.engine.training import diffusion
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.randomness import Stream, seed_generators
from dither.engine.training.step_cost import step_flops
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
CPU = torch.device("cpu")
SMALL = [
    "model.width=16",
    "model.depth=1",
    "model.block.heads=2",
    "model.block.dropout=0",
    "train.batch_size=8",
    "train.steps=4",
]
TEXT = ["task.length=16", *SMALL]
ON = ["model.self_conditioning=true"]
BLOCKS = ["model.block_size=4", 'sampler={use="blocks",size=4,inner="ancestral"}']
FILES = {
    "language_model/attention": TEXT,
    "bubble_diagram/quick": SMALL,
    "get_region/gaussian": SMALL,
}


def load(*changes, file="language_model/attention"):
    return load_experiment(EXPERIMENTS / f"{file}.toml", [*TEXT, *changes]).experiment


def system_of(*changes, file="language_model/attention"):
    system = Diffusion.build(load(*changes, file=file))
    torch.manual_seed(1)
    for parameter in system.model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return system


def recorded(system):
    """Record the arguments and outputs of every call of the whole model."""
    calls = []
    system.model.register_forward_hook(
        lambda module, arguments, out: calls.append((arguments[0], out))
    )
    return calls


def prediction(system, state, out, t):
    return system.process.read(out, state, system.process.schedule(t))


@pytest.mark.parametrize("blocks", [[], BLOCKS], ids=["whole", "blocks"])
@pytest.mark.parametrize("fused", [False, True])
def test_training_shows_half_of_the_samples_their_own_prediction(
    blocks, fused, monkeypatch
):
    if fused:
        monkeypatch.setattr(diffusion, "FUSED_FROM", 2)
    plain = system_of(*blocks)
    system = system_of(*ON, *blocks)
    clean = system.task.batch("train", range(8))
    batches = []
    for one in (plain, system):
        seed_generators(CPU, Stream.STEP, 0)
        batches.append(one.train().prepare(clean))
    # All other draws are those of a model without the option.
    (_, t, noised), (_, t_plain, noised_plain) = batches[1], batches[0]
    assert torch.equal(t, t_plain)
    assert torch.equal(noised.state.x, noised_plain.state.x)
    shown = noised.self_conditioned
    assert noised_plain.self_conditioned is None
    assert 0 < shown.sum() < 8

    states = []
    outputs = []
    system.model.register_forward_hook(lambda _, __, out: outputs.append(out))
    system.model.embedding.register_forward_pre_hook(
        lambda _, arguments: states.append(arguments[0])
    )
    system(clean, t, noised)
    first, *_, second = [s for s in states if torch.equal(s.x, noised.state.x)]
    assert first.previous is None
    assert first.requested is None
    expected = prediction(system, noised.state, outputs[0], t).log_clean().exp()
    assert not outputs[0].requires_grad
    torch.testing.assert_close(second.previous[shown], expected[shown])
    assert not second.previous[~shown].any()
    # Evaluation has no first pass.
    assert system.eval().prepare(clean)[2].self_conditioned is None


@pytest.mark.parametrize(
    "file",
    [
        "language_model/attention",
        pytest.param("bubble_diagram/quick", marks=pytest.mark.slow),
        pytest.param("get_region/gaussian", marks=pytest.mark.slow),
    ],
)
def test_a_step_does_not_depend_on_accumulation_and_resumes(file):
    losses = []
    for accumulate in ("1", "2"):
        experiment = load_experiment(
            EXPERIMENTS / f"{file}.toml",
            [*FILES[file], *ON, f"train.accumulate={accumulate}"],
        ).experiment
        trainer = Trainer(Diffusion.build(experiment).train(), experiment.train, 0)
        losses.append([trainer.advance()["loss"].item() for _ in range(2)])
        saved = {k: v.clone() for k, v in trainer.system.model.state_dict().items()}
        tensors, plain = trainer.state()
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        rest = [trainer.advance()["loss"].item() for _ in range(2)]
        again = Trainer(Diffusion.build(experiment).train(), experiment.train, 0)
        again.system.model.load_state_dict(saved)
        again.load_state(tensors, plain)
        assert [again.advance()["loss"].item() for _ in range(2)] == rest
        assert again.system.model.previous.tables[0].weight.any()
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        ("language_model/attention", 'sampler={use="ancestral",steps=5}'),
        ("language_model/attention", 'sampler={use="ordered",steps=5}'),
        ("get_region/gaussian", 'sampler={use="ddim",steps=5}'),
    ],
    ids=str,
)
def test_each_call_is_given_the_whole_prediction_of_the_last(changes):
    file, sampler = changes
    experiment = load_experiment(
        EXPERIMENTS / f"{file}.toml", [*FILES[file], *ON, sampler]
    ).experiment
    system = Diffusion.build(experiment).eval()
    for parameter in system.model.parameters():
        nn.init.normal_(parameter, std=0.2)
    kept = []
    read = system.process.read

    def spy(raw, state, noise):
        result = read(raw, state, noise)
        if len(state.x):
            kept.append(system.expected_x0(result))
        return result

    system.process.read = spy
    calls = recorded(system)
    draw(system, system.like(1, 0), 0)
    assert len(calls) == len(kept) > 3
    assert calls[0][0].previous is None
    for (state, _), before in zip(calls[1:], kept, strict=False):
        assert torch.equal(state.previous, before)
        assert before.shape[:2] == state.x.shape[:2]


def test_samples_without_requested_positions_keep_their_prediction():
    system = system_of(*ON).eval()
    like = system.like(3, 0)
    session = Session(system, like)
    state = system.process.prior(like)
    at = torch.zeros_like(state.x, dtype=torch.bool)
    at[0, 3] = True
    t = torch.ones(3)
    session(state, t, at)
    assert session.previous[0].sum().item() == pytest.approx(16, rel=1e-5)
    assert not session.previous[1:].any()
    session(state, t, at & False)
    before = session.previous
    session(state, t)
    assert session.previous[1:].any()
    assert not torch.equal(session.previous[0], before[0])


def test_blocks_start_without_a_prediction():
    steps = 'inner={use="ancestral",steps=3}'
    system = system_of(
        *ON, "model.block_size=4", f'sampler={{use="blocks",size=4,{steps}}}'
    )
    starts = []
    system.model.embedding.register_forward_pre_hook(
        lambda _, arguments: starts.append(arguments[0].previous is None)
    )
    draw(system, system.like(2, 0), 0)
    # The first call of each of four blocks, and three blocks that are appended to the cache
    assert sum(starts) == 4 + 3
    assert len(starts) > sum(starts)


def test_guidance_gives_both_calls_the_guided_prediction():
    file = EXPERIMENTS / "get_region" / "gaussian.toml"
    experiment = load_experiment(file, [*FILES["get_region/gaussian"], *ON]).experiment
    system = Diffusion.build(experiment).eval()
    session = Session(system, like := system.like(2, 0))
    session.branches *= 2
    system.guidance = type("Guidance", (), {"start": 0, "stop": 1, "rescale": 0})()
    session.scale = 2.0
    calls = recorded(system)
    state = system.process.prior(like)
    first = session(state, torch.ones(2))
    session(state, torch.full((2,), 0.5))
    assert len(calls) == 4
    for given, _ in calls[2:]:
        assert torch.equal(given.previous, first.x0)


@pytest.mark.parametrize(
    ("file", "changes", "path"),
    [
        (
            "language_model/markov_uniform",
            ["sampler=particle-gibbs"],
            ("sampler",),
        ),
        (
            "get_region/gaussian",
            ['sampler={use="ode",solver="dopri5"}'],
            ("sampler", "solver"),
        ),
    ],
)
def test_samplers_whose_steps_depend_on_the_state_alone_are_refused(
    file, changes, path
):
    file = EXPERIMENTS / f"{file}.toml"
    with pytest.raises(Refused) as refused:
        load_experiment(file, [*ON, *changes])
    assert [problem.path for problem in refused.value.problems] == [path]
    assert refused.value.problems[0].code == "misfit"


def test_a_program_without_the_input_is_refused():
    with pytest.raises(Refused) as refused:
        export_program(system_of(*ON))
    assert refused.value.problems[0].path == ("model", "self_conditioning")


def test_flops_of_a_step_include_the_first_pass():
    """Learned positions are a slice of a parameter, which torch's tracker of modules cannot follow."""
    flops = {}
    for on in (False, True):
        experiment = load(
            f"model.self_conditioning={str(on).lower()}",
            'model.embedding.position="learned"',
        )
        trainer = Trainer(Diffusion.build(experiment), experiment.train, seed=0)
        flops[on] = step_flops(trainer)
    # A first pass is a third of forward and backward; the rest reads the prediction.
    assert 4 / 3 < flops[True] / flops[False] < 2
