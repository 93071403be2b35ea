"""A small model comes close to the entropy of a source that is known, and its bound never falls below it."""

from pathlib import Path

import pytest
import torch

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.trainer import Trainer

MARKOV = Path(__file__).parents[1] / "experiments/language_model/markov.toml"
SMALL = [
    "task.length=6", "task.data.states=4", "task.data.length=100000", "task.data.held=24000", "model.width=32",
    "model.depth=2", "train.steps=300", "train.optimizer.lr=8e-3", "train.ema=0.98",
]  # fmt: skip
UNIFORM = [
    "process.use=uniform", "process.predict=posterior", "process.level=log-sigma", "loss=score-entropy",
    "process.schedule={use='geometric', sigma_min=1e-2, sigma_max=10}", "sampler=ancestral",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("process", "above"), [([], 1.03), (UNIFORM, 1.08)], ids=["absorbing", "uniform"])
def test_the_bound_stands_just_above_the_entropy_of_the_source(process, above):
    torch.set_num_threads(1)
    experiment = load_experiment(MARKOV, [*SMALL, *process]).experiment
    system = Diffusion.build(experiment)
    trainer = Trainer(system, experiment.train, experiment.seed)
    for _ in range(experiment.train.steps):
        trainer.advance()
    found = evaluate(system.with_model(trainer.average.module), 4000, 1000, repeats=4)
    known = system.task.baselines()
    entropy, interval = known["nats_per_token/source-entropy"], found["nats_per_token_ci95"]

    assert interval < 0.03 * entropy
    assert entropy - interval < found["nats_per_token"] < above * entropy + interval
    # of the very text, which moves with the sample as the bound does: less room for a bound that is too low
    assert 0.995 * known["nats_per_token/source"] < found["nats_per_token"]
    assert found["nats_per_token"] < 0.97 * known["nats_per_token/unigram"]
