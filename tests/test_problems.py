"""Problems: parts that do not fit each other, sizes that no machine has, and mistakes in files."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.registry import Catalog, Options, Slot
from dither.registry.config.document import Document
from dither.registry.config.errors import Origin, Problem, dotted
from dither.registry.config.validation import PATTERN_MESSAGE, validate
from dither.registry.kinds import LossSpec

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
TEXT = EXPERIMENTS / "language_model" / "attention.toml"
PLANS = EXPERIMENTS / "bubble_diagram" / "quick.toml"
REGIONS = EXPERIMENTS / "get_region" / "quick.toml"
SEEDS = [
    ("get_region/seed.toml", 128_767_003, 4.41e12),
    ("bubble_diagram/seed_small.toml", 1_281_564, 11.6e9),
    ("language_model/seed.toml", 79_245_137, 11.24e12),
]
SHORT = 'process.schedule={use="geometric",sigma_min=1e-3,sigma_max=1.0}'
MISFITS = [
    (REGIONS, ["process=absorbing"], "process", "task"),
    (TEXT, ["model.embedding=regions"], "model.embedding", "process"),
    (TEXT, ["model.embedding=graph"], "model.embedding", "process"),
    (PLANS, ["model.head=features"], "model.head", "process"),
    (PLANS, ["loss=mse"], "loss", "process"),
    (TEXT, ["model.block.heads=3"], "model.block.heads", "width"),
    (
        TEXT,
        ["model.block.heads=128"],
        "model.block.heads",
        "width",
    ),  # rope requires an even width of heads
    (
        TEXT,
        ['model.condition={use="level",frequencies=3,freq_shift=1}'],
        "model.condition.frequencies",
        "width",
    ),
    (REGIONS, ['loss={use="mse",min_snr=5}'], "loss.min_snr", "process"),
    (
        TEXT,
        ["process=uniform", "loss=score-entropy", "sampler=first-hitting"],
        "sampler",
        "process",
    ),
    (
        TEXT,
        ["sampler=blocks"],
        "sampler",
        "model",
    ),  # a cache requires block-causal attention
    (
        PLANS,
        ['sampler={use="blocks",approximate=true}'],
        "sampler",
        "task",
    ),  # and one field
    (
        TEXT,
        ["model.block_size=65", 'sampler={use="blocks",size=65}'],
        "model.block_size",
        "task",
    ),
    (TEXT, ["model.block_size=8"], "sampler", "block_size"),
    (
        TEXT,
        ["model.block_size=8", 'sampler={use="blocks",size=8,stop=true}'],
        "sampler.stop",
        "task",
    ),
    (
        REGIONS,
        ["process=gaussian", SHORT],
        "process.schedule",
        None,
    ),  # the schedule ends too early
    (REGIONS, ["process.group=motifs"], "process.group", "given"),
    (REGIONS, ["task.standardise=true", "loss=poisson"], "loss", "standardise"),
    (
        REGIONS,
        ["task.standardise=true", "model.head=softplus"],
        "model.head",
        "standardise",
    ),
    (TEXT, ["train.accumulate=5"], "train.accumulate", "batch_size"),
    (PLANS, ["train.gather='bfloat16'", "train.strategy='fsdp'"], "train.gather", None),
    (
        PLANS,
        ["train.optimizer='adamw-8bit'", "train.strategy='fsdp'"],
        "train.optimizer",
        "strategy",
    ),
    (
        PLANS,
        ["train.gather='bfloat16'", "train.precision='bfloat16'"],
        "train.gather",
        None,
    ),
]


@pytest.mark.parametrize(
    ("file", "changes", "key", "other"), MISFITS, ids=lambda value: str(value)[-60:]
)
def test_incompatible_components_name_both_places(file, changes, key, other, refusal):
    caught = refusal(load_experiment, file, changes)
    found = {".".join(map(str, problem.path)): problem for problem in caught.problems}
    assert key in found, str(caught)
    problem = found[key]
    assert problem.code in (
        "misfit",
        "out-of-range",
        "process-mismatch",
        "signal-left-at-end",
        "no-effect",
    )
    assert problem.origin is not None
    if other is not None:
        assert any(other in word for word, _ in problem.related), problem.related


@pytest.mark.parametrize(
    ("file", "changes", "path", "message"),
    [
        (
            TEXT,
            ["process=uniform", "loss=score-entropy", SHORT],
            ("process", "schedule"),
            "37 % of the tokens would",
        ),
        (
            TEXT,
            ['sampler={use="blocks",approximate=true}'],
            ("sampler", "approximate"),
            "approximate",
        ),
        (
            REGIONS,
            ["task.largest=window"],
            ("task", "largest"),
            "largest has no effect",
        ),
        (
            TEXT,
            ["train.lora={rank=2,on=['mlp']}"],
            ("train", "lora"),
            "random weights",
        ),
    ],
)
def test_valid_options_that_are_likely_a_mistake_are_warned_about(
    file, changes, path, message
):
    assert not list(load_experiment(file).experiment.warn())
    (warning,) = load_experiment(file, changes).experiment.warn()
    assert warning.path == path
    assert message in warning.message


def test_a_model_larger_than_the_memory_is_refused_before_the_run(
    monkeypatch, cli, tmp_path
):
    monkeypatch.setattr(
        "dither.engine.training.model_summary.total_memory", lambda: 2**30
    )
    changes = ["model.width=9000000000000000000", "model.block.heads=1"]
    assert "model: " in (
        message := cli("run", str(PLANS), *changes, "--runs", str(tmp_path), code=2).err
    )
    assert "[out-of-memory]" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "parameters", "step"), SEEDS)
def test_validate_deep_counts_parameters_and_flops(name, parameters, step, cli):
    deep = json.loads(cli("validate", str(EXPERIMENTS / name), "--deep", "--json").out)[
        "deep"
    ]
    look = deep["shapes"]
    rows = {row["name"]: row for row in look["rows"]}
    assert deep["parameters"] == look["parameters"] == parameters
    outermost = [row for row in rows.values() if "." not in row["name"]]
    assert sum(row["parameters"] for row in outermost) == parameters
    assert sum(row["flops"] for row in outermost) == look["forward"]
    assert 2.8 * look["forward"] < look["step"] <= 3 * look["forward"]
    assert look["step"] == pytest.approx(step, rel=0.01)
    e = load_experiment(EXPERIMENTS / name).experiment
    space = e.process.facts(e.task.space()).space
    assert look["output"][:2] == [e.train.batch_size, space.length]
    assert rows["head"]["output"] == look["output"]
    assert rows["blocks"]["part"] == 'block "adaln-zero"'


@pytest.mark.slow
def test_validate_deep_prints_one_page_that_counts_every_part_of_a_batch(
    cli, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    deep, parts = ["validate", str(PLANS), "--deep"], ["--set", "train.accumulate=4"]
    page = cli(*deep, *parts).out
    for words in (
        "209,212",
        'embedding "graph"',
        "16 x 36 x 64",
        "training step",
        "optimizer state",
    ):
        assert words in page
    steps = []
    for changes in ([], parts):
        steps.append(
            json.loads(cli(*deep, "--json", *changes).out)["deep"]["shapes"]["step"]
        )
    assert steps[0] == steps[1]


def test_a_part_that_fails_is_named_without_our_traceback(monkeypatch, cli):
    def forward(self, x, c, **options):
        raise ValueError("the shapes of my block are wrong")

    monkeypatch.setattr("dither.core_blocks.blocks.AdaLNZeroBlock.forward", forward)
    said = cli("validate", str(PLANS), "--deep", code=2).err
    assert (
        'block "adaln-zero" cannot be run on a batch: ValueError: the shapes of my block are wrong'
        in said
    )
    assert "test_problems.py:" in said
    assert "Traceback" not in said


QUICK = (Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml").read_text(
    encoding="utf-8"
)
LOSS = 'loss = { use = "masked-ce", training = "plain" }'


def line_of(start: str) -> int:
    """Return the number of the line of the quick experiment that contains some text."""
    return next(n for n, line in enumerate(QUICK.splitlines(), 1) if start in line)


@pytest.fixture
def validate_edited(tmp_path, monkeypatch, cli):
    """Return the output of `dither validate` for quick.toml with one piece of text replaced."""
    monkeypatch.chdir(tmp_path)

    def run(old: str = "", new: str = "", *arguments: str) -> str:
        assert old in QUICK
        (tmp_path / "e.toml").write_text(
            QUICK.replace(old, new) if old else QUICK, encoding="utf-8"
        )
        printed = cli("validate", "e.toml", *arguments, code=2)
        assert "Traceback" not in printed.err
        return printed.err + printed.out

    return run


@pytest.fixture
def problems_of(validate_edited):
    """The same as records of the JSON output."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        return json.loads(
            validate_edited(*(arguments or ("", "")), "--format", "json")
        )["problems"]

    return run


