"""The documentation: code blocks run, links resolve, signatures are exact."""

import io
import json
import re
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from rich.console import Console
from safetensors.torch import load_file

from dither.core_blocks.convert.get import GET
from dither.engine.cli import main
from dither.engine.cli.commands import app_for
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.run import run
from dither.engine.runs.system import System
from dither.registry.hookspecs import Hooks
from dither.registry.kinds import KINDS
from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.policy import read_policy
from experiments import comparisons
from experiments.results import documents

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )


def test_the_python_example_of_the_readme_trains(monkeypatch):
    monkeypatch.chdir(ROOT)
    code, _ = blocks(ROOT / "README.md", "python")
    names = {}
    exec(code.replace("range(100)", "range(2)"), names)
    assert names["loss"] > 0


@pytest.mark.slow
def test_the_python_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(ROOT / "docs/python.md", "python"):
        exec(code, names)
    assert names["metrics"]["nats_per_graph"] > 0
    assert "ancestral" in names["samplers"]
    assert names["measured"].mean().isfinite()
    assert names["samples"].shape == (2, 36)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    content = nbformat.read(notebook, 4)
    assert notebook.stat().st_size < 200_000
    assert not re.search(r"/(home|root|work|tmp)/", notebook.read_text()), (
        "a path of one machine"
    )
    NotebookClient(
        content, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


def test_the_plugin_of_the_readme_works(tmp_path):
    _, code = blocks(ROOT / "README.md", "python")
    (toml,) = blocks(ROOT / "README.md", "toml")
    name = re.search(r'plugins = \["\./(\w+\.py)"\]', toml)
    assert name
    (tmp_path / name[1]).write_text(code)
    base = re.search(r'extends = "(.+?)"', toml)
    assert base
    (tmp_path / "mine.toml").write_text(toml.replace(base[1], str(ROOT / base[1])))
    schedule = load_experiment(tmp_path / "mine.toml").experiment.process.schedule
    assert type(schedule).__module__.startswith("dither_plugin_")
    t = torch.linspace(0.01, 0.99, 9, dtype=torch.float64, requires_grad=True)
    noise = schedule.build()(t)
    (gradient,) = torch.autograd.grad(noise.sigma.sum(), t)
    torch.testing.assert_close(noise.rate, gradient)


def test_the_likelihood_of_the_language_page(monkeypatch):
    small = ["task.data.length=2000", "task.data.held=200", "model.width=16"]
    experiment = load_experiment(
        ROOT / "experiments/language_model/markov.toml", small
    ).experiment
    system = System.build(experiment)
    monkeypatch.setattr("dither.load", lambda run: system)
    ids = system.task.batch("valid", range(2)).x0
    mask = (torch.arange(16) < 4).expand(2, -1)
    (code,), names = (
        blocks(ROOT / "docs/language.md", "python"),
        {"ids": ids, "mask": mask},
    )
    exec(code, names)
    assert (names["bound"].values + names["bound"].half_widths < 0).all()


def test_links_resolve():
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    ]
    assert [link for link in links if not (link[0].parent / link[1]).exists()] == []


def test_the_experiments_of_the_pages_are_valid(tmp_path):
    for page in ("experiments", "language"):
        (toml,) = blocks(ROOT / f"docs/{page}.md", "toml")
        (tmp_path / "my.toml").write_text(toml)
        load_experiment(tmp_path / "my.toml")


def test_the_component_reference_has_a_section_for_every_component(cli):
    page = cli("list", "--markdown").out
    components = load_plugins().catalog.parts()
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == [
        component.name for component in components
    ]


PLUGIN_PAGE = ROOT / "docs/plugins.md"


def test_the_page_on_plugins_has_an_example_of_every_hook():
    code = "\n".join(blocks(PLUGIN_PAGE, "python"))
    hooks = [name for name in vars(Hooks) if not name.startswith("_")]
    assert [name for name in hooks if f"@hookimpl\ndef {name}(" not in code] == []


def test_the_reference_of_kinds_hooks_and_checks_is_generated():
    site = runpy.run_path(str(ROOT / ".ci/site.py"))
    kinds = site["kinds_page"]()
    assert re.findall("^## (.+)$", kinds, re.MULTILINE) == list(KINDS)
    assert "- `build(space: Space) -> Process`: " in kinds
    assert (
        "`after_step(run: Any, step: int, metrics: Mapping[str, Any]) -> None`"
        in site["hooks_page"]()
    )
    assert "`rate_is_derivative`" in site["checks_page"]()
    assert "| `validate` |" in site["json_page"]()
    assert "`event`, `run`, `summary`" in site["json_page"]()
    site["merged"].cleanup()


