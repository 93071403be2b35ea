"""A model that learns how documents end draws texts as long as they are."""

import random
from collections import Counter

import pytest
import torch

from dither.engine.config.load_experiment import load_experiment
from dither.engine.sampling.samples import make_samples
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

EXPERIMENT = """
loss = "masked-ce"
sampler = { use = "blocks", size = 2, inner = "first-hitting", stop = true }
[task]
use = "language-model"
length = 4
tokenizer = "chars"
end_of_text = true
documents = "ended"
data = { use = "text-files", paths = ["DOCS/*.txt"] }
[process]
use = "absorbing"
[model]
use = "denoiser"
width = 32
depth = 2
block_size = 2
block = { use = "adaln-zero", heads = 2, rope = true }
[train]
steps = 300
batch_size = 64
optimizer = { use = "adamw", lr = 5e-3 }
ema = 0.98
"""
LENGTHS = range(1, 4)


@pytest.mark.slow
def test_drawn_texts_are_as_long_as_documents_are(tmp_path):
    torch.set_num_threads(1)
    letters = random.Random(0)
    (tmp_path / "docs").mkdir()
    for number in range(500):
        text = "".join(letters.choices("abcdefgh", k=LENGTHS[number % len(LENGTHS)]))
        (tmp_path / "docs" / f"{number:03}.txt").write_text(text)
    (tmp_path / "e.toml").write_text(EXPERIMENT.replace("DOCS", (tmp_path / "docs").as_posix()))
    experiment = load_experiment(tmp_path / "e.toml").experiment
    system = Diffusion.build(experiment)
    trainer = Trainer(system, experiment.train, experiment.seed)
    for _ in range(experiment.train.steps):
        trainer.advance()
    trained = system.task.batch("train", range(system.task.size("train"))).x0
    end = system.task.tokenizer.end
    wanted = Counter((trained == end).int().argmax(1).tolist())
    drawing = make_samples(system.with_model(trainer.average.module).eval(), 600, seed=1)
    assert drawing is not None
    samples = drawing.samples
    drawn = Counter((samples == end).int().argmax(1).tolist())

    assert (samples == end).any(1).float().mean() > 0.98
    for length in LENGTHS:
        assert abs(drawn[length] / 600 - wanted[length] / len(trained)) < 0.06
