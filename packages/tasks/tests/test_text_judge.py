"""A judge in a folder: what is refused without one, and what one says where transformers is installed."""

import importlib.util
import sys
from itertools import pairwise
from math import exp, log
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dither.registry.config.errors import Refused
from dither.tasks.language_model.data.specs import StdlibText
from dither.tasks.language_model.metrics import judge as judging
from dither.tasks.language_model.metrics.judge import READ, FolderJudge, judge_problems
from dither.tasks.language_model.specs import LanguageModel

WORDS = {"the": 0, "cat": 1, "sat": 2, "mat": 3, "[UNK]": 4}
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


class Table(torch.nn.Module):
    """A model that looks at the last token only: its logits are a row of a table. Reads four tokens at most."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=4)
        self.table = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))

    def forward(self, ids):
        assert ids.shape[1] <= 4
        return SimpleNamespace(logits=self.table[ids])


def library(missing=(), error=None):
    """A stand-in for transformers that tells how it was asked."""
    asked = []

    def tokenizer(folder, **options):
        asked.append(options)
        return lambda text, add_special_tokens: {"input_ids": [WORDS[word] for word in text.split()]}

    def model(folder, **options):
        asked.append(options)
        if error is not None:
            raise error
        return Table(), {"missing_keys": list(missing)}

    names = {"AutoTokenizer": tokenizer, "AutoModelForCausalLM": model}
    made = {name: SimpleNamespace(from_pretrained=call) for name, call in names.items()}
    return SimpleNamespace(**made, asked=asked)


@pytest.fixture
def folder(tmp_path):
    """A folder that looks like a saved model."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.fixture
def stand_in(monkeypatch):
    """Put a stand-in where transformers would be found."""

    def put(**options):
        made = library(**options)
        monkeypatch.setattr(judging.importlib.util, "find_spec", lambda name: SimpleNamespace())
        monkeypatch.setitem(sys.modules, "transformers", made)
        return made

    return put


def surprise(words):
    """Nats of the words after the first, each given the one before it."""
    log_p = Table().table.double().log_softmax(-1)
    ids = [WORDS[word] for word in words]
    return [-float(log_p[a, b]) for a, b in pairwise(ids)]


def test_nats_of_every_token_except_the_first_of_a_window(folder, stand_in):
    stand_in()
    judge = FolderJudge(folder)
    assert judge.nats("the cat sat") == (pytest.approx(sum(surprise(["the", "cat", "sat"]))), 2)
    words = ["the", "cat", "sat", "the", "mat", "the", "cat", "sat", "mat"]  # 4 + 4 + 1
    pieces = surprise(words[:4]) + surprise(words[4:8])
    assert judge.nats(" ".join(words)) == (pytest.approx(sum(pieces)), 6)
    assert judge.nats("the") == (0.0, 0)
    assert judge.nats("") == (0.0, 0)


def test_perplexity_over_the_first_samples(folder, stand_in):
    stand_in()
    judge = FolderJudge(folder)
    texts = ["the cat sat", "mat mat"]
    nats = surprise(["the", "cat", "sat"]) + surprise(["mat", "mat"])
    found = judge.metrics(texts)
    assert found["judge_perplexity"] == pytest.approx(exp(sum(nats) / 3))
    assert found["judge_bits_per_char"] == pytest.approx(sum(nats) / log(2) / sum(map(len, texts)))
    assert judge.metrics(["the cat"] * READ + ["mat mat"]) == pytest.approx(judge.metrics(["the cat"]))
    assert str(judge.metrics([])["judge_perplexity"]) == "nan"


def test_no_download_no_remote_code_safetensors_only(folder, stand_in):
    asked = stand_in().asked
    FolderJudge(folder)
    for options in asked:
        assert options["local_files_only"] is True
        assert options["trust_remote_code"] is False
    assert asked[1]["use_safetensors"] is True


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "safetensors"),
        ("tokenizer.json", "tokenizer"),
    ],
)
def test_incomplete_folder_is_found_before_loading(folder, stand_in, without, says):
    made = stand_in()
    (folder / without).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    (problem,) = judge_problems(folder)
    assert problem.code == "file-not-found"
    assert says in problem.message
    with pytest.raises(Refused, match=says):
        FolderJudge(folder)
    assert made.asked == []


def test_missing_extra_and_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(judging.importlib.util, "find_spec", lambda name: None)
    spec = LanguageModel(data=StdlibText(), judge=str(tmp_path / "nowhere"))
    extra, missing = spec.check()
    assert extra.path == missing.path == ("judge",)
    assert [extra.code, missing.code] == ["missing-dependency", "file-not-found"]
    assert extra.help == 'pip install "dither-tasks[judge]"'


@needs_transformers
def test_transformers_model(tmp_path):
    """A tiny GPT-2 with random weights: metrics equal its own loss, and pickled weights are not read."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(tmp_path)
    config = transformers.GPT2Config(vocab_size=5, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    torch.nn.init.normal_(model.transformer.wte.weight, std=2.0)
    model.save_pretrained(tmp_path)
    words = "the cat sat mat the cat"
    ids = torch.tensor([[WORDS[word] for word in words.split()]])
    loss = model(ids, labels=ids).loss.item()
    judge = FolderJudge(Path(tmp_path))
    nats, count = judge.nats(words)
    assert count == 5
    assert nats / count == pytest.approx(loss, rel=1e-5)
    assert judge.metrics([words])["judge_perplexity"] == pytest.approx(exp(loss), rel=1e-5)
    assert judge.nats(" ".join([words] * 2))[1] == 10  # pieces of 8 and 4
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(Refused) as refused:
        FolderJudge(Path(tmp_path))
    assert refused.value.codes == ["file-not-found"]


@needs_transformers
def test_damaged_model_and_remote_code(tmp_path):
    import json

    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    with pytest.raises(Refused) as refused:
        FolderJudge(tmp_path)
    assert refused.value.codes == ["damaged-file"]


ERRORS = [ValueError("Unrecognized model"), pytest.importorskip("safetensors").SafetensorError("cut")]


@pytest.mark.parametrize("options", [{"missing": ["lm_head.weight"]}, *({"error": error} for error in ERRORS)])
def test_unusable_model(folder, stand_in, refusal, options):
    stand_in(**options)
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]