def under_carets(text: str) -> list[str]:
    lines = text.splitlines()
    return [
        above[match.start(1) : match.end(1)]
        for above, line in pairwise(lines)
        if (match := re.search(r"\| *(\^+)$", line))
    ]


@pytest.mark.parametrize(
    ("old", "new", "code", "path", "at_fault"),
    [
        ("depth = 3", "dpeth = 3", "unknown-key", "model.dpeth", "dpeth"),
        ("depth = 3", "depth = 0", "out-of-range", "model.depth", "0"),
        ("depth = 3", "depth = true", "wrong-type", "model.depth", "true"),
        ("depth = 3", 'final = "adalm"', "unknown-value", "model.final", '"adalm"'),
        ("lr = 1e-2", "lr = nan", "out-of-range", "train.optimizer.lr", "nan"),
        ("lr = 1e-2", 'betas = [0.9, "x"]', "wrong-type", "train.optimizer.betas[1]", '"x"'),
        (LOSS, 'loss = "absorbing"', "unknown-component", "loss", '"absorbing"'),
        ('"adaln-zero"', '"adaln-zer"', "unknown-component", "model.block", '"adaln-zer"'),
        ('"adaln-zero"', '"adaln-zero@9"', "revision-mismatch", "model.block", '"adaln-zero@9"'),
        ("heads = 4", "heads = 7", "misfit", "model.block.heads", "7"),
        ('name = "bubble-quick"', 'name = "a/b"', "invalid-value", "name", '"a/b"'),
        ('name = "bubble-quick"', "name = { a = 1 }", "wrong-type", "name", "{ a = 1 }"),
        ('name = "bubble-quick"', 'extends = "nowhere.toml"', "file-not-found", "extends", '"nowhere.toml"'),
        ("[train]", "[trian]", "unknown-key", "trian", "trian"),
        ("steps = 1000", 'steps = "1100', "syntax-error", "", ""),
        ("[sample]", '[sample]\n"日本" = "日本"', "unknown-key", 'sample."日本"', '"日本" ='),
    ],
)  # fmt: skip
def test_each_mistake_has_a_code_a_path_and_a_caret(
    validate_edited, problems_of, old, new, code, path, at_fault
):
    problem = problems_of(old, new)[0]
    assert (problem["code"], problem["path"]) == (code, path)
    assert problem["file"] == "e.toml"
    text = validate_edited(old, new)
    assert f"[{code}]\n  --> e.toml:{problem['line']}:{problem['column']}\n" in text
    assert under_carets(text)[0] == at_fault, text


