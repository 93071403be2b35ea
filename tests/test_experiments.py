"""The experiment files of this repository; mistakes are found by `validate`, or before the first step."""

from pathlib import Path

import pytest
import torch

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused
from dither.registry.config.validation import dump, validate
from dither.testing.simulated_gpu import DeviceTrace

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").rglob("*.toml"))
NEEDED = {
    "text8": ("file-not-found", "paths"),
    "owt": ("not-prepared", "path"),
    "lm1b": ("not-prepared", "path"),
    "dit_s_2": ("file-not-found", "path"),
    "dit_xl_2": ("file-not-found", "path"),
    "sit_xl_2": ("file-not-found", "path"),
}
"""Experiments whose data a user must provide: code and option of the problem without them."""


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_file_is_valid_and_documented(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = []
    if path.stem in NEEDED:
        code, option = NEEDED[path.stem]
        (problem,) = problems(file=path)
        assert (problem.code, problem.path[:3]) == (code, ("task", "data", option))
        missing = ["task.data=stdlib-text", "task.tokenizer=bytes"]
        if path.parent.name == "images":
            missing = ["task.data=digits"]
    loaded = load_experiment(path, missing)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    again = validate(
        type(loaded.experiment), type(loaded.document)(tree), loaded.plugins.catalog
    )
    assert again == loaded.experiment
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert (
        f"python -m experiments.run experiments/{path.parent.name}/{path.name}" in text
    )
    assert "Result" in text


COUNTS = {
    # document 000, table 1 (whose 217,856 should be 218,112); the embedding has two extra tokens
    "get_region/seed.toml": {
        "embedding": 218_112 + 2 * 768, "condition": 787_968, "blocks.0.": 10_628_352, "head": 217_627,
    },
    # document 001, section 6
    "bubble_diagram/seed_small.toml": {
        "embedding": 1920 + 1664 + 2304, "condition": 49_408, "blocks.": 1_189_376, "head": 1935 + 1677,
    },
    # document 004
    "language_model/seed.toml": {
        "embedding": 25_731_584, "condition": 49_408, "blocks.0.": 4_591_616, "head": 25_781_841,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), COUNTS.items())
def test_parameter_counts_of_each_module(name, expected):
    experiment = load_experiment(ROOT / "experiments" / name).experiment
    with torch.device("meta"):
        model = experiment.model.build(
            experiment.process.facts(experiment.task.space()).space
        )
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert {
        part: sum(n for name, n in sizes.items() if name.startswith(part))
        for part in expected
    } == expected


QUICK = ROOT / "experiments/bubble_diagram/quick.toml"


@pytest.mark.parametrize(
    "change",
    [
        "bubble_diagram/quick",
        "bubble_diagram/quick process.estimator='mask-count' loss={use='masked-ce',reduction='sample'}",
        "get_region/quick",
        "language_model/quick",
        "language_model/attention process={use='absorbing',predict='score'} loss='score-entropy' task.length=256",
        "language_model/attention process={use='uniform',schedule='cosine'} loss='score-entropy'",
        "language_model/blocks",
        "get_region/seed model.width=16 model.depth=2 model.block.heads=2 task.regions=300",
        "language_model/attention task.tokenizer='gpt2' task.length=256 model.width=16",
    ],
)
@pytest.mark.slow
def test_host_synchronisations_on_a_simulated_gpu(change):
    """A training step has none, with any optimizer: neither values nor shapes are read back.

    So shapes are constant; the CPU merges and skips positions and reaches the same loss.
    """
    name, *overrides = change.split()
    if name.startswith("bubble"):
        overrides.append("task.data.train=8")
    overrides += [
        "train.batch_size=2",
        f"train.optimizer={'muon' if 'blocks' in name else 'adamw'}",
    ]
    overrides += ["train.precision=float32", "train.device=cpu"]
    experiment = load_experiment(
        ROOT / "experiments" / f"{name}.toml", overrides
    ).experiment
    expected = float(
        Trainer(Diffusion.build(experiment).train(), experiment.train, 0).advance()[
            "loss"
        ]
    )
    system, shapes = Diffusion.build(experiment).train(), []
    for block in system.model.blocks:
        mixer = block.depthwise if hasattr(block, "depthwise") else block.attention
        for part in (mixer, block.mlp):
            part.register_forward_pre_hook(
                lambda _, arguments: shapes[-1].append(arguments[0].shape)
            )
    with DeviceTrace() as trace:
        trainer = Trainer(trace.move(system), experiment.train, 0)
        for step in range(3):
            trace.reset()
            shapes.append([])
            loss = trainer.advance()["loss"]
            assert step or float(loss) == pytest.approx(expected, rel=1e-5)
        # The simulated device has no fused optimizer, which cancels a step by itself.
        waits = [place for _, place in trace.syncs if "nan_guard" not in place]
        assert not waits
        assert shapes[0] == shapes[1] == shapes[2]
        assert trace.kernels > 100


@pytest.mark.parametrize(
    "name", ["get_region/seed", "bubble_diagram/seed_small", "language_model/seed"]
)
@pytest.mark.slow
def test_models_of_the_seed_files_compile_to_one_graph(name):
    """Without graph breaks, so that norms, modulation and RoPE are fused, and without recompiling as masks vary."""
    from torch._dynamo.testing import CompileCounter

    small = [
        "model.width=16",
        "model.depth=2",
        "model.block.heads=2",
        "train.precision=float32",
    ]
    data = {
        "g": "task.regions=200",
        "b": "task.data.train=8",
        "l": "task.tokenizer=bytes",
    }[name[0]]
    experiment = load_experiment(
        ROOT / f"experiments/{name}.toml", [*small, data]
    ).experiment
    system = Diffusion.build(experiment).train()
    counter = CompileCounter()
    model = torch.compile(system.model, backend=counter, fullgraph=True)
    for rows in range(0, 8, 2):
        clean, t, noised = system.prepare(system.task.batch("train", [rows, rows + 1]))
        system.call(model, noised.state, t, clean).sum().backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("bubble_diagram", 0),
        ("get_region", 1),
        pytest.param("language_model", 2, marks=pytest.mark.slow),
    ],
)
def test_host_synchronisations_of_metrics_on_a_simulated_gpu(name, waits):
    with DeviceTrace() as trace:
        system = trace.move(
            Diffusion.build(
                load_experiment(ROOT / f"experiments/{name}/quick.toml").experiment
            )
        )
        counts = [
            (evaluate(system, samples, 4), trace.syncs.total())[1]
            for samples in (4, 4, 8)
        ]
    assert counts[2] - 2 * counts[1] + counts[0] == waits, (
        "a batch more; the first evaluation copies constants"
    )


