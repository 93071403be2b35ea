"""Likelihoods of given text, zero-shot evaluation, infilling, and the harness, on a run of two steps."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dither
from dither.engine import load_experiment
from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.runs.evaluate_run import evaluate_run, sample_run
from dither.engine.runs.exports import export_run
from dither.engine.runs.frontier import frontier
from dither.engine.runs.launch import run as run_experiment
from dither.engine.training.evaluation import task_baselines
from dither.registry.config.errors import Refused


@pytest.fixture(scope="module")
def run(tmp_path_factory, text_experiment) -> Path:
    folder = tmp_path_factory.mktemp("verbs")
    for number in range(6):
        (folder / f"{number}.txt").write_text(
            f"the cat {number} sat on the mat, and the dog {number + 1} on the log. " * 2
        )
    file = folder / "x.toml"
    file.write_text(text_experiment(str(folder / "*.txt")))
    assert not run_experiment(load_experiment(file), folder / "runs")
    (directory,) = (folder / "runs").iterdir()
    return directory


def test_text_files_are_evaluated_as_the_split_that_holds_them(run, tmp_path) -> None:
    task = dither.load(run).task
    file = tmp_path / "zero.txt"
    file.write_text(task.text(task.ids["valid"].tolist()))
    every = f"evaluate.samples={task.size('valid')}"
    assert evaluate_run(run, texts=[file]) == evaluate_run(run, changes=[every])
    assert evaluate_run(run, texts=[file], changes=["evaluate.repeats=2"]) != evaluate_run(run, texts=[file])
    with pytest.raises(Refused) as refused:
        evaluate_run(run, changes=["train.steps=3"])
    assert refused.value.problems[0].path == ("train", "steps")
    with pytest.raises(Refused, match="cannot be read"):
        evaluate_run(run, texts=[tmp_path / "none.txt"])


def test_baselines_predict_the_windows_of_the_model(run) -> None:
    """n-grams see no more than the window; with fewer samples baselines are those of the first windows."""
    task = dither.load(run).task
    three, first = task_baselines(task, "valid", 3), task.batch("valid", range(3)).x0.numpy()
    nats = sum(task._ngrams.nats(window)[1] for window in first)
    assert three["nats_per_token/2-gram"] == pytest.approx(nats / first.size)
    assert three["nats_per_token/unigram"] != task_baselines(task, "valid")["nats_per_token/unigram"]


def test_infilling_keeps_what_is_known(run, tmp_path) -> None:
    assert not sample_run(run, 3, out=tmp_path / "out", infill="at[MASK:3]on[MASK]")
    tensors = load_file(tmp_path / "out" / "samples.safetensors")
    assert tensors["known"][0].int().tolist() == [1, 1, 0, 0, 0, 1, 1, 0]
    assert [bytes(row.tolist())[:2] + bytes(row.tolist())[5:7] for row in tensors["samples"]] == [b"aton"] * 3
    for text in ("longer than the window[MASK:4]", "[MASK:9]"):
        with pytest.raises(Refused) as refused:
            sample_run(run, 1, infill=text)
        assert [problem.code for problem in refused.value.problems] == ["misfit"]


def test_a_frontier_compares_options_of_sampling_with_real_text(run, tmp_path) -> None:
    changes, grid = ["sampler=ancestral", "evaluate.samples=4"], {"temperature": ["0.5", "1"], "steps": ["2", "4"]}
    rows, picture = frontier(run, grid, changes=changes)
    assert [row.get("temperature") for row in rows] == [None, 0.5, 0.5, 1.0, 1.0]
    assert [row.get("steps") for row in rows] == [None, 2, 4, 2, 4]
    assert all(0 < row["model_calls_per_sample"] <= row["steps"] + 1 for row in rows[1:])
    assert all({"ngram_perplexity", "sample_unigram_bits", "distinct_2", "mauve"} <= row.keys() for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((picture.parent / "frontier.json").read_text()) == rows
    for change, path in (
        ("sampler=first-hitting", ("sampler", "steps")),
        (f"evaluate.samples={10**6}", ("evaluate", "samples")),
    ):
        with pytest.raises(Refused) as refused:
            frontier(run, grid, changes=[*changes, change])
        assert refused.value.problems[0].path == path


def test_an_export_has_its_tokenizer(run, tmp_path) -> None:
    """Without the text, which is not copied, it still takes prompts and gaps, and shows samples as text."""
    files = export_run(run, tmp_path / "export")
    assert [file.name for file in files if file.parent.name == "assets"] == ["tokenizer-record.json"]
    system = dither.load(tmp_path / "export")
    x = dither.draw(system, system.task.infill("at[MASK:3]on", 2, seed=0), seed=0)
    shown = [picture.text for picture in system.task.plots(x, system.task.like(2, 0))]
    assert len(shown) == 2
    assert all(text.startswith("at") for text in shown)
    assert system.task.tokens("the") == list(b"the")
    with pytest.raises(Refused):
        system.task.batch("train", [0])
    (tmp_path / "export" / "assets" / "tokenizer-record.json").write_text("{}")
    with pytest.raises(Damaged):
        dither.load(tmp_path / "export")


def test_a_likelihood_given_all_other_ids_is_that_of_the_model(run) -> None:
    """With one unknown id under masks, the bound is the log-probability itself, whatever the draws."""
    system = dither.load(run)
    ids = torch.tensor([list(b"the cat ")])
    known = torch.arange(8)[None] != 3
    found = system.log_likelihood(ids, known, samples=4000)
    like = dither.registry.flow.records.Clean.of(ids, known=known)
    t = torch.linspace(0.0005, 0.9995, 1000)
    state = system.process.prior(like)
    with torch.no_grad():
        log = torch.stack([system.denoise(state, u[None], like).log_clean()[0, 3, ids[0, 3]] for u in t[::50]])
    half = float(found.half_widths)
    assert log.min() - 1.5 * half < float(found.values) < log.max() + 1.5 * half
    assert 0 < half < 0.5
    assert system.log_likelihood(ids, known, samples=8).values == system.log_likelihood(ids, known, samples=8).values
    with pytest.raises(Refused):
        system.log_likelihood(torch.zeros(1, 9, dtype=torch.long))


def test_the_harness_runs_a_local_task(run, tmp_path) -> None:
    pytest.importorskip("lm_eval")
    from dither.engine.runs.lm_eval import HarnessModel, evaluate_tasks

    (tmp_path / "data.json").write_text(json.dumps([{"q": "the c", "a": "at"}, {"q": "the ", "a": "mat"}]))
    (tmp_path / "toy.yaml").write_text(
        f"task: toy_cat\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'data.json'}\n"
        "test_split: test\noutput_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "target_delimiter: ''\nmetric_list:\n  - metric: perplexity\n    aggregation: perplexity\n  - metric: acc\n"
    )
    found = evaluate_tasks(run, [str(tmp_path / "toy.yaml")], samples=8)["toy_cat"]
    model = HarnessModel(run, samples=8)
    values = [model._score([*q, *a], len(q))[0] for q, a in ((b"the c", b"at"), (b"the ", b"mat"))]
    assert found["perplexity,none"] == pytest.approx(float(torch.tensor(values).mean().neg().exp()), rel=1e-6)

    class Request:
        def __init__(self, *args):
            self.args = args

    assert model.loglikelihood_rolling([Request("the cat sat")])[0] < 0
    (text,) = model.generate_until([Request("the ", {"until": ["\n"], "max_gen_toks": 3})])
    assert len(text) <= 3
    assert "\n" not in text