def test_all_problems_are_reported_in_line_order(problems_of):
    found = problems_of(
        "[train]\nsteps = 1000",
        '[train]\nsteps = "many"\nstpes = 1\nbatch = 2',
        "--set",
        "seed=-1",
    )
    assert [problem["code"] for problem in found] == [
        "out-of-range",
        "wrong-type",
        "unknown-key",
        "unknown-key",
    ]
    lines = [problem["line"] for problem in found if problem["line"]]
    assert lines == sorted(lines)
    assert sum("accepted: " in (problem.get("help") or "") for problem in found) == 1


def test_overrides_are_the_origin_of_their_problems(problems_of):
    found = problems_of("", "", "--set", "train.stpes=3", "--unset", "loss")
    assert {(p["code"], p["path"], p["file"]) for p in found} == {
        ("unknown-key", "train.stpes", "--set train.stpes=3"),
        ("missing-key", "loss", "--unset loss"),
    }


def test_missing_keys(problems_of, cli):
    (problem,) = problems_of(LOSS, 'los = "masked-ce"')
    assert problem["code"] == "unknown-key"
    assert 'did you mean "loss"' in problem["help"]
    Path("empty.toml").write_text("")
    (problem,) = json.loads(
        cli("--format", "json", "validate", "empty.toml", code=2).out
    )["problems"]
    assert (problem["code"], problem["file"]) == ("missing-key", "empty.toml")
    assert re.search(r'process = "..."  # absorbing, .* or uniform', problem["help"])


class Inner(Options):
    size: int
    """Size."""
    word: str = Field(
        "a",
        pattern="^a+$",
        json_schema_extra={PATTERN_MESSAGE: "one or more letters a"},
    )


class Wide(Options):
    number: int | Annotated[list[int], Field(max_length=3)] | None = None
    spec: Slot[LossSpec] | None = None
    tables: dict[str, Inner] = {}
    many: list[Inner] = []