TINY = """
task = { use = "language-model", length = 16, tokenizer = "chars" }
process = "absorbing"
loss = "masked-ce"
model = { use = "denoiser", width = 16, depth = 1 }
train = { steps = 12, batch_size = 8, checkpoint_every = 6 }
evaluate = { every = 6, samples = 16 }
sample = { count = 0 }
"""


def test_the_hook_examples_run(tmp_path, capsys, cli):
    (code,) = [code for code in blocks(PLUGIN_PAGE, "python") if "on_run_error" in code]
    plugin = tmp_path / "observer.py"
    plugin.write_text(code)
    (tmp_path / "tiny.toml").write_text(f'plugins = ["./observer.py"]\n{TINY}')

    assert (
        main(["run", str(tmp_path / "tiny.toml"), "--runs", str(tmp_path / "runs")])
        == 0
    )
    (run,) = (tmp_path / "runs").glob("*-*")
    assert (run / "frozen.txt").read_text() == "0 parameters are frozen\n"
    assert re.fullmatch(r"10 \d\.\d{4}\n", (run / "losses.txt").read_text())
    lines = [
        json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["loss"] for line in lines if line["kind"] == "valid"]
    assert len(losses) == 2
    assert float((run / "best.txt").read_text()) == pytest.approx(min(losses))
    newest = json.loads((run / "newest.json").read_text())
    assert newest["step"] == 12
    assert newest["bytes"] > 1000
    assert (run / "done.txt").read_text() == "experiment: 12 steps\n"
    assert not (run / "error.txt").exists()

    capsys.readouterr()
    assert "hello plugins" in cli("greet", "--name", "plugins", "-p", str(plugin)).out
    assert main(["validate", str(tmp_path / "tiny.toml"), "train.batch_size=8192"]) == 2
    assert "train.batch_size: this project allows 4096" in capsys.readouterr().err

    error = FloatingPointError("a test")
    stopped = SimpleNamespace(directory=SimpleNamespace(path=tmp_path))
    list(
        load_plugins(files=[plugin]).call_each("on_run_error", run=stopped, error=error)
    )
    assert (tmp_path / "error.txt").read_text() == "FloatingPointError: a test\n"


def test_the_policy_example_is_valid(tmp_path):
    (text,) = blocks(PLUGIN_PAGE, "toml")
    (tmp_path / "registry.toml").write_text(text)
    policy = read_policy(tmp_path / "registry.toml")
    assert policy.suggestion("schedule", "slow-start")


def test_documented_commands_exist():
    application, _ = app_for([])
    known = {
        command.name or command.callback.__name__
        for command in application.registered_commands
    }
    known |= {group.name for group in application.registered_groups}
    for page in PAGES:
        for line in re.findall(
            r"^    (?:python -m experiments\.run|dither) (.*)$",
            page.read_text(),
            re.MULTILINE,
        ):
            word = line.split()[0]
            assert word in known or word.endswith(".toml") or word == "--resume", line


PAGE = ROOT / "docs/load-weights.md"
SMALL = (
    "task.regions=6", "model.width=24", "model.depth=2", "train.steps=2", "train.batch_size=2", "train.device='cpu'",
    "evaluate.samples=2", "sample.count=1",
)  # fmt: skip


PRETRAIN, LORA, EXPRESSION, _ = blocks(PAGE, "toml")