@pytest.mark.parametrize(
    "blocks", [(), ("model.block_size=4", 'sampler={use = "blocks", size = 4}')]
)
def test_loss_and_gradient_norm_do_not_depend_on_accumulation(blocks):
    """Also where micro-batches have different numbers of weighted positions."""
    metrics = []
    small = (
        "model.width=16",
        "model.depth=1",
        "model.block.heads=2",
        "model.block.dropout=0.0",
    )
    data = (
        "task.data.length=20000",
        "task.data.held=4096",
        "train.batch_size=8",
        "train.device=cpu",
    )
    for accumulate in (1, 4):
        changes = (*small, *data, *blocks, f"train.accumulate={accumulate}")
        experiment = load_experiment(
            ROOT / "experiments/language_model/markov.toml", changes
        ).experiment
        trainer = Trainer(
            Diffusion.build(experiment), experiment.train, experiment.seed
        )
        metrics.append(
            [value.item() for _ in range(2) for value in trainer.advance().values()]
        )
    assert metrics[1] == pytest.approx(metrics[0], rel=3e-6)


def problems(*overrides: str, file=QUICK):
    with pytest.raises(Refused) as caught:
        load_experiment(file, overrides)
    return caught.value.problems


def test_trackers_and_metrics_may_not_be_listed_twice():
    (problem,) = problems("tracking.use=['tensorboard', 'tensorboard']")
    assert (problem.code, problem.path) == ("duplicate", ("tracking", "use", 1))


def test_file_plugins_are_relative_to_the_experiment_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dither.registry import hookimpl, Misfit\n"
        "@hookimpl\n"
        "def check_experiment(experiment):\n"
        "    yield Misfit('at most 100 steps', ('train', 'steps'), code='site-policy')\n"
    )
    (tmp_path / "e.toml").write_text(f'extends = "{QUICK}"\nplugins = ["mine.py"]\n')
    (problem,) = problems(file=tmp_path / "e.toml")
    assert (problem.code, problem.path) == ("site-policy", ("train", "steps"))
    (tmp_path / "e.toml").write_text(f'extends = "{QUICK}"\nplugins = ["yours.py"]\n')
    (problem,) = problems(file=tmp_path / "e.toml")
    assert (problem.origin.line, problem.origin.column) == (2, 12)


