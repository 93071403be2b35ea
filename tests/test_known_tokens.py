"""Known tokens as a condition of uniform diffusion: the law given a prompt, and what an experiment file is told."""

import pytest
import torch

from dither.core_blocks.specs import DenoiserModel
from dither.engine import Diffusion, load_experiment
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import random_known
from dither.losses.tokens import score_entropy
from dither.processes.samplers.ancestral import Ancestral
from dither.processes.schedules.alpha import LogLinear
from dither.processes.tokens.process import TokenProcess
from dither.processes.tokens.specs import Uniform
from dither.registry.config.errors import Refused
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import Field, TokenSpace

SPACE = TokenSpace((Field("text", 2, 3),))
JOINT = torch.tensor([[0.5, 0.01, 0.01], [0.02, 0.02, 0.2], [0.02, 0.2, 0.02]])


class Exact(torch.nn.Module):
    """p(x_0 | x_t) by enumeration; `told`: known tokens are taken as clean, not as noised."""

    def __init__(self, process: TokenProcess, told: bool) -> None:
        super().__init__()
        self.process, self.told, self.seen = process, told, []
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, state: State, level: torch.Tensor, valid: torch.Tensor, cond: dict) -> torch.Tensor:
        self.seen.append(state.noisy)
        alpha = (-level.double()).exp()[:, None, None]
        likelihood = alpha * torch.eye(3)[state.x] + (1 - alpha) / 3
        if self.told:
            likelihood = torch.where(state.noisy[..., None], likelihood, torch.eye(3)[state.x])
        weight = JOINT * likelihood[:, 0, :, None] * likelihood[:, 1, None, :]
        return (torch.stack([weight.sum(2), weight.sum(1)], 1) + self.weight).log()


@pytest.mark.parametrize("told", [False, True])
def test_a_model_that_is_told_gives_the_conditional_law(told: bool) -> None:
    """By total variation over the free token; the model sees the marks of known tokens in training and in sampling."""
    torch.manual_seed(0)
    process, rows = Uniform(schedule=LogLinear(), predict="posterior").build(SPACE), 4000
    model = Exact(process, told)
    system = Diffusion(None, process, model, score_entropy, Ancestral(steps=64).build(), known=0.5)
    clean = Clean.of(torch.zeros(rows, 2, dtype=torch.long))
    for training, share in ((True, 0.38), (False, 0.0)):
        system.train(training)(clean).mean()
        assert (~model.seen[-1]).any(1).float().mean() == pytest.approx(share, abs=0.05)
    like = Clean.of(torch.tensor([[1, 0]]).expand(rows, 2), known=torch.tensor([[True, False]]).expand(rows, 2))
    found = torch.bincount(draw(system, like, seed=0)[:, 1], minlength=3) / rows
    distance = float((found - JOINT[1] / JOINT[1].sum()).abs().sum() / 2)
    assert (distance < 0.03) == told
    assert told or distance > 0.1


def test_the_bound_of_an_exact_model_is_the_log_likelihood() -> None:
    """Of every sample, and of one token given the other, within four standard errors."""
    process = Uniform(schedule=LogLinear(), predict="posterior").build(SPACE)
    system = Diffusion(None, process, Exact(process, told=True), score_entropy, Ancestral().build(), bound=True)
    ids = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    exact = JOINT.flatten().double()
    for known, law in (
        (None, exact),
        (torch.tensor([True, False]).expand(9, 2), exact / JOINT.sum(1).repeat_interleave(3)),
    ):
        found = system.log_likelihood(ids, known, samples=2000)
        assert ((found.values - law.log()).abs() < 2 * found.half_widths + 0.01).all()
        assert found.half_widths.max() < 0.8


def test_the_vector_of_known_tokens_is_trained() -> None:
    embedding = {"use": "tokens", "known": True}
    spec = DenoiserModel(width=8, depth=1, embedding=embedding, block={"use": "pre-norm", "heads": 2})
    process = Uniform(predict="posterior").build(SPACE)
    system = Diffusion(None, process, spec.build(SPACE), score_entropy, Ancestral().build(), known=1.0)
    assert spec.facts().reads_known
    torch.nn.init.normal_(system.model.head.linear.weight)
    system(Clean.of(torch.zeros(64, 2, dtype=torch.long))).mean().backward()
    assert system.model.embedding.known.grad.abs().sum() > 0


def test_random_known_tokens_are_of_four_kinds() -> None:
    torch.manual_seed(0)
    valid = torch.arange(12) < torch.tensor([12] * 3000 + [5] * 1000)[:, None]
    known = random_known(valid, 0.5)
    assert not (known & ~valid).any()
    assert known.any(1).float().mean() == pytest.approx(0.47, abs=0.04)
    rises = (known[:, 1:] > known[:, :-1]).sum(1)
    first = known[:, 0]
    for kind in ((rises == 0) & first & ~known.all(1), (rises == 1) & ~first, (rises == 1) & first, rises > 1):
        assert kind.float().mean() > 0.04


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (["train.known=0.5"], "misfit"),
        (["sampler=ancestral"], "warned"),
        (["sampler=particle-gibbs"], ""),
        (["train.known=0.5", "model.embedding.known=true"], ""),
        (["process=absorbing", "loss=masked-ce"], ""),
    ],
)
def test_validate_says_when_a_prompt_would_bias_samples(tmp_path, text_experiment, changes, code) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh" * 20)
    (tmp_path / "b.txt").write_text("abcdefgh" * 20)
    file = tmp_path / "x.toml"
    file.write_text(text_experiment(str(tmp_path / "*.txt")))
    base = ["process=uniform", "loss=score-entropy", "sampler=ancestral", "task.prompt=ab"]
    if code == "misfit":
        with pytest.raises(Refused) as refused:
            load_experiment(file, [*base, *changes])
        assert [problem.code for problem in refused.value.problems] == [code]
        return
    experiment = load_experiment(file, [*base, *changes]).experiment
    warned = [m for m in experiment.warn() if m.path == ("sampler",)]
    assert bool(warned) == (code == "warned")