@pytest.mark.parametrize(
    ("text", "path", "code", "expected"),
    [
        ('number = "x"', "number", "wrong-type", "an integer or a list"),
        ("number = [1, 2.5]", "number[1]", "wrong-type", "an integer"),
        ("number = [1, 2, 3, 4]", "number", "out-of-range", "at most 3 elements"),
        ("spec = true", "spec", "missing-key", "the name of a loss"),
        ("tables.x = { siz = 1 }", "tables.x.siz", "unknown-key", ""),
        ("tables.x = { size = true }", "tables.x.size", "wrong-type", "an integer"),
        ("many = [{ size = 1 }, { size = 1, wrod = 'a' }]", "many[1].wrod", "unknown-key", ""),
        ("many = [{ size = 1, word = 'b' }]", "many[0].word", "invalid-value", "one or more letters a"),
    ],
)  # fmt: skip
def test_unions_and_inner_tables(tmp_path, text, path, code, expected, refusal):
    file = tmp_path / "e.toml"
    file.write_text(text)
    (problem,) = refusal(validate, Wide, Document.load(file), Catalog()).problems
    assert (dotted(problem.path), problem.code, problem.origin.line) == (path, code, 1)
    assert expected in problem.message
    if code == "unknown-key":
        assert problem.help.endswith("accepted: size, word")


def test_control_characters_are_not_printed():
    problem = Problem(
        "odd \x1b[31m",
        ("a.b", "\x1b]0;x\x07", 3),
        Origin.within("f", "x\ta = '\x1b[0m'", 2, 3),
    )
    text = str(problem)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert '"a.b"."' in text


def test_json_output_is_one_document(problems_of, validate_edited, cli):
    (problem,) = problems_of("heads = 4", "heads = 7, hedas = 1")
    assert (problem["path"], problem["file"], problem["line"], problem["given"]) == (
        "model.block.hedas", "e.toml", line_of("heads = 4"), 1,
    )  # fmt: skip
    assert problem["column"] > 1
    related = problems_of(LOSS, 'loss = "mse"')[0]["related"]
    assert related[0]["line"] == line_of("process = ")
    document = json.loads(
        cli("--format", "json", "validate", "e.toml", "--set", "loss=masked-ce").out
    )
    assert document["valid"] is True
    assert document["problems"] == []


@pytest.mark.parametrize(
    "value", ["1e999", "1979-05-27", '"' + "x" * 5000 + '"', "{ a = { b = nan } }"]
)
def test_json_output_represents_any_value(problems_of, value):
    assert (
        len(json.dumps(problems_of("depth = 3", f"depth = {value}")[0]["given"])) < 300
    )


def test_github_annotations(validate_edited):
    line = line_of("depth = 3")
    text = validate_edited("depth = 3", "dpeth = 3", "--format", "github")
    assert text.startswith(
        f"::error file=e.toml,line={line},endLine={line},col=1,endColumn=6::model.dpeth: "
    )
    assert text.count("\n") == 1
    text = validate_edited("", "", "--set", "train.steps=-1", "--format", "github")
    assert text.startswith("::error::train.steps: ")
    assert text.strip().endswith("(--set train.steps=-1)")


@pytest.mark.parametrize(
    "name", ["a\\u0000.py", "./round.py", "./folder.py", "../elsewhere.py"]
)
def test_unreadable_plugin_files(validate_edited, problems_of, tmp_path, name):
    (tmp_path / "round.py").symlink_to("round.py")
    (tmp_path / "folder.py").mkdir()
    edit = 'name = "bubble-quick"', f'plugins = ["{name}"]'
    assert problems_of(*edit)[0]["path"] == "plugins[0]"
    assert under_carets(validate_edited(*edit)) == [f'"{name}"']


def test_unknown_options_are_reported_in_the_selected_format(validate_edited, capsys):
    assert "'text', 'json', 'github'" in validate_edited("", "", "--format", "xml")
    assert main(["validate", "e.toml", "--bogus", "--format", "json"]) == 2
    assert "--bogus" in json.loads(capsys.readouterr().out)["problems"][0]["message"]


def test_traceback_option(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("import nothing_of_this_name\n")
    Path("e.toml").write_text('plugins = ["./broken.py"]\n' + QUICK)
    text = cli("validate", "e.toml", "--traceback", code=2).err
    assert 'broken.py", line 1' in text
    assert "nothing_of_this_name" in text.rpartition("error: ")[2]
    assert "Traceback" not in cli("validate", "e.toml", code=2).err
