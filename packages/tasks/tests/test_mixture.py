"""Weighted mixtures of texts: shares, epochs, windows, metrics and refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dither.engine import System, load, load_experiment
from dither.engine.training.data_order import MixtureOrder
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.trainer import Trainer
from dither.registry import default_catalog
from dither.tasks.language_model.data.mixture import (
    JoinedIds,
    MixedStream,
    MixedWindows,
)
from dither.tasks.language_model.data.specs import ConvertedText, Mixture, ShardFolder
from dither.tasks.language_model.data.token_store import IdReader, TokenStream

QUICK = Path(__file__).parents[3] / "experiments" / "language_model" / "attention.toml"


@pytest.fixture
def texts(tmp_path):
    """Three folders of texts of one letter each, of different sizes."""
    for letter, count in (("a", 40), ("b", 9), ("c", 20)):
        (tmp_path / letter).mkdir()
        for number in range(count):
            text = letter * (30 + number)
            (tmp_path / letter / f"{number}.txt").write_text(text)
    return tmp_path


def files(folder, letter):
    return {"use": "text-files", "paths": [f"{folder / letter}/*.txt"]}


def task_of(texts, letters="ab", weights=(3, 1), **options):
    of = [files(texts, letter) for letter in letters]
    data = {"use": "mixture", "of": of, "weights": list(weights)}
    spec = default_catalog().parse(
        "task", {"use": "language-model", "data": data, "length": 8, **options}
    )
    assert not list(spec.check())
    task = spec.build()
    assert task.space == spec.space()
    return task


def test_shares_are_exact_and_epochs_are_those_of_each_source():
    sizes = [7, 50, 11]
    weights = [5, 2, 1]
    order = MixtureOrder([*zip(sizes, weights, strict=True)], seed=3)
    rows = np.array(order.rows(0, 8 * 40))
    bounds = np.cumsum([0, *sizes])
    sources = np.searchsorted(bounds, rows, "right") - 1
    # Exact in each cycle, and within two samples in any stretch of half a cycle
    for start in range(0, len(rows), 8):
        counts = np.bincount(sources[start : start + 8], minlength=3)
        assert counts.tolist() == weights
    for start in range(0, len(rows) - 4):
        counts = np.bincount(sources[start : start + 4], minlength=3)
        assert abs(counts - np.array(weights) / 2).max() <= 2
    for source, size in enumerate(sizes):
        own = rows[sources == source] - bounds[source]
        epochs = own[: len(own) // size * size].reshape(-1, size)
        assert (np.sort(epochs, 1) == np.arange(size)).all()
        assert len(epochs) < 2 or (epochs[0] != epochs[1]).any()
    # Any part is that of the whole: the position is the state.
    assert order.rows(101, 13) == rows[101:114].tolist()
    assert MixtureOrder([*zip(sizes, weights, strict=True)], 4).rows(0, 9) != (
        rows[:9].tolist()
    )


def test_every_place_of_a_batch_has_every_source():
    """Times of training depend on the place, so that a fixed pattern would bind sources to times."""
    order = MixtureOrder([(10, 3), (10, 1)], seed=0)
    rows = np.array(order.rows(0, 4000)).reshape(-1, 4) >= 10
    shares = rows.mean(0)
    # Four standard errors of a share of 1/4 in 1,000 batches
    assert abs(shares - 0.25).max() < 4 * (0.25 * 0.75 / 1000) ** 0.5


def test_windows_are_of_one_source_and_valid_ones_take_turns(texts):
    task = task_of(texts, "abc", (2, 1, 1))
    letters = torch.tensor([ord(letter) for letter in "abc"])
    for split in ("train", "valid", "test"):
        clean = task.batch(split, range(task.size(split)))
        assert clean.x0.shape[1] == 8
        expected = letters[clean.cond["source"]][:, None]
        text = clean.valid & (clean.x0 != ord("\n"))
        assert ((clean.x0 == expected) | ~text).all()
        assert clean.cond["source"].unique().tolist() == [0, 1, 2]
    sources = clean.cond["source"]
    whole = sources.bincount() / len(sources)
    half = sources[: len(sources) // 2].bincount(minlength=3) / (len(sources) // 2)
    assert abs(whole - half).max() < 2 / (len(sources) // 2)
    assert sum(size for size, _ in task.mixture()) == task.size("train")
    order = [4, 0, 2]
    rows = task.batch("valid", order)
    for place, row in enumerate(order):
        assert torch.equal(rows.x0[place], task.batch("valid", [row]).x0[0])
    with pytest.raises(IndexError):
        task.batch("valid", [task.size("valid")])


@pytest.mark.parametrize("documents", ["separate", "packed", "ended"])
def test_other_windows(texts, documents):
    task = task_of(texts, documents=documents, end_of_text=True)
    clean = task.batch("train", range(task.size("train")))
    assert clean.cond["source"].bincount().tolist() == [
        size for size, _ in task.mixture()
    ]
    if documents == "packed":
        assert (clean.cond["document"] >= 0).all()
    like = task.like(400, 0)
    share = float((like.cond["source"] == 0).double().mean())
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 400) ** 0.5


def test_slices_of_joined_ids():
    arrays = [np.arange(3), np.arange(3, 3), np.arange(3, 8)]
    joined = JoinedIds([TokenStream(ids, np.zeros(1, int)) for ids in arrays])
    whole = np.arange(8)
    for part in (
        slice(0, 2),
        slice(1, 6),
        slice(4, None),
        slice(-4, None),
        slice(9, 9),
    ):
        assert joined[part].tolist() == whole[part].tolist()


class CountedIds(IdReader):
    """Ids that count how often they are requested."""

    def __init__(self, ids):
        self.ids = ids
        self.requests = 0

    def __len__(self):
        return len(self.ids)

    def slices(self, starts, sizes):
        self.requests += 1
        return [self.ids[a : a + n] for a, n in zip(starts, sizes, strict=True)]


def test_windows_of_a_source_are_requested_together():
    readers = [CountedIds(np.arange(40)), CountedIds(np.arange(40, 100))]
    parts = tuple(TokenStream(reader, np.zeros(1, int)) for reader in readers)
    stream = MixedStream.of(parts, interleaved=True)
    windows = MixedWindows(stream, 10)
    found = [ids.tolist() for ids in windows.ids(7)]
    assert [reader.requests for reader in readers] == [1, 1]
    rows, _ = windows.take(range(7))
    assert found == rows.tolist()
    starts = [0, 35, 90, 30]
    found = stream.ids.slices(starts, [5, 10, 10, 70])
    assert [reader.requests for reader in readers] == [3, 3]
    assert [ids[0] for ids in found] == starts
    assert found[3].tolist() == [*range(30, 100)]


def test_training_resumes_and_each_source_has_a_metric(texts):
    of = ", ".join(
        f"{{use='text-files',paths=['{texts / letter}/*.txt']}}" for letter in "ab"
    )
    changes = [
        f"task.data={{use='mixture', weights=[3, 1], of=[{of}]}}",
        "task.length=8",
        "task.tokenizer=chars",
        "model.width=16",
        "model.depth=1",
        "model.block.heads=2",
        "train.batch_size=8",
        "train.steps=4",
    ]
    experiment = load_experiment(QUICK, changes).experiment
    trainer = Trainer(Diffusion.build(experiment).train(), experiment.train, 0)
    for _ in range(2):
        trainer.advance()
    saved = {k: v.clone() for k, v in trainer.system.model.state_dict().items()}
    tensors, plain = trainer.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    rest = [trainer.advance()["loss"].item() for _ in range(2)]
    again = Trainer(Diffusion.build(experiment).train(), experiment.train, 0)
    again.system.model.load_state_dict(saved)
    again.load_state(tensors, plain)
    assert [again.advance()["loss"].item() for _ in range(2)] == rest

    metrics = evaluate(trainer.system, samples=100, batch_size=50)
    a = metrics["nats_per_token_of_0-text-files"]
    b = metrics["nats_per_token_of_1-text-files"]
    assert min(a, b) < metrics["nats_per_token"] < max(a, b)
    assert "unigram" in str(trainer.system.task.baselines())
    over = trainer.system.task.over_texts(["aaaabbbbaaaa"])
    assert over.batch("valid", [0]).cond["source"].tolist() == [-1]


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, -1], [float("nan"), 1]])
def test_weights_that_are_no_weights_are_refused(weights):
    of = [{"use": "markov-chain"}, {"use": "stdlib-text"}]
    with pytest.raises(ValidationError, match="weights"):
        default_catalog().parse(
            "data", {"use": "mixture", "of": of, "weights": weights}
        )


@pytest.mark.parametrize("weights", [[1, 2, 3], [1, 1e-5]])
def test_weights_that_give_no_shares_are_misfits(weights):
    of = [{"use": "stdlib-text"}, {"use": "stdlib-text"}]
    mixture = default_catalog().parse(
        "data", {"use": "mixture", "of": of, "weights": weights}
    )
    assert [misfit.path for misfit in mixture.check()] == [("weights",)]


def test_problems_of_all_sources_come_in_one_pass():
    of = [{"use": "prompt-response", "paths": ["a"]}, {"use": "procedural-plans"}]
    mixture = default_catalog().parse(
        "data", {"use": "mixture", "of": of, "weights": [1, 20_000]}
    )
    misfits = {misfit.path[:2]: misfit.message for misfit in mixture.check()}
    assert misfits.keys() == {("weights",), ("of", 0), ("of", 1)}
    assert "1 in 10,000" in misfits["weights",]


def test_lengths_of_templates_are_those_of_their_source(tmp_path):
    for name, digits in (("a", 2), ("b", 6)):
        for number in range(90):
            path = tmp_path / name / f"{number}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{number:0{digits}}")
    task = task_of(tmp_path, weights=(1, 3), documents="separate")
    like = task.like(400, seed=0)
    source = like.cond["source"]
    length = like.valid.sum(1)
    assert length[source == 0].unique().tolist() == [2]
    assert length[source == 1].unique().tolist() == [6]
    assert abs(source.double().mean() - 0.75) < 5 * (0.75 * 0.25 / 400) ** 0.5


def test_equal_shares_have_equal_whole_weights(texts):
    of = [files(texts, "a"), files(texts, "b"), files(texts, "c")]
    for weights in ([3, 2, 1], [0.3, 0.2, 0.1], [30, 20, 10], [1.5, 1, 0.5]):
        mixture = default_catalog().parse(
            "data", {"use": "mixture", "of": of, "weights": weights}
        )
        assert isinstance(mixture, Mixture)
        assert mixture.whole_weights() == [3, 2, 1]


def test_sources_that_do_not_mix_are_refused(texts, monkeypatch):
    stores = []
    for letter, tokenizer in (("a", "bytes"), ("b", "bytes"), ("c", "chars")):
        to = str(texts / f"{letter}-ids")
        paths = [str(texts / letter)]
        ConvertedText(paths=paths, to=to, tokenizer=tokenizer).prepare()
        stores.append({"use": "token-shards", "path": to})
    a, b, c = stores
    text = files(texts, "a")
    pairs = {"use": "prompt-response", "paths": ["x.jsonl"]}

    def spec(*of):
        data = {"use": "mixture", "of": list(of), "weights": [1] * len(of)}
        return default_catalog().parse(
            "task", {"use": "language-model", "data": data, "length": 8}
        )

    paths = [[misfit.path for misfit in spec(*of).check()] for of in (
        (a, b), (a, c), (a, text), (text, pairs), (text, {**text, "paths": ["none"]}),
        (text, {"use": "digits"}),
    )]  # fmt: skip
    of = ("data", "of")
    assert paths[:4] == [[], [(*of, 1)], [of], [(*of, 1)]]
    assert paths[4] == [(*of, 1, "paths", 0)]
    assert (*of, 1) in paths[5]
    task = spec(a, b).build()
    assert task.batch("train", [0]).cond["source"].tolist() == [0]
    assert isinstance(task.corpus.splits["train"].parts[0].ids.base, np.memmap)

    # The same tokenizer, of which one store knows the end of a text and the other does not.
    record = ShardFolder.record

    def with_another_end(self):
        info = record(self)
        if str(self.path) != b["path"]:
            return info
        tokenizer = info.tokenizer.model_copy(update={"end": 7})
        return info.model_copy(update={"tokenizer": tokenizer})

    monkeypatch.setattr(ShardFolder, "record", with_another_end)
    (misfit,) = spec(a, b).check()
    assert misfit.path == (*of, 1)
    assert "end with different ids" in misfit.message


def test_exports_name_the_list_of_sources(texts, tmp_path):
    """With the data or without, or with others in their place."""
    lines = [str(files(texts, letter)).replace(":", " =") for letter in "ab"]
    of = ", ".join(lines).replace("'use'", "use").replace("'paths'", "paths")
    changes = [
        f"task.data={{use='mixture', weights=[3, 1], of=[{of}]}}",
        "task.length=8",
        "task.tokenizer=chars",
        "model.width=16",
        "model.depth=1",
        "model.block.heads=2",
    ]
    system = System.build(load_experiment(QUICK, changes).experiment)
    folder = system.save(tmp_path / "export")
    assert load(folder).sample(1).shape == (1, 8)
    others = f"task.data.of=[{of}]"
    again = load(folder, overrides=[others])
    assert again.task.mixture() == system.task.mixture()