def made(width: int, depth: int, features: int = 283) -> dict[str, torch.Tensor]:
    """Weights of a GET, as Lightning saves them."""
    shapes = {"mask_token": (1, 1, width), "cls_token": (1, 1, width)}
    sizes = {
        "region_embed.embed": (width, features),
        "encoder.norm": (width,),
        "head_mask": (features, width),
    }
    for n in range(depth):
        block = f"encoder.blocks.{n}"
        shapes |= {f"{block}.attn.{name}": (width,) for name in ("q_bias", "v_bias")}
        shapes |= {f"{block}.attn.qkv.weight": (3 * width, width)}
        sizes |= {
            f"{block}.attn.proj": (width, width),
            f"{block}.norm1": (width,),
            f"{block}.norm2": (width,),
        }
        sizes |= {
            f"{block}.mlp.fc1": (4 * width, width),
            f"{block}.mlp.fc2": (width, 4 * width),
        }
    for name, shape in sizes.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    generator = torch.Generator().manual_seed(0)
    return {
        name: 0.1 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the experiments of the page, and the weights that the first begins with."""
    (tmp_path / "get.toml").write_text(PRETRAIN)
    (tmp_path / "lora.toml").write_text(f'extends = "get.toml"\n{LORA}')
    (tmp_path / "expression.toml").write_text(f'extends = "get.toml"\n{EXPRESSION}')
    weights = {f"model.{name}": weight for name, weight in made(24, 2).items()}
    torch.save({"state_dict": weights, "epoch": 799}, tmp_path / "checkpoint.pth")
    monkeypatch.chdir(tmp_path)
    return tmp_path


HUMAN = "task.data.subset='chr21-22'"


def begun(
    folder: Path, name: str, *changes: str
) -> tuple[dict[str, torch.Tensor], str]:
    """Run an experiment; return its last weights, and what it said."""
    console = Console(file=io.StringIO(), width=200)
    loaded = load_experiment(
        folder / name,
        [*SMALL, *([] if name == "expression.toml" else [HUMAN]), *changes],
    )
    assert run(loaded, folder / "runs", [], console=console) == 0
    (path,) = (folder / "runs").glob("*/checkpoints/*/model.safetensors")
    return load_file(path), console.file.getvalue()


def test_the_first_experiment_is_get_region_pretrain(folder):
    loaded = load_experiment(folder / "get.toml")
    space = loaded.experiment.task.space()
    assert space.width == 283
    with torch.device("meta"):
        model = loaded.experiment.model.build(space)
    assert sum(weight.numel() for weight in model.parameters()) == 85_484_059
    weights = made(768, 12)
    wanted = {name: weight.shape for name, weight in GET.weights(weights).items()}
    assert {name: weight.shape for name, weight in model.state_dict().items()} == wanted


@pytest.mark.slow
def test_a_run_begins_with_the_weights_of_the_file(folder):
    found, _ = begun(folder, "get.toml", "train.steps=0")
    for name, weight in GET.weights(made(24, 2)).items():
        assert torch.equal(found[name], weight), name


def test_the_code_of_the_page_runs(folder):
    """On a small model, of the same experiment otherwise."""
    toml = PRETRAIN.replace("width = 768", "width = 24").replace(
        "depth = 12", "depth = 2"
    )
    toml = toml.replace("regions = 200", "regions = 6")
    toml = toml.replace('"human-dhs"', '{ use = "human-dhs", subset = "chr21-22" }')
    (folder / "get.toml").write_text(toml)
    names: dict[str, object] = {}
    code, _ = blocks(PAGE, "python")
    exec(code, names)  # the page itself
    assert names["samples"].shape == (1, 6, 283)


def store(folder: Path, regions: int = 120) -> np.ndarray:
    """Write the store that the page names: expression follows from the first motifs and from accessibility."""
    generator = np.random.default_rng(0)
    motifs = generator.random((3 * regions, 282), np.float32)
    atpm = generator.random(3 * regions, np.float32)
    expression = np.stack([motifs[:, 0] + 3 * atpm, 2 * motifs[:, 1]], -1)
    group = zarr.create_group(str(folder / "astrocyte.zarr"), zarr_format=2)
    places = [
        f"chr{number}:{1000 * n}-{1000 * n + 500}"
        for number in (1, 2, 3)
        for n in range(regions)
    ]
    group.create_array("peak_names", data=np.array(places))
    group.create_array("motif_names", data=np.array([f"m{n}" for n in range(282)]))
    group.create_array("data", data=motifs)
    group.create_array("atpm/astrocyte", data=atpm)
    for strand, values in zip(("positive", "negative"), expression.T, strict=True):
        group.create_array(
            f"expression_{strand}/astrocyte", data=np.ascontiguousarray(values)
        )
    return expression


@pytest.mark.slow
def test_expression_is_predicted_from_the_other_columns(folder):
    expression = store(folder)
    assert expression.std() > 0.5
    changes = [
        "loss='poisson'",
        "train.steps=40",
        "train.log_every=10",
        "train.optimizer.lr=0.01",
        "train.ema=0",
    ]
    found, said = begun(folder, "expression.toml", *changes)
    assert "1 weights without counterpart" not in said
    assert "head.linear.weight, head.linear.bias" in said
    assert found["embedding.linear.weight"].shape == (24, 283)
    assert found["head.linear.weight"].shape == (2, 24)
    (path,) = (folder / "runs").glob("*-*")
    lines = [
        json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["loss"] for line in lines if "loss" in line and "lr" in line]
    assert losses[-1] < losses[0] - 0.05, losses
    (samples,) = path.glob("samples/*/samples.safetensors")
    drawn = load_file(samples)["samples"]
    assert drawn[..., 283:].min() > 0


@pytest.mark.slow
def test_own_floor_plans_are_documented(tmp_path, monkeypatch):
    """The names of rooms and relations, and a file to copy that trains as the page says."""
    import shlex
    import shutil

    from dither.engine.cli import main
    from dither.tasks.bubble_diagram.formats.jsonl import read_plans
    from dither.tasks.bubble_diagram.vocabulary import RELATIONS, ROOMS

    page = (ROOT / "docs/floor-plans.md").read_text()
    assert len(ROOMS) == 13
    for name in (*ROOMS, *RELATIONS):
        assert f"`{name}`" in page, name
    lines, *_ = blocks(ROOT / "docs/floor-plans.md", "json")
    (tmp_path / "page.jsonl").write_text(lines)
    assert len(read_plans(tmp_path / "page.jsonl", 8)) == 2

    shutil.copy(ROOT / "docs/examples/my_plans.jsonl", tmp_path / "mine.jsonl")
    plans = read_plans(tmp_path / "mine.jsonl", 8)
    assert len(plans) >= 10
    monkeypatch.chdir(tmp_path)
    command = next(line for line in page.splitlines() if 'path="mine.jsonl"' in line)
    small = ["train.steps=2", "model.width=16", "sample.count=2", "tracking.use=[]"]
    assert main([*shlex.split(command)[1:], *small]) == 0


def test_docs_use_no_option_of_gnu_only():
    pages = [*PAGES, *ROOT.glob("experiments/*/*.toml"), *ROOT.glob("docs/notebooks/*")]
    for page in pages:
        assert "sed -i" not in page.read_text(), page


def test_links_of_notebooks_exist():
    for page in NOTEBOOKS:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), (page, link)


@pytest.fixture
def hooks():
    """The hooks of the documentation site."""
    pytest.importorskip("mkdocs")
    import importlib.util

    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / ".ci/site.py")
    assert spec
    assert spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    yield hooks
    hooks.merged.cleanup()


def test_broken_links_of_the_site_are_found(hooks, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/index.html").write_text('<h1 id="top">b</h1><img src="../a.png">')
    links = [
        "b/",
        "b/#top",
        "#here",
        "https://elsewhere.org/#x",
        "b/c/",
        "b/#end",
        "#no",
    ]
    text = "".join(f'<a href="{link}" id="here"></a>' for link in links)
    (tmp_path / "index.html").write_text(text)
    assert sorted(hooks.broken_links(tmp_path)) == [
        ("b/index.html", "../a.png"),
        *(("index.html", link) for link in ("#no", "b/#end", "b/c/")),
    ]


def test_the_site_links_to_a_repository_and_its_home_page_has_a_picture(
    hooks, monkeypatch
):
    assert "repo_url:" in (ROOT / "mkdocs.yml").read_text()
    page = (ROOT / "docs/index.md").read_text()
    (picture,) = re.findall(r'<img src="([^"]+\.gif)"', page)
    assert (ROOT / "docs" / picture).is_file()

    for remote, url in (
        ("git@example.org:a/dither.git", "https://example.org/a/dither"),
        ("ssh://git@example.org/a/dither.git", "https://example.org/a/dither"),
        ("https://example.org/a/dither.git", "https://example.org/a/dither"),
        ("/a/folder", ""),
        ("", ""),
    ):
        answer = subprocess.CompletedProcess([], 0, stdout=f"{remote}\n")
        monkeypatch.setattr(hooks.subprocess, "run", lambda *a, a_=answer, **_: a_)
        assert hooks.repository_url() == url


def test_links_of_notebooks_lead_to_pages_of_the_site(hooks):
    from types import SimpleNamespace

    class Files:
        def get_file_from_path(self, path):
            if path != "floor-plans.md":
                return None
            return SimpleNamespace(url_relative_to=lambda _: "../../floor-plans/")

    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebooks/a.ipynb"))
    html = '<a href="../floor-plans.md#constraints">a</a><a href="https://b.org/c.md">'
    config = SimpleNamespace(repo_url="https://github.com/a/dither")
    moved = hooks.on_page_content(html, page=page, config=config, files=Files())
    assert f'href="{hooks.COLAB}/a/dither/blob/main/docs/notebooks/a.ipynb"' in moved
    assert 'href="../../floor-plans/#constraints"' in moved
    assert 'href="https://b.org/c.md"' in moved


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("runs.md", "docs/runs.md"),
        ("AGENTS.md", "AGENTS.md"),
        ("notebooks/get_region.ipynb", "docs/notebooks/get_region.ipynb"),
        ("components.md", None),
    ],
)
def test_the_edit_link_of_a_page_leads_to_its_file(place, file, hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place), edit_url="wrong")
    config = SimpleNamespace(repo_url="https://example.org/a/dither")
    hooks.on_pre_page(page, config, files=None)
    assert page.edit_url == (file and f"{config.repo_url}/edit/main/{file}")


def test_the_table_of_comparisons_is_that_of_the_stored_arms():
    assert comparisons.PAGE.read_text() == comparisons.page(), (
        "python -m experiments.comparisons --write"
    )


def test_tables_of_quick_runs_are_those_that_were_measured():
    for path, text in documents().items():
        assert path.read_text() == text, (
            f"{path}: python -m experiments.results --write"
        )
