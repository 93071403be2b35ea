"""Models that read the ids before a position in one pass: exact likelihoods and cached predictions."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dither.core_blocks.denoiser import Denoiser
from dither.core_blocks.kv_cache import KVCache
from dither.engine.config.load_experiment import load_experiment
from dither.engine.sampling.session import ModelCalls, Session, draw
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.likelihood import log_likelihood
from dither.registry import Field, TokenSpace
from dither.registry.contracts.records import Clean, Context, State

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
FILE = EXPERIMENTS / "language_model/autoregressive.toml"
DNA = EXPERIMENTS / "dna_sequence/quick.toml"
SMALL = ["model.width=16", "model.block.heads=2", "model.depth=2", "task.length=6"]
IDS = 3
LENGTH = 4


def system_of(*changes: str) -> Diffusion:
    return random_system(FILE, [*SMALL, *changes])


def random_system(file: Path, changes: list[str]) -> Diffusion:
    """A system with random weights, also where training starts at zero."""
    torch.manual_seed(0)
    experiment = load_experiment(file, changes).experiment
    system = Diffusion.build(experiment).eval()
    for parameter in system.model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return system


def model_of():
    """The model alone, over few ids."""
    torch.manual_seed(0)
    spec = load_experiment(FILE, SMALL).experiment.model
    space = TokenSpace((Field("text", LENGTH, IDS + 1, mask=IDS),))
    model = spec.build(space).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def log_probabilities(model, x0, cond=None, valid=None):
    """Return log p(x_i | x_<i) of clean ids, B L."""
    if valid is None:
        valid = torch.ones(x0.shape, dtype=torch.bool)
    noised = State.of(torch.full_like(x0, IDS))
    context = Context(State.of(x0), torch.tensor(0.0))
    raw = model(noised, 1.0, valid, cond or {}, context=context)
    log = raw[..., :IDS].log_softmax(-1)
    return log.gather(-1, x0[..., None])[..., 0]


@torch.no_grad()
def test_probabilities_of_all_texts_sum_to_one() -> None:
    """If an output saw its own id or a later one, they would not."""
    texts = torch.tensor(list(itertools.product(range(IDS), repeat=LENGTH)))
    log_p = log_probabilities(model_of(), texts).double().sum(1)
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-5)
    # And depend on the text before.
    assert log_p.std() > 0.5


@torch.no_grad()
@pytest.mark.parametrize("prompt", [0, 1, 3])
def test_a_cache_has_the_conditionals_of_one_pass(prompt: int) -> None:
    system = system_of()
    clean = system.task.batch("valid", range(3))
    known = (torch.arange(6) < prompt).expand(3, -1)
    clean = Clean.of(clean.x0, known=known)
    masks = torch.full_like(clean.x0, system.process.space.fields[0].mask)
    one_pass = system.denoise(
        State.of(masks), 1.0, clean, context=system.context(clean)
    ).log_clean()
    session = Session(system, clean)
    if prompt:
        session.append(clean.x0[:, :prompt])
    for place in range(prompt, 6):
        here = slice(place, place + 1)
        # Calls without `append` leave no trace.
        for t in (1.0, 0.5):
            found = session(State.of(masks[:, here]), torch.full((3,), t))
        torch.testing.assert_close(
            found.log_clean(), one_pass[:, here], atol=1e-4, rtol=1e-4
        )
        session.append(clean.x0[:, here])


GUIDED = [
    "task.data.length=24",
    "task.data.motifs=1",
    "process=absorbing",
    "loss=masked-ce",
    "model.block_size=1",
    'model.reads="previous"',
    'model.condition={use = "label", of = "cell", dropout = 0.1}',
    "model.width=16",
    "model.depth=2",
    'model.block={use = "adaln-zero", heads = 2}',
    'sampler={use = "blocks", size = 1}',
    "sampler.inner.steps=3",
]
"""Changes of dna_sequence/quick.toml."""


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (FILE, SMALL),
        (FILE, [*SMALL, "sampler.context=2"]),
        (FILE, [*SMALL, "sampler.inner=ancestral", "sampler.inner.steps=3"]),
        # Of three calls the first is guided, or the last two, which single positions may not need.
        (DNA, [*GUIDED, "sample.guidance={start = 0.8}"]),
        (DNA, [*GUIDED, "sample.guidance={stop = 0.8}"]),
    ],
    ids=["all", "context", "steps", "guided-first", "guided-last"],
)
def test_a_drawn_position_is_not_computed_again(
    file: Path, changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same samples to the last bit, also after prompts of several lengths."""
    system = random_system(file, changes)
    like = system.task.batch("valid", range(4))
    known = torch.arange(like.x0.shape[1]) < torch.tensor([0, 1, 1, 4])[:, None]
    like = replace(like, known=known)
    calls = ModelCalls()
    found = draw(system, like, seed=0, calls=calls)
    monkeypatch.setattr(Denoiser, "finish", lambda *_: False)
    more = ModelCalls()
    assert torch.equal(found, draw(system, like, seed=0, calls=more))
    assert calls.rows < more.rows


def test_a_text_takes_one_call_per_position() -> None:
    system = system_of()
    calls = ModelCalls()
    draw(system, system.task.like(2, seed=0), seed=0, calls=calls)
    # When the first position is predicted there is no cache that it could be written to.
    assert calls.rows == 2 * (6 + 1)


