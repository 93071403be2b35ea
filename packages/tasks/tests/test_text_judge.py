"""A judge in a folder, on a tiny GPT-2 with random weights."""

import json
import shutil
from math import exp, log

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from dither.tasks.language_model.data.specs import StdlibText
from dither.tasks.language_model.metrics import judge as judging
from dither.tasks.language_model.metrics.judge import READ, FolderJudge, judge_problems
from dither.tasks.language_model.specs import LanguageModel

WORDS = {"the": 0, "cat": 1, "sat": 2, "mat": 3, "[UNK]": 4}
TEXT = "the cat sat mat the cat"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    config = transformers.GPT2Config(vocab_size=5, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    torch.nn.init.normal_(model.transformer.wte.weight, std=2.0)
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved[0], tmp_path / "judge")


def test_scores_are_those_of_the_model(saved):
    folder, model = saved
    ids = torch.tensor([[WORDS[word] for word in TEXT.split()]])
    loss = model(ids, labels=ids).loss.item()
    judge = FolderJudge(folder)
    nats, count = judge.nats(TEXT)
    assert (count, nats / count) == (5, pytest.approx(loss, rel=1e-5))
    assert judge.nats(" ".join([TEXT] * 2))[1] == 10  # pieces of 8 and 4, the first token of each not counted
    assert judge.nats("the") == judge.nats("") == (0.0, 0)
    found = judge.metrics([TEXT, "mat mat"])
    nats += judge.nats("mat mat")[0]
    assert found["judge_perplexity"] == pytest.approx(exp(nats / 6))
    assert found["judge_bits_per_char"] == pytest.approx(nats / log(2) / (len(TEXT) + 7))
    assert judge.metrics([TEXT] * READ + ["mat mat"]) == pytest.approx(judge.metrics([TEXT]))
    assert str(judge.metrics([])["judge_perplexity"]) == "nan"


@pytest.mark.parametrize("without", ["config.json", "model.safetensors", "tokenizer"])
def test_incomplete_folders_are_refused_and_pickled_weights_not_read(saved, folder, refusal, without):
    for path in folder.glob(f"{without}*"):
        path.unlink()
    torch.save(saved[1].state_dict(), folder / "pytorch_model.bin")
    assert [problem.code for problem in judge_problems(folder)] == ["file-not-found"]
    assert refusal(FolderJudge, folder).codes == ["file-not-found"]


def test_missing_weights_damage_and_remote_code_are_refused(folder, refusal):
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.0.attn.c_attn.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]
    (folder / "model.safetensors").write_text("{}")
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    assert refusal(FolderJudge, folder).codes == ["damaged-file"]


def test_missing_extra_and_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(judging.importlib.util, "find_spec", lambda name: None)
    spec = LanguageModel(data=StdlibText(), judge=str(tmp_path / "nowhere"))
    extra, missing = spec.check()
    assert extra.path == missing.path == ("judge",)
    assert [extra.code, missing.code] == ["missing-dependency", "file-not-found"]