REGIONS = f"""
extends = "{ROOT}/experiments/get_region/quick.toml"
[task]
regions = 2
span = 10
data = {{ use = "region-file", path = "table.csv" }}
[model]
width = 8
depth = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, text_experiment):
    """A folder with an experiment on a text, and one on regions."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 50)
    (tmp_path / "text.toml").write_text(text_experiment("a.txt", tokenizer="chars"))
    (tmp_path / "regions.toml").write_text(REGIONS)
    rows = [
        f"chr{c},{p},{p + 1},1,0.{p},0.5" for c in (1, 2, 3) for p in range(0, 400, 20)
    ]
    (tmp_path / "table.csv").write_text(
        "\n".join(["chromosome,start,end,open:K562,A,B", *rows, ""])
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, table, line, file="text.toml"):
    """Put a line into a table of the experiment, in place of one with the same key; return its number."""
    lines = (folder / file).read_text().splitlines()
    lines = [other for other in lines if other.split(" = ")[0] != line.split(" = ")[0]]
    lines += [] if f"[{table}]" in lines else [f"[{table}]"]
    at = lines.index(f"[{table}]") + 1
    (folder / file).write_text("\n".join([*lines[:at], line, *lines[at:]]))
    return at + 1


@pytest.mark.parametrize(
    ("table", "line", "code"),
    [
        ("train", "buckets = true", "misfit"),
        ("train", 'start_from = "nowhere"', "file-not-found"),
        ("train", 'freeze = ["heads.*"]', "unknown-value"),
        ("train.lora", 'on = ["attentoin"]', "unknown-value"),
        # These need the data.
        ("task", "length = 5000", "no-samples"),
        ("task", 'prompt = "\u2603"', "unknown-value"),
        ("task", 'tokenizer = "bpe:90000"', "out-of-range"),
        ("evaluate", 'best = "losss"', "unknown-metric"),
        ("task", "span = 10", "no-samples"),
    ],
)
def test_mistakes_are_found_before_the_first_step(folder, cli, table, line, code):
    file = "regions.toml" if "span" in line else "text.toml"
    number = write(folder, table, line, file)
    commands = ["validate", "run"] if table.startswith("train") else ["run"]
    for command in commands:
        captured = cli(command, file, code=2)
        assert f"[{code}]" in captured.err
        assert f"{file}:{number}:" in captured.err
        assert "step 1" not in captured.out
    assert not [
        path for path in folder.glob("runs/*/metrics.jsonl") if path.read_text()
    ]


def test_buckets_with_a_batch_larger_than_the_data(folder, cli):
    data = '[task.data]\nuse = "procedural-plans"\ntrain = 100\nvalid = 20\ntest = 20'
    (folder / "plans.toml").write_text(
        f'extends = "{QUICK}"\n{data}\n[train]\nbatch_size = 500\nbuckets = true\n'
    )
    message = cli("run", "plans.toml", code=2).err
    assert "[no-samples]" in message
    assert "plans.toml:9:" in message


def test_a_run_does_without_the_weights_that_it_started_from(folder):
    write(folder, "evaluate", 'best = "nats_per_token"')
    assert main(["run", "text.toml"]) == 0
    (first,) = folder.glob("runs/*-*")
    write(folder, "train", f'start_from = "{first.rename(folder / "first")}"')
    assert main(["run", "text.toml", "--runs", "more"]) == 0
    (folder / "first").rename(folder / "gone")
    (second,) = folder.glob("more/*-*")
    assert main(["evaluate", str(second)]) == 0
    assert main(["run", "--resume", str(second), "--set", "train.steps=3"]) == 0


def test_mistakes_below_a_wrong_task_are_reported_at_once(folder, refusal):
    for table, line in (
        ("task", 'prompt = "much too long"'), ("model", 'block = { use = "adaln-zero", heads = 7 }'),
        ("train", "buckets = true"), ("train", "accumulate = 3"),
    ):  # fmt: skip
        write(folder, table, line)
    expected = {"task.prompt", "model.block.heads", "train.buckets", "train.accumulate"}
    for changes in (
        [],
        [
            "task.use=languages",
            "train.buckets=false",
            "process=uniform",
            "sampler=first-hitting",
        ],
    ):
        refused = refusal(load_experiment, folder / "text.toml", changes)
        assert {
            ".".join(map(str, problem.path)) for problem in refused.problems
        } == expected
        expected = {"task", "model.block.heads", "loss", "sampler", "train.accumulate"}
