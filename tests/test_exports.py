"""Exports, likelihoods of given text, zero-shot evaluation, infilling, and the harness."""

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dither
from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.cli import main
from dither.engine.runs.evaluate_run import evaluate_run, load_model
from dither.engine.runs.exports import (
    pack,
    read_export_manifest,
    space_as_json,
    space_from_json,
)
from dither.engine.signals import Stopped
from dither.registry.config.errors import Refused
from dither.registry.contracts.commands import RunOptions
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import (
    Condition,
    FeatureSpace,
    Field,
    Group,
    TokenSpace,
)
from dither.registry.plugins.manager import default_catalog
from dither.tasks.language_model.data import builtin_texts
from dither.tasks.language_model.data.corpus import Document
from dither.tasks.language_model.data.token_store import open_store


@pytest.fixture(scope="module")
def made(tmp_path_factory, text_experiment):
    """A run on text files, exported; the folder that it was made in is gone."""
    folder = tmp_path_factory.mktemp("made")
    home = folder / "home of a user"
    (home / "texts").mkdir(parents=True)
    (home / "texts" / "a.txt").write_text("the cat sat on the mat. " * 60)
    (home / "more.txt").write_text("the dog lay on the log. " * 60)
    (home / "exp.toml").write_text(
        text_experiment("texts/*.txt", "more.txt", tokenizer="chars")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main(["run", "exp.toml"]) == 0
    (run,) = (home / "runs").glob("*-*")
    here = dither.load(run, device="cpu")
    samples = dither.draw(here, here.task.like(3, seed=0), seed=0)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(["export", str(run), "--out", str(folder / "given")]) == 0
    for name in ("*.txt", "more.txt"):
        assert f"data not included: task.data.paths = data/{name}" in output.getvalue()
    shutil.move(home, folder / "gone")
    return folder, samples


@pytest.fixture
def export(made, tmp_path, monkeypatch):
    """A copy of the export, and of the data that it was made with, seen from another folder."""
    for name in ("given", "gone"):
        shutil.copytree(made[0] / name, tmp_path / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "given", tmp_path / "gone", made[1]


def test_an_export_loads_without_its_data(export):
    given, _, _ = export
    system = dither.load(given, device="cpu")
    assert (
        system.task.space.fields[0].size
        == len(set("the cat sat on the mat. the dog lay on the log.")) + 1
    )
    assert dither.draw(
        system, Clean.of(torch.zeros(2, 8, dtype=torch.int64)), seed=0
    ).shape == (
        2,
        8,
    )
    with pytest.raises(
        Refused, match=r"task\.batch requires data .*task\.data\.paths"
    ) as no:
        system.task.batch("train", [0])
    assert system.task.text(system.task.tokens("the cat")) == "the cat"
    assert "task.data.paths = data/*.txt; task.data.paths = data/more.txt" in str(
        no.value
    )
    assert "load(..., overrides=" in no.value.problems[0].help
    x = dither.draw(system, system.task.infill("the[MASK:2]cat", 2, seed=0), seed=0)
    assert all(
        picture.text.startswith("the")
        for picture in system.task.plots(x, system.task.like(2, 0))
    )
    (record,) = (given / "assets").glob("tokenizer-record.json")
    record.write_text("{}")
    with pytest.raises(Damaged):
        dither.load(given)


def test_an_export_of_built_in_text_keeps_its_tokenizer(
    tmp_path, text_experiment, monkeypatch
) -> None:
    """The alphabet of Python's documentation differs between versions, and plays must be downloaded."""
    text = text_experiment(tokenizer="chars").replace(
        '"text-files", paths = []', '"stdlib-text"'
    )
    (tmp_path / "exp.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "exp.toml"]) == 0
    assert main(["export", "runs/latest", "--out", "given"]) == 0
    size, ids = (
        dither.load("given").task.space.fields[0].size,
        dither.load("given").task.tokens("the cat"),
    )
    monkeypatch.setattr(
        builtin_texts,
        "read_stdlib",
        lambda docstrings: [Document.of(n, f"catéhe {n}" * 9) for n in "uvwxyz"],
    )
    other = dither.load("given")
    assert (other.task.space.fields[0].size, other.task.tokens("the cat")) == (
        size,
        ids,
    )
    assert other.task.batch("train", [0]).x0.shape == (1, 8)

    def offline(docstrings: bool) -> None:
        raise Refused("no network", code="download-failed")

    monkeypatch.setattr(builtin_texts, "read_stdlib", offline)
    alone = dither.load("given")
    assert alone.task.text(alone.task.tokens("the cat")) == "the cat"
    with pytest.raises(Refused, match=r"task\.batch requires .*no network"):
        alone.task.batch("train", [0])


def test_data_are_found_in_the_export_or_by_override(export):
    given, gone, samples = export
    where = f"task.data.paths=['{gone}/texts/*.txt', '{gone}/more.txt']"
    there = dither.load(given, device="cpu", overrides=[where])
    assert torch.equal(dither.draw(there, there.task.like(3, seed=0), seed=0), samples)
    (given / "data").mkdir()
    shutil.copy(gone / "texts" / "a.txt", given / "data")
    shutil.copy(gone / "more.txt", given / "data")
    inside = dither.load(given, device="cpu")
    assert inside.task.like(3, seed=0).x0.shape == (3, 8)
    with pytest.raises(Refused, match="nowhere"):
        dither.load(
            given, device="cpu", overrides=["task.data.paths=['/nowhere/*.txt']"]
        )


def test_no_machine_specific_paths(export, made):
    given = export[0]
    for file in given.rglob("*"):
        if file.is_file():
            assert str(made[0]).encode() not in file.read_bytes(), file
            assert b"home of a user" not in file.read_bytes(), file
    text = (given / "experiment.toml").read_text()
    assert {"device", "threads"}.isdisjoint(tomllib.loads(text)["train"])


def test_small_files_are_bundled(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "one").write_text("12345")
    data = {"use": "token-shards", "path": f"{tmp_path}/corpus"}
    task = {
        "use": "language-model",
        "judge": f"{tmp_path}/corpus",
        "prompt": str(tmp_path),
    }
    tree = {
        "name": "x/y.json",
        "plugins": ["plugins/a.py", "/a/b.py"],
        "task": {**task, "tokenizer": f"{tmp_path}/tokenizer.json", "data": data},
        "train": {
            "steps": 3,
            "device": "cuda:7",
            "threads": 3,
            "start_from": str(tmp_path),
            "start_layout": "get",
            "start_partial": True,
        },
    }
    bundle = pack(tree, default_catalog())
    task |= {
        "tokenizer": "files/tokenizer.json",
        "data": {**data, "path": "data/2-corpus"},
        "judge": "data/corpus",
    }
    assert bundle.tree == {
        "name": "x/y.json",
        "plugins": tree["plugins"],
        "task": task,
        "train": {"steps": 3},
    }
    assert bundle.files == {"files/tokenizer.json": tmp_path / "tokenizer.json"}
    assert bundle.data == [
        ("task.judge", "data/corpus"),
        ("task.data.path", "data/2-corpus"),
    ]


@pytest.mark.parametrize("prompt", ["/* sum", "~nobody", "/etc/hostname"])
def test_text_like_a_path_is_kept(prompt):
    data = {"use": "token-shards", "path": "~nobody-is-so-called/a"}
    task = {"use": "language-model", "prompt": prompt, "data": data}
    bundle = pack({"task": task, "train": {}}, default_catalog())
    assert bundle.tree["task"] == {**task, "data": {**data, "path": "data/a"}}
    assert not bundle.files


@pytest.mark.parametrize(
    "space",
    [
        TokenSpace(
            (Field("a", 3, 5, mask=4), Field("b", 2, 7, pad=1, end=0)),
            (Condition("c", 2, ("x", "y"), True),),
        ),
        FeatureSpace(4, 6, (Group("g", 0, 2),), (Condition("place"),)),
        FeatureSpace(4, 6, (Group("g", 0, 2),), given=("g",), standardised=True),
    ],
)
def test_space_round_trip(space):
    table = json.loads(json.dumps(space_as_json(space)))
    assert space_from_json(table) == space


@pytest.mark.parametrize(
    "damage", ["{", '{"data": [{}]}', '{"space": {"data": "tokens"}}']
)
def test_invalid_data_entries_are_damage(tmp_path, damage):
    (tmp_path / "MANIFEST.json").write_text(damage)
    with pytest.raises(Damaged, match=r"MANIFEST\.json"):
        read_export_manifest(tmp_path)


@pytest.fixture
def run(trained) -> Path:
    return trained[1]


def test_an_export_may_have_other_sampling_options(run, tmp_path, cli) -> None:
    words = ["export", str(run), "--out", str(tmp_path / "given")]
    assert main([*words, "sampler.temperature=0.5", "sample.count=2"]) == 0
    tables = tomllib.loads((tmp_path / "given" / "experiment.toml").read_text())
    assert (tables["sampler"]["temperature"], tables["sample"]["count"]) == (0.5, 2)
    assert main([*words[:-1], str(tmp_path / "other"), "train.steps=4"]) == 2
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_text_files_are_evaluated_as_the_split_that_holds_them(
    run, tmp_path, refusal, cli
) -> None:
    task = dither.load(run).task
    file = tmp_path / "zero.txt"
    file.write_text(task.text(task.ids["valid"].tolist()))
    every = RunOptions(changes=[f"evaluate.samples={task.size('valid')}"])

    def of_text(task):
        return task.over_texts([file.read_text()])

    measured = evaluate_run(run, task=of_text)
    assert measured == evaluate_run(run, every)
    twice = RunOptions(changes=["evaluate.repeats=2"])
    assert evaluate_run(run, twice, task=of_text) != measured
    # A byte order mark is not text, as in training.
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    printed = json.loads(cli("perplexity", str(run), str(file), "--json").out)
    assert printed == measured[0] | measured[1]
    for name, tokenizer in (("same", "bytes"), ("other", "chars")):
        (tmp_path / f"{name}.txt").write_text(
            "the dog sat on the log, and the cat on the mat. " * 5
        )
        options = [
            "--valid",
            "0.4",
            "--test",
            "0",
            "--tokenizer",
            tokenizer,
            "--to",
            str(tmp_path / name),
        ]
        assert main(["prepare", "text", str(tmp_path / f"{name}.txt"), *options]) == 0
    file.write_text(
        task.text(open_store(tmp_path / "same").splits["valid"].ids.tolist())
    )
    stored = evaluate_run(
        run, task=lambda task: task.over_store(str(tmp_path / "same"), "valid")
    )
    assert stored == evaluate_run(run, task=of_text)
    assert (
        main(["perplexity", str(run), "--data", str(tmp_path / "same"), "--json"]) == 0
    )
    assert main(["perplexity", str(run), "--data", str(tmp_path / "other")]) == 2
    changes = RunOptions(changes=["train.steps=4"])
    assert refusal(evaluate_run, run, changes).problems[0].path == ("train", "steps")
    missing = str(tmp_path / "none.txt")
    assert "no such file" in cli("perplexity", str(run), missing, code=2).err

    # The same at an address.
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for source in (tmp_path / "same").iterdir():
        store.pipe_file(f"/same/{source.name}", source.read_bytes())
    store.pipe_file("/text.txt", file.read_bytes())
    for words in (["memory://text.txt"], ["--data", "memory://same"]):
        printed = json.loads(cli("perplexity", str(run), *words, "--json").out)
        assert printed == stored[0] | stored[1]
    said = cli("perplexity", str(run), "--data", f"file://{tmp_path}/same", code=2).err
    assert f"{tmp_path}/same" in said


def test_a_program_that_cannot_be_made_leaves_no_export(
    run, tmp_path, monkeypatch, cli
) -> None:
    """The command may be repeated."""

    def stop(*arguments, **options):
        raise Stopped("SIGINT")

    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "export", stop)
        words = ["export", str(run), "--out", str(tmp_path / "out"), "--program"]
        cli(*words, code=75)
    assert not (tmp_path / "out").exists()


def test_baselines_predict_the_windows_of_the_model(run) -> None:
    """n-grams see no more than the window; with fewer samples baselines are those of the first windows."""
    task = dither.load(run).task
    three, first = task.baselines("valid", 3), task.batch("valid", range(3)).x0.numpy()
    nats = sum(task._ngrams.nats(window)[1] for window in first)
    assert three["nats_per_token/2-gram"] == pytest.approx(nats / first.size)
    assert (
        three["nats_per_token/unigram"]
        != task.baselines("valid")["nats_per_token/unigram"]
    )


def test_infilling_keeps_what_is_known(run, tmp_path, cli) -> None:
    words = ["infill", str(run), "at[MASK:3]on[MASK]", "--count", "3"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    tensors = load_file(tmp_path / "out" / "samples.safetensors")
    assert tensors["known"][0].int().tolist() == [1, 1, 0, 0, 0, 1, 1, 0]
    assert [
        bytes(row.tolist())[:2] + bytes(row.tolist())[5:7] for row in tensors["samples"]
    ] == [b"aton"] * 3
    for text in ("longer than the window[MASK:4]", "[MASK:9]"):
        assert "[misfit]" in cli("infill", str(run), text, code=2).err


def test_a_frontier_names_the_library_that_it_lacks(run, monkeypatch, cli) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["frontier", str(run), "--over", "temperature=0.5,1"]
    assert "[missing-dependency]" in cli(*words, code=2).err


@pytest.mark.slow
def test_a_frontier_compares_options_of_sampling_with_real_text(
    run, tmp_path, cli
) -> None:
    words = ["frontier", str(run), "sampler=ancestral", "evaluate.samples=4"]
    words += ["--over", "temperature=0.5,1", "--over", "steps=2,4"]
    out = tmp_path / "out"
    rows = json.loads(cli(*words, "--out", str(out), "--json").out)
    assert [row.get("temperature") for row in rows] == [None, 0.5, 0.5, 1.0, 1.0]
    assert [row.get("steps") for row in rows] == [None, 2, 4, 2, 4]
    assert all(
        0 < row["model_calls_per_sample"] <= row["steps"] + 1 for row in rows[1:]
    )
    names = {"ngram_perplexity", "sample_unigram_bits", "distinct_2", "mauve"}
    assert all(names <= row.keys() for row in rows)
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "frontier.json").read_text()) == rows
    for change, path in (
        ("sampler=first-hitting", "sampler.steps"),
        (f"evaluate.samples={10**6}", "evaluate.samples"),
    ):
        printed = cli("--format", "json", *words, change, code=2)
        assert json.loads(printed.out)["problems"][0]["path"] == path, change
    assert not (run / "frontier").exists()


def test_a_likelihood_given_all_other_ids_is_that_of_the_model(run) -> None:
    """With one unknown id under masks, the bound is the log-probability itself, whatever the draws."""
    system = dither.load(run)
    ids = torch.tensor([list(b"the cat ")])
    known = torch.arange(8)[None] != 3
    found = system.log_likelihood(ids, known, samples=4000)
    like = dither.registry.contracts.records.Clean.of(ids, known=known)
    t = torch.linspace(0.0005, 0.9995, 1000)
    state = system.process.prior(like)
    with torch.no_grad():
        log = torch.stack(
            [
                system.denoise(state, u[None], like).log_clean()[0, 3, ids[0, 3]]
                for u in t[::50]
            ]
        )
    half = float(found.half_widths)
    assert log.min() - 1.5 * half < float(found.values) < log.max() + 1.5 * half
    assert 0 < half < 0.5
    assert (
        system.log_likelihood(ids, known, samples=8).values
        == system.log_likelihood(ids, known, samples=8).values
    )
    with pytest.raises(Refused):
        system.log_likelihood(torch.zeros(1, 9, dtype=torch.long))


@pytest.fixture
def toy_task(tmp_path) -> Path:
    """A task of the harness with local data."""
    (tmp_path / "data.json").write_text(
        json.dumps([{"q": "the c", "a": "at"}, {"q": "the ", "a": "mat"}])
    )
    (tmp_path / "toy.yaml").write_text(
        f"task: toy_cat\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'data.json'}\n"
        "test_split: test\noutput_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "target_delimiter: ''\nmetric_list:\n  - metric: perplexity\n    aggregation: perplexity\n  - metric: acc\n"
    )
    return tmp_path / "toy.yaml"


@pytest.mark.slow  # four commands
def test_the_commands_of_the_language_page_run(
    tmp_path, monkeypatch, text_experiment, toy_task
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(
        "the cat sat on the mat, and the dog on the log. " * 60
    )
    (tmp_path / "my.toml").write_text(
        text_experiment("book.txt").replace("length = 8", "length = 64")
    )
    assert main(["run", "my.toml"]) == 0
    options = "--tokenizer bytes --valid 0.2 --test 0 --to data/owt"
    assert main(["prepare", "text", "book.txt", *options.split(" ")]) == 0
    page = (Path(__file__).parents[1] / "docs/language.md").read_text()
    lines = [
        line
        for line in page.splitlines()
        if re.match(r" {4}dither [a-z-]+ runs/NAME", line)
    ]
    assert len(lines) == 6
    changes = {
        "tasks/my.yaml": str(toy_task),
        "evaluate.samples=256": "evaluate.samples=3",
        "--count 64": "--count 3",
        "runs/NAME": "runs/latest",
    }
    for line in lines:
        command = re.sub("|".join(changes), lambda found: changes[found[0]], line)
        assert main(shlex.split(command, comments=True)[1:]) == 0, line


def test_prompts_of_a_command_begin_every_sample(run, tmp_path, cli) -> None:
    cli(
        "sample", str(run), "--prompt", "the d", "-n", "3", "--out", str(tmp_path / "s")
    )
    texts = [file.read_text() for file in (tmp_path / "s").glob("sample-*.txt")]
    assert len(texts) == 3
    assert all(text.startswith("the d") for text in texts)
    assert "[misfit]" in cli("sample", str(run), "--prompt", "x" * 99, code=2).err


@pytest.mark.parametrize(
    "gap",
    ["[mask:3]", "[MASK:-1]", "[MASK:99999999]", "[MASK:0]", "[MASK:]", "[Mask]",
     "[MASK: 3]", "[MASK 3]", "[MASK:x]", "[MASK:1.5]", "[ MASK:3 ]"],
)  # fmt: skip
def test_misspelled_gaps_are_refused(run, gap, refused) -> None:
    task = load_model(run).task
    with refused("invalid-value"):
        task.infill(f"at {gap}", 1, 0)
    assert (~task.infill("[a] [MASK:2]", 1, 0).known).sum() == 4


def test_requests_of_the_harness_keep_context_and_temperature(run) -> None:
    from types import SimpleNamespace

    from dither.tasks.language_model.lm_eval import HarnessModel

    model = HarnessModel(load_model(run), samples=2)
    templates = []
    draw = model.model.sample

    def sample(like, seed, options=None):
        templates.append((like, options))
        return draw(like, seed, options)

    model.model.sample = sample

    def ask(context, **options):
        (text,) = model.generate_until([SimpleNamespace(args=(context, options))])
        return text

    for count in (model.length, 1000):
        ask("the ", max_gen_toks=count)
        assert templates[-1][0].known.sum() == 4
    ask("the cat on the mat", max_gen_toks=1000)
    assert templates[-1][0].known.sum() == model.length // 2
    assert templates[-1][1] is None
    texts = {ask("the ", max_gen_toks=4, temperature=0.0) for _ in range(3)}
    assert templates[-1][1] == {"temperature": 0.0}
    assert len(texts) == 1
    ask("the ", do_sample=False)
    assert templates[-1][1] == {"temperature": 0.0}
    ask("the ", do_sample=True, temperature=2.5)
    assert templates[-1][1] == {"temperature": 2.5}


@pytest.mark.slow
def test_the_harness_runs_a_local_task(run, toy_task) -> None:
    from dither.tasks.language_model.lm_eval import (
        HarnessModel,
        evaluate_tasks,
        find_tasks,
    )

    found = evaluate_tasks(load_model(run), find_tasks([str(toy_task)]), samples=8)[
        "toy_cat"
    ]
    model = HarnessModel(load_model(run), samples=8)
    values = [
        model._score([*q, *a], len(q))[0]
        for q, a in ((b"the c", b"at"), (b"the ", b"mat"))
    ]
    assert found["perplexity,none"] == pytest.approx(
        float(torch.tensor(values).mean().neg().exp()), rel=1e-6
    )

    class Request:
        def __init__(self, *args):
            self.args = args

    assert model.loglikelihood_rolling([Request("the cat sat")])[0] < 0
    (text,) = model.generate_until(
        [Request("the ", {"until": ["\n"], "max_gen_toks": 3})]
    )
    assert len(text) <= 3
    assert "\n" not in text
