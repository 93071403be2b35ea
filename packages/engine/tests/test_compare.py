"""`dither compare`: arms, runs with shared weights, the table, finished runs, resumption."""

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import dither
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment, open_experiment
from dither.engine.files.per_sample import (
    per_sample_file,
    read_per_sample,
    write_per_sample,
)
from dither.engine.reports.svg import forest
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.exports import export_run
from dither.engine.runs.loading import find_weights
from dither.engine.runs.measure_run import measure_run
from dither.engine.sweeps import compare as comparing
from dither.engine.sweeps.arms import (
    arm_layers,
    check_comparison,
    compare_of,
    read_arms,
    training_key,
)
from dither.engine.sweeps.compare import Request
from dither.engine.sweeps.comparison import ArmRuns, compare_arms, show_comparison
from dither.engine.sweeps.directory import PointFolder
from dither.engine.sweeps.equal_training import equal_training
from dither.engine.sweeps.finished_runs import FinishedRun
from dither.engine.sweeps.known_metrics import require_measured
from dither.registry.config.errors import Refused

LR = "train.optimizer.lr"


@pytest.fixture(autouse=True)
def _only_the_engine(monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")


@pytest.fixture
def read(experiment_file):
    """Return the valid arms and those left out."""

    def arms(over=(), named=(), text="", select=("engine",)):
        experiment_file.write_text(experiment_file.read_text() + text)
        document, plugins = open_experiment(experiment_file, select=list(select))
        for layer in arm_layers(over, named):
            document.merge(layer)
        return read_arms(document, plugins, compare_of(document))

    return arms


def codes(work):
    with pytest.raises(Refused) as info:
        work()
    return {problem.code for problem in info.value.problems}


# arms


def test_arms_are_the_product_of_axes_then_named_ones(read):
    over = [f"{LR}=0.02,0.1", "sampler.steps=2,4", "train.ema=0.5"]
    arms, rejected = read(over, ["wide: model.width=16 train.steps=5"])
    assert [arm.name for arm, _ in arms] == [
        "lr=0.02, steps=2",
        "lr=0.02, steps=4",
        "lr=0.1, steps=2",
        "lr=0.1, steps=4",
        "wide",
    ]
    assert rejected == []
    experiments = [loaded.experiment for _, loaded in arms]
    assert [e.sampler.steps for e in experiments] == [2, 4, 2, 4, 4]
    assert [e.train.ema for e in experiments] == [0.5, 0.5, 0.5, 0.5, 0.9]
    assert experiments[-1].model.width == 16
    assert arms[0][0].point("0", 1).name == "0-lr=0.02,steps=2,seed=1"
    assert arms[-1][0].point("4", 0).name == "4-wide,seed=0"
    # Arms that differ in sampling only have the same weights.
    assert len({training_key(loaded) for _, loaded in arms}) == 3


def test_the_table_of_a_file_says_the_same(read):
    arms, _ = read(
        text=f"""
        [compare]
        seeds = 3
        over = {{ "{LR}" = [0.02, 0.1] }}
        [compare.arms.wide]
        model.width = 16
        """
    )
    assert [arm.name for arm, _ in arms] == ["lr=0.02", "lr=0.1", "wide"]


def test_without_axes_the_experiment_is_the_first_arm(read):
    arms, _ = read(named=["few: sampler.steps=1"])
    assert [arm.name for arm, _ in arms] == ["base", "few"]


def test_a_component_keeps_the_options_of_the_experiment(read, experiment_file):
    text = experiment_file.read_text()
    table = 'sampler = { use = "toy-walk", steps = 7 }'
    experiment_file.write_text(text.replace('sampler = "toy-walk"', table))
    arms, _ = read(["sampler=toy-walk"], ["two: sampler.steps=2"])
    assert [loaded.experiment.sampler.steps for _, loaded in arms] == [7, 2]


def test_the_noise_of_arms_with_other_batches_is_the_same(read):
    arms, _ = read(["train.batch_size=8,4"])
    assert [loaded.experiment.evaluate.batch_size for _, loaded in arms] == [8, 8]


def test_incompatible_arms_are_left_out_with_the_reason(read):
    plugins = ("engine", "processes")
    arms, rejected = read(["sampler=toy-walk,ddim,ancestral"], select=plugins)
    assert [arm.name for arm, _ in arms] == ["toy-walk", "ancestral"]
    assert [arm.name for arm in rejected] == ["ddim"]
    assert "ddim" in rejected[0].reasons[0]
    arms, rejected = read(["sampler=*"], select=plugins)
    assert {"toy-walk", "ancestral"} <= {arm.name for arm, _ in arms}
    assert "ddim" in {arm.name for arm in rejected}


@pytest.mark.parametrize(
    ("over", "named", "code"),
    [
        (["sampler=toy-walk,toy-wolk"], [], "unknown-component"),
        (["sampler=*", "proces=a,b"], [], "unknown-key"),
        ([f"{LR}=0.1,fast"], [], "wrong-type"),
        (["seed=1,2"], [], "invalid-value"),
        (["name=a,b"], [], "invalid-value"),
        (["compare.seeds=1,2"], [], "invalid-value"),
        ([LR], [], "usage"),
        ([f"{LR}=*"], [], "unknown-value"),
        ([f"{LR}=[]"], [], "wrong-type"),
        ([f"{LR}=0.1,0.1"], [], "duplicate"),
        ([f"{LR}=0.1,0.10"], [], "duplicate"),
        ([f"{LR}=0.1,0.2", f"{LR}=0.3"], [], "duplicate"),
        ([], ["a: train.steps=3", "a: model.width=16"], "duplicate"),
        ([f"{LR}=0.1,0.2"], [f"a: {LR}=0.1"], "duplicate"),
        (["sampler.steps=1,2", "sample.count=0"], [], "no-effect"),
        ([f"{LR}=0.1"], [], "misfit"),
        ([], ["train.steps=3"], "usage"),
        ([], [], "missing-key"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(read, over, named, code):
    assert code in codes(lambda: read(over, named))


def test_the_command_line_replaces_an_axis_or_arm_of_the_file(read):
    text = f"""
        [compare]
        over.{LR} = [0.02, 0.1]
        [compare.arms.wide]
        model.width = 16
        """
    arms, _ = read([f"{LR}=0.3,0.4"], ["wide: model.width=24"], text)
    assert [arm.name for arm, _ in arms] == ["lr=0.3", "lr=0.4", "wide"]
    assert arms[-1][1].experiment.model.width == 24
    assert list(arms[-1][0].by_key) == ["model.width"]


def test_an_axis_that_a_file_gives_twice_is_refused(read):
    text = f'[compare.over]\n"{LR}" = [0.1, 0.2]\n{LR} = [0.3]\n'
    assert codes(lambda: read(text=text)) == {"duplicate"}


def test_commas_and_blanks_in_quotes_and_brackets_separate_nothing():
    over = ['sampler={ use = "a", steps = 7 },b', "x=[1, 2],[3]", "y='p,q',r"]
    named = ["few: s={ use = 'a b',  n = [1, 2] } t=1", "odd: s='"]
    trees = [layer.tree["compare"] for layer in arm_layers(over, named)]
    assert [tree.get("over") for tree in trees[:3]] == [
        {"sampler": [{"use": "a", "steps": 7}, "b"]},
        {"x": [[1, 2], [3]]},
        {"y": ["p,q", "r"]},
    ]
    assert trees[3]["arms"]["few"] == {"s.use": "a b", "s.n": [1, 2], "t": 1}
    assert trees[4]["arms"]["odd"] == {"s": "'"}


# values per sample


def test_a_run_stores_the_values_of_each_sample(start):
    _, run = start()
    stored = read_per_sample(run, "valid")
    assert (stored.step, stored.seed, stored.samples) == (20, 3, 13)
    summary = json.loads((run / "summary.json").read_text())
    above, below = stored.of("loss").sum(1)
    assert above / below == pytest.approx(summary["metrics"]["valid"]["loss"])


def test_damaged_values_are_refused_and_nothing_is_unpickled(start):
    _, run = start("train.steps=1")
    path = per_sample_file(run, "valid")
    content = path.read_bytes()
    damages = [content[:100], b"", content.replace(b"<f8", b"<f9")]
    for damage in damages:
        path.write_bytes(damage)
        assert codes(lambda: read_per_sample(run, "valid")) == {"damaged-file"}
    arrays = dict(step=1, seed=1, batch_size=1, repeats=1, names=np.array([print]))
    np.savez(path, allow_pickle=True, sums=np.zeros((1, 2, 3)), **arrays)
    assert codes(lambda: read_per_sample(run, "valid")) == {"damaged-file"}
    # A compressed file may expand to any size.
    arrays["names"] = np.array(["loss"])
    np.savez_compressed(path, sums=np.zeros((1, 2, 3)), **arrays)
    assert zipfile.is_zipfile(path)
    assert codes(lambda: read_per_sample(run, "valid")) == {"damaged-file"}
    path.unlink()
    assert read_per_sample(run, "valid") is None


def test_a_measured_run_has_the_evaluation_of_its_weights(start, load, tmp_path):
    compared = tmp_path / "compared"
    compared.mkdir()
    run = start()[1].rename(compared / "run")
    measured = measure_run(load(), run, compared / "measured", ["test"], print)
    first = read_per_sample(run, "valid")
    second = read_per_sample(measured, "valid")
    assert np.array_equal(first.sums, second.sums)
    figures = [
        json.loads((path / "summary.json").read_text())["metrics"]
        for path in (run, measured)
    ]
    assert figures[0] == figures[1]
    fewer = load("sampler.steps=1")
    other = measure_run(fewer, run, compared / "measured", ["test"], print)
    calls = json.loads((other / "summary.json").read_text())["metrics"]["sample"]
    assert calls["model_calls_per_sample"] == 2
    # A comparison that was moved still has its weights.
    moved = compared.rename(tmp_path / "moved")
    weights, _ = find_weights(moved / measured.relative_to(compared))
    assert weights.samefile(find_weights(moved / "run")[0])


# finished runs


@pytest.fixture
def runs(start):
    """Two arms with two seeds each."""
    made = {}
    for seed in (3, 4):
        for lr in (0.02, 0.1):
            made[lr, seed] = start(f"seed={seed}", f"{LR}={lr}", "train.steps=4")[1]
    return made


def test_finished_runs_are_grouped_by_options_and_paired_by_seed(runs):
    table = dither.compare(list(runs.values()))
    assert [row.name for row in table.rows] == ["lr=0.02", "lr=0.1"]
    assert (table.metric, table.better) == ("valid/loss", "lower")
    means = []
    for lr in (0.02, 0.1):
        losses = []
        for seed in (3, 4):
            summary = json.loads((runs[lr, seed] / "summary.json").read_text())
            losses.append(summary["metrics"]["valid"]["loss"])
        means.append(np.mean(losses))
    first, second = table.records()
    assert (first["mean"], second["mean"]) == pytest.approx(tuple(means))
    assert second["difference"] == pytest.approx(means[1] - means[0], abs=1e-6)
    assert second["low"] < second["difference"] < second["high"]
    assert second["verdict"] in ("better", "worse", "not distinguishable")
    assert (second["seeds"], second["steps"]) == (2, 4)
    assert second["cpu_seconds"] > 0
    # Costs are beside quality, or in a table of their own where the screen is narrow.
    for width, heads in ((160, 1), (80, 2)):
        console = Console(file=io.StringIO(), width=width)
        show_comparison(console, table)
        lines = console.file.getvalue().splitlines()
        assert len([line for line in lines if line.startswith("arm ")]) == heads
        assert any("cpu_seconds" in line for line in lines)

    turned = dither.compare(list(runs.values()), against="lr=0.1")
    assert turned.rows[0].name == "lr=0.1"
    assert turned.rows[1].effect.difference == pytest.approx(-second["difference"])
    assert codes(lambda: dither.compare(list(runs.values()), against="x")) == {
        "unknown-value"
    }
    other = dither.compare(list(runs.values()), metric="sample/in_order")
    assert other.better is None
    assert any("sample.seed" in note for note in other.notes)
    assert codes(lambda: dither.compare(list(runs.values()), metric="valid/x")) == {
        "unknown-metric"
    }


def test_one_seed_gives_no_verdict(runs, capsys, tmp_path):
    paths = [str(runs[lr, 3]) for lr in (0.02, 0.1)]
    page = tmp_path / "page.html"
    assert main(["compare", *paths, "--json", "--out", str(page)]) == 0
    _, record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "seeds unknown"
    assert math.isfinite(record["low"])
    assert "<svg" in page.read_text()


def test_runs_of_equal_options_are_arms_of_one_seed(runs):
    table = dither.compare([runs[0.02, 3], runs[0.02, 4]])
    assert [row.effect and row.effect.verdict for row in table.rows] == [
        None,
        "seeds unknown",
    ]


def test_runs_that_cannot_be_compared_are_refused(runs, start, tmp_path):
    first = runs[0.02, 3]
    _, other = start("task.size=30", "train.steps=1")
    assert codes(lambda: dither.compare([first, other])) == {"not-comparable"}
    _, fewer = start("evaluate.samples=5", "train.steps=1")
    assert codes(lambda: dither.compare([first, fewer])) == {"not-comparable"}
    assert codes(lambda: dither.compare([first])) == {"usage"}
    assert codes(lambda: dither.compare([first, tmp_path])) == {"not-a-run"}
    (first / "summary.json").unlink()
    assert codes(lambda: dither.compare([first, runs[0.1, 3]])) == {"not-comparable"}


def test_numbers_of_samples_are_checked_though_a_file_is_missing(runs, start):
    first = runs[0.02, 3]
    per_sample_file(first, "valid").unlink()
    # Their number is not an option of the experiment.
    other = start("evaluate.samples=5", "train.steps=1")[1]
    third = start("evaluate.samples=7", "train.steps=1")[1]
    assert codes(lambda: dither.compare([first, other, third])) == {"not-comparable"}


def test_a_link_to_a_run_is_that_run(runs, tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(runs[0.02, 3])
    table = dither.compare([*runs.values(), link])
    assert [len(row.runs) for row in table.rows] == [2, 2]


def test_the_reference_of_a_failed_first_arm_is_noted(runs):
    finished = FinishedRun.read(runs[0.1, 3])
    arms = [ArmRuns("a", {}, 1, {}), ArmRuns("b", {}, 1, {3: finished}, 10.0)]
    table = compare_arms(arms)
    assert table.records()[0]["flops"] == 10 * 4
    assert table.rows[0].name == "b"
    assert table.notes[0].startswith("a has no finished run")
    assert table.notes[0].endswith("the reference is b")


def test_a_forest_plot_has_an_interval_for_each_arm():
    plot = forest([("a<b", 0.1, -0.1, 0.3), ("c", 2.0, math.nan, 3.0)], "metric")
    assert "a&lt;b" in plot
    assert plot.count("<circle") == 1, "an unknown interval is not drawn"
    assert forest([], "metric") == ""


# the command


def test_validate_checks_the_arms_of_the_file(experiment_file, capfd):
    text = experiment_file.read_text()
    for axis, code in (("0.02, 0.1", 0), ('0.02, "x"', 2), ("0.02, 0.02", 2)):
        over = f'\n[compare.over]\n"{LR}" = [{axis}]\n'
        experiment_file.write_text(text + over)
        assert main(["validate", str(experiment_file)]) == code, axis


def test_a_run_and_the_same_run_of_a_comparison_are_one_arm(start):
    changes = [
        ("seed=3",),
        # As a comparison writes it.
        ("seed=4", "evaluate.batch_size=8"),
        ("seed=3", f"{LR}=0.1"),
    ]
    paths = [start(*words, "train.steps=1")[1] for words in changes]
    assert [row.planned for row in dither.compare(paths).rows] == [2, 1]


def test_a_dry_run_lists_the_arms(experiment_file, tmp_path, capfd):
    runs = tmp_path / "runs"
    words = ["compare", str(experiment_file), "--over", f"{LR}=0.02,0.1", "--dry-run"]
    assert main([*words, "--runs", str(runs)]) == 0
    assert "lr=0.1" in capfd.readouterr().out
    assert not runs.exists()
    assert main([*words, "train.steps=1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [
        {"arm": "lr=0.02"},
        {"arm": "lr=0.1"},
    ]
    for wrong in (["--against", "x"], ["--out", "x"], ["--resume", "x"]):
        assert main([*words, *wrong]) == 2
    assert main([*words, "train.stepz=1"]) == 2
    assert "[unknown-key]" in capfd.readouterr().err
    assert main(["compare"]) == 2
    assert main(["compare", str(tmp_path), "--seeds", "3"]) == 2


def test_a_missing_scipy_is_named_before_the_runs(
    experiment_file, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy", None)
    words = ["compare", str(experiment_file), "--over", f"{LR}=0.02,0.1"]
    assert main(words) == 2
    error = capfd.readouterr().err
    assert "[missing-dependency]" in error
    assert "scipy" in error
    assert not (tmp_path / "runs").exists()
    # Neither is an export evaluated.
    with pytest.raises(Refused) as info:
        comparing.compare_runs([tmp_path / "a", tmp_path / "b"])
    assert info.value.codes == ["missing-dependency"]


@pytest.mark.slow
def test_an_unknown_metric_is_refused_before_the_runs(experiment_file, tmp_path, capfd):
    words = ["compare", str(experiment_file), "--over", f"{LR}=0.02,0.1"]
    words += [
        "--seeds",
        "1",
        "--set",
        "train.steps=1",
        "--runs",
        str(tmp_path / "runs"),
    ]
    for wrong in ("valid/los", "sample/x"):
        assert main([*words, "--metric", wrong]) == 2
        output = capfd.readouterr()
        assert "known:" in output.out + output.err
        assert not (tmp_path / "runs").exists()
    assert main([*words, "--metric", "valid/loss", "--json"]) == 0
    output = capfd.readouterr()
    assert "0-lr=0.02,seed=3" in output.err
    (path,) = (tmp_path / "runs").glob("compare-*")
    for again in ([str(path), "--metric", "valid/loss"], ["--resume", str(path)]):
        assert main(["compare", *again, "--json"]) == 0
        assert capfd.readouterr().out == output.out
    assert [record["seeds"] for record in json.loads(output.out)] == [1, 1]
    for option in (["--metric", "valid/loss"], ["--against", "x"], ["--out", "x"]):
        assert main(["compare", "--resume", str(path), *option]) == 2


@pytest.mark.parametrize(
    ("options", "code"),
    [({"metric": "foo"}, "invalid-value"), ({"seeds": 0}, "out-of-range")],
)
def test_wrong_options_of_a_comparison_are_refused(
    experiment_file, tmp_path, options, code
):
    def work():
        over = {LR: [0.02, 0.1]}
        dither.compare(experiment_file, over, runs=tmp_path / "runs", **options)

    assert codes(work) == {code}


def test_a_metric_is_known_before_anything_runs(experiment_file, monkeypatch):
    loaded = load_experiment(experiment_file)
    for metric in (
        "valid/loss",
        "valid/accuracy",
        "sample/in_order",
        "sample/model_calls_per_sample",
    ):
        require_measured(loaded, metric)
    for metric in ("sample/accuracy", "valid/in_order", "valid/undelivered"):
        assert codes(lambda metric=metric: require_measured(loaded, metric)) == {
            "unknown-metric"
        }
    # No sample meets the goal of the task, so that its metrics are unknown.
    monkeypatch.setattr(
        "dither.engine.sampling.samples.make_samples",
        lambda *_, **__: SimpleNamespace(samples=[], metrics={"undelivered": 2.0}),
    )
    require_measured(loaded, "sample/in_order")


def test_the_name_of_a_point_with_weights_is_not_a_path(tmp_path):
    for name in ("../x", "..", "/x", ""):
        (tmp_path / "weights.json").write_text(json.dumps({"point": name}))
        assert codes(PointFolder(tmp_path, {}).weights_point) == {"damaged-file"}


@pytest.mark.slow
def test_a_comparison_is_stopped_resumed_and_complete(experiment_file, tmp_path, capfd):
    runs = tmp_path / "runs"
    words = ["--over", "sampler.steps=2,1,x", "--seeds", "2", "--runs", str(runs)]
    program = "from dither.engine.cli import main; raise SystemExit(main())"
    assert main(["compare", str(experiment_file), *words]) == 2, "a wrong value"
    words[1] = "sampler.steps=2,1"
    command = [sys.executable, "-c", program, "compare", str(experiment_file), *words]
    command += ["--set", "train.steps=1500", "--set", "train.checkpoint_every=1000"]
    environment = {**os.environ, "DITHER_PLUGINS": "engine"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    # In the middle of the training of the first point.
    for _ in range(600):
        if list(runs.glob("*/0-*/*/metrics.jsonl")):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 75
    assert "compare --resume" in " ".join(output.split())
    (path,) = runs.glob("compare-*")

    assert main(["compare", "--resume", str(path)]) == 0
    states = [
        point.status()["state"] for point in comparing.open_comparison(path).folders()
    ]
    assert states == ["done"] * 4
    trained = [folder.parent.parent.name[0] for folder in path.glob("*/*/checkpoints")]
    assert sorted(trained) == ["0", "1"], "the second arm has the weights of the first"
    assert "Learning curves" in (path / "report.html").read_text()
    (path / "report.html").unlink()
    assert main(["report", str(path)]) == 0
    assert "Learning curves" in (path / "report.html").read_text()
    capfd.readouterr()
    assert main(["compare", str(path), "--json"]) == 0
    first, second = json.loads(capfd.readouterr().out)
    assert [first["seeds"], second["seeds"]] == [2, 2]
    assert (first["calls"], second["calls"]) == (3, 2)
    seeds = [
        load_experiment(point.path / "experiment.toml").experiment.sample.seed
        for point in comparing.open_comparison(path).folders()
    ]
    assert seeds == [0, 1, 0, 1], "noise of sampling is counted as part of the seed"
    # The sampler does not change the evaluation.
    assert main(["compare", str(path), "--metric", "valid/loss", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[1]["difference"] == 0
    assert main(["compare", "--resume", str(path)]) == 0, "nothing is left to do"


# equal training


def equalised(experiment_file, currency, over, changes=()):
    """Return the steps of each arm, and what a step costs."""
    document, plugins = open_experiment(experiment_file, changes, select=["engine"])
    for layer in arm_layers(over, ()):
        document.merge(layer)
    arms, _ = read_arms(document, plugins, compare_of(document))
    equal, costs = equal_training(arms, currency)
    steps = {arm.name: loaded.experiment.train.steps for arm, loaded in equal}
    return steps, costs


def test_arms_of_equal_flops_spend_those_of_the_first_arm(experiment_file):
    steps, costs = equalised(experiment_file, "flops", ["model.width=8,24"])

    def flops(width, batch=8, positions=6, letters=5):
        rows = batch * positions
        of_linears = 6 * rows * (2 * width * width + width * letters)
        # The input of the embedding of time needs no gradient.
        return of_linears + 4 * batch * width

    assert costs == {"width=8": flops(8), "width=24": flops(24)}
    assert steps == {"width=8": 20, "width=24": round(20 * flops(8) / flops(24))}


def test_arms_of_equal_samples_or_seconds(experiment_file, monkeypatch):
    over = ["train.batch_size=8,4"]
    assert list(equalised(experiment_file, "steps", over)[0].values()) == [20, 20]
    assert list(equalised(experiment_file, "samples", over)[0].values()) == [20, 40]

    def seconds(step, device):
        trainer = step.__self__
        step()
        # The first steps are slower, and so is everything now and then.
        first = 100.0 if trainer.step <= 3 else 0.0
        other_work = 50.0 if trainer.step % 7 == 0 else 0.0
        return trainer.train.batch_size + first + other_work

    monkeypatch.setattr("dither.engine.training.step_cost.timed", seconds)
    assert list(equalised(experiment_file, "seconds", over)[0].values()) == [20, 40]


@pytest.mark.parametrize(
    ("text", "over", "code"),
    [
        ('equal = "flop"', "model.width=8,16", "unknown-value"),
        ('equal = "flops"', "train.steps=1,2", "misfit"),
        ('equal = "flops"', "train.epochs=1.0,2.0", "misfit"),
        ('split = "train"', "model.width=8,16", "unknown-value"),
        ('split = "test"\nmetric = "valid/loss"', "model.width=8,16", "invalid-value"),
        ('metric = "test/loss"', "model.width=8,16", "invalid-value"),
    ],
)
def test_options_that_contradict_each_other(experiment_file, text, over, code):
    content = experiment_file.read_text().replace("steps = 20\n", "")
    experiment_file.write_text(f"{content}\n[compare]\n{text}\n")
    document, plugins = open_experiment(experiment_file, select=["engine"])
    for layer in arm_layers([over], ()):
        document.merge(layer)
    assert codes(lambda: check_comparison(document, plugins)) == {code}


def test_an_override_of_all_arms_is_one_of_their_components(experiment_file):
    plugins = ["engine", "processes"]
    document, found = open_experiment(
        experiment_file, ["sampler.steps=3"], select=plugins
    )
    named = ["few: sampler=ancestral sampler.steps=2"]
    for layer in arm_layers(["sampler=toy-walk,ancestral"], named):
        document.merge(layer)
    arms, _ = read_arms(document, found, compare_of(document))
    assert [loaded.experiment.sampler.steps for _, loaded in arms] == [3, 3, 2]


# the test split and trained models


@pytest.mark.slow
def test_runs_are_evaluated_on_the_test_split_once(runs, monkeypatch, capsys):
    table = dither.compare(list(runs.values()), split="test")
    assert table.metric == "test/loss"
    stored = read_per_sample(runs[0.02, 3], "test")
    assert (stored.step, stored.samples) == (4, 5)
    loss = dither.evaluate(runs[0.02, 3], "test", samples=13, seed=3)["loss"]
    system = dither.load(runs[0.02, 3])
    assert system.task.size("test") == 5
    assert stored.metrics()["loss"] == pytest.approx(loss)
    # Those of another step are not the ones of the finished run.
    facts = {"step": 3, "seed": 3, "batch_size": 8, "repeats": 1}
    write_per_sample(runs[0.02, 3], "test", {"loss": np.ones((2, 5))}, **facts)
    again = dither.compare(list(runs.values()), split="test")
    assert again.rows[0].scores.mean == pytest.approx(table.rows[0].scores.mean)

    monkeypatch.setattr("dither.engine.runs.evaluate_run.evaluate", None)
    words = ["compare", *map(str, runs.values()), "--split", "test", "--json"]
    assert main(words) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["mean"] == pytest.approx(table.rows[0].scores.mean)
    assert second["low"] < second["difference"] < second["high"]
    assert codes(
        lambda: dither.compare(list(runs.values()), metric="valid/loss", split="test")
    ) == {"unknown-metric"}


def test_options_of_an_evaluation_leave_the_values_of_the_test_split(start):
    run = start("train.steps=1")[1]
    assert main(["evaluate", str(run), "--split", "test", "evaluate.samples=2"]) == 0
    assert read_per_sample(run, "test") is None
    assert main(["evaluate", str(run), "--split", "test"]) == 0
    assert read_per_sample(run, "test").samples == 5


def test_exports_are_measured_once_and_compared_as_their_runs(
    runs, tmp_path, monkeypatch
):
    paths = [runs[0.02, 3], runs[0.1, 3]]
    exports = []
    for number, path in enumerate(paths):
        exports.append(tmp_path / f"export-{number}")
        export_run(path, exports[-1])
    folder = tmp_path / "measured"
    table = dither.compare(exports, runs=folder)
    expected = dither.compare(paths)
    assert [row.name for row in table.rows] == ["lr=0.02", "lr=0.1"]
    effects = [each.rows[1].effect for each in (table, expected)]
    assert effects[0].difference == pytest.approx(effects[1].difference)
    assert effects[0].low == pytest.approx(effects[1].low)

    monkeypatch.setattr("dither.engine.runs.measure_run.evaluate", None)
    mixed = dither.compare([exports[0], runs[0.02, 4], paths[1]], runs=folder)
    assert [row.planned for row in mixed.rows] == [2, 1]
    mixed = dither.compare([exports[0], paths[1]], runs=folder)
    assert mixed.rows[1].effect.difference == pytest.approx(effects[0].difference)
    # The measurement has the weights of the export.
    of_test = dither.compare(exports, split="test", runs=folder)
    assert of_test.rows[0].scores.mean == pytest.approx(
        dither.compare(paths, split="test").rows[0].scores.mean
    )
    other = tmp_path / "other"
    shutil.copytree(exports[1], other)
    text = (other / "experiment.toml").read_text()
    (other / "experiment.toml").write_text(text.replace("toy-words", "toy-texts"))
    assert codes(lambda: dither.compare([*exports, other])) == {"not-comparable"}
    with (exports[0] / "weights.safetensors").open("r+b") as file:
        file.write(b"damage")
    assert codes(lambda: dither.compare(exports, runs=folder)) == {"damaged-checkpoint"}


@pytest.mark.parametrize("kind", ["export", "run"])
def test_arms_of_a_trained_model_differ_in_sampling_only(start, tmp_path, kind):
    target = start("train.steps=1", f"compare.over.{LR}=[0.1, 0.2]")[1]
    if kind == "export":
        export_run(target, tmp_path / "export")
        target = tmp_path / "export"
    request = Request(target, ["evaluate.samples=5"], options={"seeds": 2})
    over = list(arm_layers(["sampler.steps=2,3"], ()))
    document, plugins = replace(request, layers=over).open(["engine"])
    _, arms, _ = check_comparison(document, plugins)
    train = arms[1][1].experiment.train
    assert (train.steps, train.start_from) == (0, str(target))
    assert arms[1][1].experiment.evaluate.samples == 5
    learning_rates = list(arm_layers([f"{LR}=0.1,0.2"], ()))
    assert codes(lambda: replace(request, layers=learning_rates).open([])) == {"misfit"}
    wrong = replace(request, changes=["train.steps=3"])
    assert codes(lambda: wrong.open([])) == {"invalid-value"}
    assert codes(lambda: replace(request, removals=["task"]).open([])) == {"usage"}


@pytest.mark.slow
def test_a_trained_model_is_sampled_without_training(start, tmp_path, capfd):
    trained = start("train.steps=4")[1]
    export_run(trained, tmp_path / "export")
    words = ["--over", "sampler.steps=1,3", "--seeds", "1", "--split", "test"]
    words += ["--metric", "test/loss", "--runs", str(tmp_path / "compared")]
    assert main(["compare", str(tmp_path / "export"), *words]) == 0
    (path,) = (tmp_path / "compared").glob("compare-*")
    capfd.readouterr()
    assert main(["compare", str(path), "--split", "valid", "--json"]) == 0
    records = json.loads(capfd.readouterr().out)
    assert [record["calls"] for record in records] == [2, 4]
    assert [record["steps"] for record in records] == [0, 0]
    # Every point has the weights of the export, those that measure another one, too.
    for split in ("valid", "test"):
        expected = evaluate_run(trained, split=split)[0]["loss"]
        for run in path.glob("*/*/summary.json"):
            stored = read_per_sample(run.parent, split)
            assert stored.metrics()["loss"] == pytest.approx(expected)
