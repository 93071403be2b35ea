"""Constraints in an experiment file, and in a file of their own for a run that is there already."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dither.engine.cli import main
from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.formats.jsonl import plan_line
from dither.tasks.bubble_diagram.plans import encode
from dither.tasks.bubble_diagram.validity import is_buildable
from dither.tasks.bubble_diagram.vocabulary import pair_index, pairs

QUICK = Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml"
TINY = [
    "model.width=16", "model.depth=1", "train.steps=2", "train.batch_size=8", "evaluate.samples=4", "sample.count=1",
    "task.data={use='procedural-plans', train=64, valid=16, test=8}", "sampler='guided'",
    "task.order=given", "task.orientation=given",
    "task.constraints={counts={Kitchen=0}}",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    assert main(["run", str(QUICK), *TINY, "--runs", str(runs)]) == 0
    (found,) = [path for path in runs.glob("*-*")]
    return found


@pytest.fixture
def sample(run, tmp_path):
    def sample(constraints, *options):
        (tmp_path / "c.toml").write_text(constraints)
        words = [
            "--constraints",
            str(tmp_path / "c.toml"),
            "--out",
            str(tmp_path / "out"),
            "--no-pictures",
        ]
        assert main(["sample", str(run), *words, *options]) == 0
        return load_file(tmp_path / "out/samples.safetensors")["samples"]

    return sample


def test_a_file_of_constraints_takes_the_place_of_those_of_the_run(
    run, sample, tmp_path, capsys
):
    own = load_file(next((run / "samples").rglob("samples.safetensors")))["samples"]
    assert not (own[:, :8] == 2).any()
    constraints = """
        sampler = { use = "guided", particles = 2 }
        [task.constraints]
        rooms = 6
        types = { 0 = "LivingRoom" }
        counts = { Kitchen = 2 }
        """
    samples = sample(constraints, "-n", "3", "--no-metrics")
    assert [file.name for file in (tmp_path / "out").iterdir()] == [
        "samples.safetensors"
    ]
    assert samples.shape[0] == 3
    assert (samples[:, 0] == 0).all()
    assert ((samples[:, :8] == 2).sum(1) == 2).all()
    assert (samples[:, 6:8] == 14).all()
    printed = capsys.readouterr().out
    assert "model_calls_per_sample" in printed
    assert "level_" not in printed


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [
                "process={use='uniform'}",
                "loss='score-entropy'",
                "sampler={use='analytic', steps=3}",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [
                "process={use='marginal', schedule='log-linear'}",
                "loss='flow-kl'",
                "sampler={use='ancestral', steps=3}",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [
                "process={use='hybrid', schedule='log-linear'}",
                "loss='flow-kl'",
                "sampler={use='ancestral', steps=3}",
            ],
            marks=pytest.mark.slow,
        ),
        [
            "process={use='absorbing', schedule='kappa'}",
            "sampler={use='discrete-flow', steps=3, corrector=0.5}",
        ],
    ],
    ids=["uniform", "marginal", "hybrid", "discrete-flow"],
)
@pytest.mark.slow
def test_doors_areas_and_outlines_with_other_processes(parts, tmp_path):
    fields = ["task.doors=true", "task.areas=true", "task.boundary=true"]
    outline = "model.condition={use='sum', parts=[{use='level'}, {use='outline'}]}"
    assert (
        main(
            [
                "run",
                str(QUICK),
                *TINY[:7],
                *fields,
                outline,
                *parts,
                "--runs",
                str(tmp_path),
            ]
        )
        == 0
    )
    (summary,) = tmp_path.glob("*-*/summary.json")
    metrics = json.loads(summary.read_text())["metrics"]
    for name in ("nodes", "edges", "doors", "areas"):
        assert 0 < metrics["valid"][f"{name}_nats_per_graph"] < float("inf")
    assert {"reachable", "door_js", "area_js", "outline_iou"} <= metrics[
        "sample"
    ].keys()
    (samples,) = tmp_path.glob("*-*/samples/**/samples.safetensors")
    x = load_file(samples)["samples"]
    assert x.shape[1] == 80
    for start, stop, ids in ((0, 8, 13), (8, 36, 11), (36, 72, 2), (72, 80, 12)):
        assert (x[:, start:stop] != ids).all(), "no MASK is left"


def test_a_plan_is_edited(run, tmp_path, capsys):
    """Kept rooms come first with their relations; the others are drawn, as many as before or as requested."""
    diagram = make_plans(3, 0, 1).diagram(0)
    rooms, path = len(diagram.types), tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(plan_line(diagram)), indent=1))
    edges = dict(
        zip(pairs(rooms), encode(diagram, rooms)[rooms:].tolist(), strict=True)
    )
    for number, (words, kept, total) in enumerate((
        (["--keep", "0-1,3"], [0, 1, 3], rooms),
        (["--keep", "0,2", "--redraw", "2"], [0, 2], 4),
    )):  # fmt: skip
        out = tmp_path / str(number)
        options = [
            "-n",
            "4",
            str(path),
            *words,
            "--no-metrics",
            "--no-pictures",
            "--out",
            str(out),
        ]
        assert main(["edit", str(run), *options]) == 0
        samples = load_file(out / "samples.safetensors")["samples"]
        assert ((samples[:, :8] != 14).sum(1) == total).all()
        assert (
            samples[:, : len(kept)]
            == torch.tensor([diagram.types[room] for room in kept])
        ).all()
        for (u, i), (v, j) in combinations(enumerate(kept), 2):
            assert (samples[:, 8 + pair_index(u, v, 8)] == edges[i, j]).all()
        assert len({tuple(row.tolist()) for row in samples}) > 1
    capsys.readouterr()
    for words in (
        ["--keep", "0-9"],
        ["--keep", "0", "--redraw", "8"],
        ["--redraw", "0"],
        ["--keep", "x"],
        ["--keep", "3-0"],
    ):
        assert (
            main(["edit", str(run), str(path), *words, "--out", str(tmp_path / "none")])
            == 2
        )
    assert main(["edit", str(run), "--keep", "0", "--out", str(tmp_path / "none")]) == 2


@pytest.mark.slow
def test_samples_that_can_be_built_may_be_asked_for(sample, capsys):
    """The model has learnt nothing; what is led to, and what is rejected, makes all the difference."""
    constraints = """
        sampler = { use = "guided", particles = 1, order = "fields" }
        [task.constraints]
        rooms = [4, 6]
        buildable = true
        """
    samples = sample(constraints, "-n", "6").numpy()
    assert len(samples) == 6
    assert is_buildable(samples, 8).all()
    assert (
        float(re.search(r"satisfied/buildable +([0-9.]+)", capsys.readouterr().out)[1])
        > 0.5
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[task.constraints]\nrooms = 4\ncounts = { bedrooms = 5 }",
            ["c.toml:3", "contradicts rooms = 4", "c.toml:2"],
        ),
        (
            "[task.constraints]\ncount = { Kitchen = 1 }",
            ["c.toml:2", "unknown key", 'did you mean "counts"?'],
        ),
        (
            "[task]\nrooms = 3\n[train]\nsteps = 3",
            ["error: task.rooms: ", "error: train.steps: ", "[unknown-key]"],
        ),
        ("sampler = 'guided'", ["[task.constraints]", "[missing-key]", "c.toml"]),
    ],
)
def test_a_wrong_file_of_constraints_is_refused(run, tmp_path, cli, text, said):
    path = tmp_path / "c.toml"
    path.write_text(text)
    printed = cli("sample", str(run), "--constraints", str(path), code=2).err
    for words in said:
        assert words in printed


def test_constraints_of_the_page_are_a_file_for_a_run_of_the_same_task(
    run, tmp_path, cli
):
    path = tmp_path / "c.toml"
    text = (
        '[task]\nuse = "{}"\n[task.constraints]\nrooms = 4\n[sampler]\nuse = "guided"\n'
    )
    path.write_text(text.format("bubble-diagram"))
    options = ("--count", "2", "--no-metrics", "--no-pictures")
    cli("sample", str(run), "--constraints", str(path), *options)
    path.write_text(text.format("get-region"))
    printed = cli("sample", str(run), "--constraints", str(path), code=2).err
    assert "task.use" in printed


def test_the_page_about_constraints_says_what_is_so(tmp_path, capsys):
    page = (QUICK.parents[2] / "docs/floor-plans.md").read_text()
    page = page.split("\n## Constraints\n")[1]
    toml = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)[0]
    code = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0]
    (tmp_path / "flat.toml").write_text(f"extends = {str(QUICK)!r}\n{toml}")
    assert main(["validate", str(tmp_path / "flat.toml")]) == 0
    exec(code, {})
    assert "tensor([1, 1, 1, 1])" in capsys.readouterr().out