@torch.no_grad()
@pytest.mark.parametrize("change", ["none", "keep", "drop", "rewind", "two"])
def test_only_one_position_of_the_last_call_is_finished(change: str) -> None:
    """Not after the cache has changed, nor two positions, of which the second depends on the first."""
    model = model_of()
    x = torch.tensor([[0, 2, 1, 1]])
    valid = torch.ones(1, LENGTH, dtype=torch.bool)
    new = 2 if change == "two" else 1
    ids, part = x[:, 2 : 2 + new], valid[:, :new]
    cache = KVCache()
    model(State.of(x[:, :2]), 0.0, valid[:, :2], {}, cache=cache, keep=True)
    keep = change == "keep"
    model(State.of(ids), 0.0, part, {}, cache=cache, keep=keep)
    if change == "drop":
        cache.drop(1)
    if change == "rewind":
        cache.rewind(1)
    length = cache.length
    assert model.finish(ids, part, cache) == (change == "none")
    assert cache.length == length + (change == "none")


@torch.no_grad()
def test_a_rewound_cache_continues_after_the_ids_that_it_keeps() -> None:
    model = model_of()
    x = torch.tensor([[0, 2, 1, 1]])
    valid = torch.ones(1, LENGTH, dtype=torch.bool)

    def call(ids, cache, keep):
        part = valid[:, : ids.shape[1]]
        return model(State.of(ids), 0.0, part, {}, cache=cache, keep=keep)

    cache = KVCache()
    call(x[:, :2], cache, True)
    expected = call(x[:, 2:3], cache, False)
    rewound = KVCache()
    call(x[:, :2], rewound, True)
    rewound.rewind(1)
    call(x[:, 1:2], rewound, True)
    torch.testing.assert_close(call(x[:, 2:3], rewound, False), expected)


@torch.no_grad()
def test_a_batch_may_have_no_rows() -> None:
    texts = torch.zeros(0, LENGTH, dtype=torch.long)
    assert log_probabilities(model_of(), texts).shape == (0, LENGTH)


@torch.no_grad()
@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_no_position_reads_an_id_of_padding(padding: int, finish: bool) -> None:
    """In one pass, and after a cache with and without a second call."""
    model = model_of()
    x0 = torch.tensor([[0, 2, 1, 1], [0, 2, 1, 1]])
    x0[1, padding] = 0 if padding else 1
    valid = (torch.arange(LENGTH) != padding).expand(2, -1)
    log_p = log_probabilities(model, x0, valid=valid)
    torch.testing.assert_close(log_p[0, valid[0]], log_p[1, valid[1]])

    cache = KVCache()
    for place in range(LENGTH):
        here = slice(place, place + 1)
        raw = model(State.of(x0[:, here]), 0.0, valid[:, here], {}, cache=cache)
        if place != padding:
            torch.testing.assert_close(raw[0], raw[1])
        if not (finish and model.finish(x0[:, here], valid[:, here], cache)):
            state = State.of(x0[:, here])
            model(state, 0.0, valid[:, here], {}, cache=cache, keep=True)


@torch.no_grad()
def test_a_document_begins_like_a_text() -> None:
    """Its predictions are those without the documents before it, and none sees a later id."""
    model = model_of()
    x0 = torch.tensor([[0, 2, 1, 1], [1, 0, 1, 1]])
    documents = {"document": torch.tensor([[0, 0, 1, 1]]).expand(2, -1)}
    packed = log_probabilities(model, x0, documents)
    torch.testing.assert_close(packed[0, 2:], packed[1, 2:])
    alone = log_probabilities(model, x0[:, 2:])
    torch.testing.assert_close(packed[:, 2:], alone)
    changed = x0.clone()
    changed[:, 3] = 0
    torch.testing.assert_close(
        log_probabilities(model, changed, documents)[:, :3], packed[:, :3]
    )


def test_every_draw_of_the_bound_is_the_exact_likelihood() -> None:
    system = system_of("process.estimator=time")
    clean = system.task.batch("valid", range(2))
    with torch.no_grad():
        log = system.denoise(
            system.process.prior(clean), 1.0, clean, context=system.context(clean)
        ).log_clean()
    exact = log.gather(-1, clean.x0[..., None]).double().sum((1, 2))
    bound = log_likelihood(system, clean.x0, samples=4)
    torch.testing.assert_close(bound.values, exact, rtol=1e-5, atol=1e-5)
    assert bound.half_widths.max() < 1e-5


def test_samples_keep_a_prompt_and_have_no_masks() -> None:
    system = system_of()
    like = system.task.batch("valid", range(4))
    known = torch.arange(6).expand(4, -1) < 2
    drawn = draw(system, Clean.of(like.x0, known=known), seed=0)
    assert torch.equal(drawn[known], like.x0[known])
    assert drawn.max() < system.process.space.fields[0].mask


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (["model.block_size=2", "sampler.size=2"], ("model", "reads")),
        (["process=uniform", "loss=score-entropy"], ("model", "reads")),
        (
            ["model.condition.use=level", "model.final=adaln"],
            ("model", "reads"),
        ),
        (["model.self_conditioning=true"], ("model", "self_conditioning")),
        (["process=gidd", "loss=score-entropy"], ("process",)),
        (["process=hybrid", "loss=score-entropy"], ("process",)),
        # The parameter would get no gradient.
        (["model.embedding.known=true"], ("model", "embedding", "known")),
        # Positions of a larger block would be read as MASK.
        (["sampler.size=2", "sampler.approximate=true"], ("sampler", "size")),
    ],
)
def test_what_excludes_one_pass_is_refused(changes, path, refusal) -> None:
    found = refusal(load_experiment, FILE, [*SMALL, *changes])
    assert path in [problem.path for problem in found.problems]
