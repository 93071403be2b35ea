"""Prompts with responses: known prompts, packed documents that do not see each other, labels, and chat templates."""

import json
from pathlib import Path

import pytest
import torch

from dither.engine import Diffusion, load_experiment
from dither.engine.sampling.session import draw
from dither.registry.config.errors import Refused

PAIRS = [
    {"prompt": f"{n} times two? ", "response": f"it is {2 * n}.", "kind": "low" if n < 8 else "high"} for n in range(16)
]
TEXT = """
loss = "masked-ce"
process = "absorbing"
sampler = "first-hitting"
[task]
use = "language-model"
length = 64
end_of_text = true
documents = "packed"
data = { use = "prompt-response", paths = ["PATH"], valid = 0.2 }
[model]
use = "denoiser"
width = 16
depth = 2
condition = "level"
block = { use = "adaln-zero", heads = 2, rope = true }
[train]
device = "cpu"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)) + "\n")
    path = tmp_path / "x.toml"
    path.write_text(TEXT.replace("PATH", str(tmp_path / "pairs.jsonl")))
    return path


def test_prompts_are_known_and_responses_with_their_end_are_learned(file) -> None:
    task = load_experiment(file).experiment.task.build()
    clean = task.batch("train", range(task.size("train")))
    assert (clean.cond["document"][clean.valid].unique(return_counts=True)[1] > 20).all()
    learned, seen = set(), 0
    for row in range(len(clean.x0)):
        for document in clean.cond["document"][row][clean.valid[row]].unique():
            mine = (clean.cond["document"][row] == document) & clean.valid[row]
            ids, known = clean.x0[row][mine], clean.known[row][mine]
            pair = (task.text(ids[known].tolist()), task.text(ids[~known].tolist()).removesuffix("<|endoftext|>"))
            assert int(ids[-1]) == task.tokenizer.end
            assert pair in [(example["prompt"], example["response"]) for example in PAIRS]
            learned.add(pair)
            seen += 1
    assert seen == len(learned) == len(task.corpus.splits["train"].starts)
    assert clean.valid.sum(1).float().mean() > 40, "two documents per window of 64"


def test_packed_documents_do_not_see_each_other(file) -> None:
    """Logits and losses of a packed window are those of each document alone; rotary positions are relative."""
    torch.manual_seed(0)
    system = Diffusion.build(load_experiment(file).experiment)
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    clean = system.task.batch("train", range(2))
    t = torch.full((2,), 0.5)
    _, noised = system.noise(clean, t)
    assert not (noised.target_mask & clean.known).any()
    with torch.no_grad():
        packed = system.raw(noised.state, t, clean)
        for document in clean.cond["document"][0][clean.valid[0]].unique():
            mine = (clean.cond["document"][0] == document) & clean.valid[0]
            place = mine.nonzero()[:, 0]
            part = clean[:1].slice_positions(int(place[0]), int(place[-1]) + 1)
            part.cond.clear()
            state = noised.state[:1].apply(lambda x, mine=mine: x[:, mine])
            torch.testing.assert_close(system.raw(state, t[:1], part)[0], packed[0, mine], rtol=1e-4, atol=1e-4)
    measured = system(clean)
    assert torch.equal(measured.weights > 0, clean.valid & ~clean.known)
    assert draw(system, system.like(2, 0), seed=0).shape == (2, 64)


def test_labels_are_a_condition_that_guidance_uses(file) -> None:
    label = '{ use = "label", of = "label", dropout = 0.2 }'
    changes = [
        "task.data.label=kind",
        "task.documents=ended",
        f'model.condition={{use="sum", parts=["level", {label}]}}',
    ]
    guided = ['sample.guidance={condition="label", weight=2.0}', 'sample.cond={label="high"}']
    experiment = load_experiment(file, [*changes, *guided]).experiment
    system = Diffusion.build(experiment)
    clean = system.task.batch("train", range(system.task.size("train")))
    for row in range(len(clean.x0)):
        number = int(system.task.text(clean.x0[row][clean.known[row]].tolist()).split()[0])
        assert clean.cond["label"][row] == (0 if number >= 8 else 1)  # labels are sorted
    assert system.like(3, 0).cond["label"].tolist() == [0, 0, 0]
    assert draw(system, system.like(2, 0), seed=0).shape == (2, 64)


def test_chat_templates_render_prompts_in_a_sandbox(file, tmp_path) -> None:
    config = tmp_path / "tokenizer_config.json"
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
    config.write_text(json.dumps({"bos_token": "<s>", "chat_template": template}))
    change = [f"task.data.chat_template={config}", "task.prompt=hi"]
    task = load_experiment(file, [*change, "task.length=128"]).experiment.task.build()
    assert task.text(task.prompt.tolist()) == "<s>[user] hi\n[assistant] "
    clean = task.batch("train", [0])
    assert task.text(clean.x0[0][clean.known[0]].tolist()).startswith("<s>[user] ")
    config.write_text(json.dumps({"chat_template": "{{ ''.__class__.__mro__ }}"}))
    (tmp_path / "y.jinja").write_text("{{ ''.__class__.__base__.__subclasses__() }}")
    with pytest.raises(Refused) as refused:
        load_experiment(file, [f"task.data.chat_template={tmp_path / 'y.jinja'}"])
    assert refused.value.problems[0].code == "unreadable-file"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (["task.documents=stream"], ("task", "documents")),
        (["task.data.label=kind"], ("task", "documents")),
        (["task.end_of_text=false"], ("task", "end_of_text")),
        (["model.block_size=8", 'sampler={use="blocks", size=8}'], ("model", "block_size")),
        (["task.data.response=answer"], ("task", "data", "paths")),
    ],
)
def test_what_does_not_fit_is_said(file, changes, path) -> None:
    with pytest.raises(Refused) as refused:
        load_experiment(file, changes)
    assert path in [problem.path for problem in refused.value.problems]
