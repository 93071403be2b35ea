"""Weights of LLaDA: logits equal transformers' Llama with full attention; `dither new from-hf` and LoRA on them."""

import json
import re
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from dither.core_blocks.convert.llada import LLADA, LLAMA, options_of_llada
from dither.core_blocks.convert.load_hf import convert_folder, read_shards
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.loading import start_from
from dither.engine.training.diffusion import Diffusion
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.config.errors import Refused
from dither.registry.contracts.records import State

IDS, MASK, LENGTH = 40, 37, 9
SIZES = {
    "vocab_size": IDS,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLADA_NAMES = (
    (r"^model\.layers\.", "model.transformer.blocks."),
    (r"self_attn\.([qkv])_proj", r"\1_proj"),
    ("self_attn.o_proj", "attn_out"),
    ("mlp.gate_proj", "ff_proj"),
    ("mlp.up_proj", "up_proj"),
    ("mlp.down_proj", "ff_out"),
    ("post_attention_layernorm", "ff_norm"),
    ("input_layernorm", "attn_norm"),
    ("model.embed_tokens", "model.transformer.wte"),
    (r"^model\.norm", "model.transformer.ln_f"),
    (r"^lm_head", "model.transformer.ff_out"),
)


def llama(kv_heads: int = 2, theta: float = 500_000.0) -> LlamaForCausalLM:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": theta}
    config = LlamaConfig(
        **SIZES,
        num_key_value_heads=kv_heads,
        rope_parameters=rope,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def their_logits(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Full attention: a mask that hides nothing replaces the causal one."""
    with torch.no_grad():
        return model(
            ids, attention_mask=torch.zeros(len(ids), 1, ids.shape[1], ids.shape[1])
        ).logits


def llada_names(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, weight in theirs.items():
        renamed[reduce(lambda text, pair: re.sub(*pair, text), LLADA_NAMES, name)] = (
            weight.clone()
        )
    return renamed


def config(kv_heads: int = 2, theta: float = 500_000.0) -> dict:
    """The keys of LLaDA's config.json."""
    return {
        "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": kv_heads, "mlp_hidden_size": 44, "rope_theta": theta,
        "rms_norm_eps": 1e-5, "weight_tying": False, "include_qkv_bias": False, "mask_token_id": MASK,
    }  # fmt: skip


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("layout", [LLADA, LLAMA], ids=["llada", "llama"])
def test_logits_equal_llama_with_full_attention(layout, kv_heads: int) -> None:
    reference = llama(kv_heads)
    theirs = {
        name.removeprefix("model."): weight
        for name, weight in reference.state_dict().items()
    }
    if layout is LLADA:
        theirs = {
            n.removeprefix("model."): w
            for n, w in llada_names(reference.state_dict()).items()
        }
    ids = torch.randint(0, IDS, (3, LENGTH))
    options = options_of_llada(
        config(kv_heads) if layout is LLADA else reference.config.to_dict()
    )
    spec = default_catalog().parse("model", options)
    space = TokenSpace((Field("text", LENGTH, IDS, mask=MASK),))
    assert not list(spec.check(space))
    model = spec.build(space).eval()
    model.load_state_dict(layout.weights(theirs))
    valid = torch.ones(ids.shape, dtype=torch.bool)
    for level in (0.1, 0.9):  # no input for the noise level
        ours = model(State.of(ids), torch.full((3,), level), valid, {})
        torch.testing.assert_close(
            ours, their_logits(reference, ids), rtol=1e-5, atol=1e-5
        )
    assert layout.rename(theirs).keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("options", "path"),
    [({"kv_heads": 3}, "kv_heads"), ({"kv_heads": 2, "qkv_bias": "qv"}, "kv_heads")],
)
def test_heads_that_cannot_be_shared(options: dict, path: str) -> None:
    spec = default_catalog().parse("block", {"use": "pre-norm", "heads": 4, **options})
    assert [misfit.path for misfit in spec.check(32, 32)] == [(path,)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny LLaDA as Hugging Face saves it: two shards, MASK in the middle of unused rows."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    (tmp_path / "LLaDA-tiny").mkdir()
    path = tmp_path / "LLaDA-tiny"
    words = Tokenizer(
        models.WordLevel(
            {c: i for i, c in enumerate("?abcdefghijklmnopqrstuvwxyz .,'()")},
            unk_token="?",
        )
    )
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(config()))
    weights = llada_names(llama().state_dict())
    names = sorted(weights)
    shards = {
        name: f"model-{1 + (i > 8):05d}-of-00002.safetensors"
        for i, name in enumerate(names)
    }
    for file in set(shards.values()):
        save_file(
            {
                name: weights[name].contiguous()
                for name in names
                if shards[name] == file
            },
            path / file,
        )
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": shards})
    )
    return path


def test_load_hf_keeps_the_logits_and_fine_tunes_with_lora(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:

    monkeypatch.chdir(tmp_path)
    assert (
        main(["new", "from-hf", "LLaDA-tiny", "--out", "tiny", "--length", str(LENGTH)])
        == 0
    )
    loaded = load_experiment(Path("tiny/experiment.toml"))
    system = Diffusion.build(loaded.experiment)
    size = system.process.space.vocab - 1  # ids of the tokenizer, then MASK
    ids = torch.randint(0, size, (2, LENGTH))
    state = ids.clone()
    state[:, ::2] = size

    start_from(system.model, Path("tiny/start.safetensors"))
    ours = system.model.eval()(
        State.of(state), torch.ones(2), torch.ones_like(ids, dtype=torch.bool), {}
    )
    theirs = their_logits(llama(), torch.where(state == size, MASK, state))
    torch.testing.assert_close(
        ours[..., :size], theirs[..., :size], rtol=1e-5, atol=1e-5
    )
    assert main(["certify", "tiny/experiment.toml", "-n", "2", "--draws", "2"]) == 0
    words = [
        "train.steps=3",
        "train.batch_size=2",
        "sample.count=2",
        "evaluate.samples=8",
    ]
    assert (
        main(
            [
                "run",
                "tiny/experiment.toml",
                *(part for word in words for part in ("--set", word)),
            ]
        )
        == 0
    )
    (run,) = Path("runs").glob("*-*")
    assert (run / "checkpoints").is_dir()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: (path / "config.json").unlink(), "file-not-found"),
        (lambda path: (path / "tokenizer.json").write_text("["), "damaged-file"),
        (
            lambda path: (path / "config.json").write_text(
                json.dumps(config() | {"mask_token_id": None})
            ),
            "missing-key",
        ),
        (
            lambda path: (path / "config.json").write_text(
                json.dumps(config() | {"n_heads": None})
            ),
            "missing-key",
        ),
        (
            lambda path: (path / "config.json").write_text(
                json.dumps(config() | {"mask_token_id": IDS})
            ),
            "misfit",
        ),
        (
            lambda path: (path / "model-00002-of-00002.safetensors").unlink(),
            "unreadable-file",
        ),
    ],
)
def test_folders_that_cannot_be_converted(
    folder: Path, tmp_path: Path, damage, code: str
) -> None:
    damage(folder)
    with pytest.raises(Refused) as refused:
        convert_folder(folder, tmp_path / "out")
    assert [problem.code for problem in refused.value.problems] == [code]
    assert not (tmp_path / "out").exists()


def test_shards_stay_inside_their_folder(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../a.safetensors"}})
    )
    with pytest.raises(Refused):
        read_shards(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"activation_type": "gelu"},
        {"model_type": "gemma2"},
        {"embedding_multiplier": 12.0},
        {"final_logit_softcapping": 30.0},
        {"rope_scaling": {"factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        {"use_sliding_window": True},
        {"layer_types": ["sliding_attention"] * 2},
        {"alibi": True},
        {"scale_logits": True},
        {"a_new_key": 2},
    ],
    ids=str,
)
def test_keys_that_change_the_computation_are_refused(changes: dict, refusal) -> None:
    assert refusal(options_of_llada, config() | changes).codes == ["misfit"]
    neutral = {"embedding_multiplier": 1.0, "head_dim": 8, "alibi": False}
    assert options_of_llada(config() | neutral) == options_of_llada(config())


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": "32"},
        {"n_layers": 0},
        {"n_heads": [4]},
        {"mlp_hidden_size": True},
        {"rope_parameters": "default"},
        {"layer_types": 2},
        {"rms_norm_eps": "1e-5"},
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(changes: dict, refusal) -> None:
    assert refusal(options_of_llada, config() | changes).codes == ["invalid-value"]


@pytest.mark.parametrize("mask", [-1, "1", True, 1.5])
def test_ids_of_mask_that_are_none(folder: Path, tmp_path: Path, mask, refusal) -> None:
    (folder / "config.json").write_text(json.dumps(config() | {"mask_token_id": mask}))
    assert refusal(convert_folder, folder, tmp_path / "out").codes == ["invalid-value"]


def family(name: str):
    """A tiny model of transformers, and the changes of its config.json."""
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    eager = {**SIZES, "num_key_value_heads": 2, "attn_implementation": "eager"}
    if name in {"Qwen2", "Dream"}:
        return Qwen2ForCausalLM(Qwen2Config(**eager))
    if name == "Qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**eager, head_dim=10))
    return LlamaForCausalLM(LlamaConfig(**eager, head_dim=16))


@pytest.mark.parametrize("name", ["Qwen2", "Dream", "Qwen3", "Llama"])
def test_families_with_the_names_of_llama(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """Biases of queries, keys and values; the shift of Dream; norms of queries and keys; wide heads."""
    torch.manual_seed(0)
    reference = family(name).eval()
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    source = folder.rename(tmp_path / f"My {name}")
    for file in source.glob("model*"):
        file.unlink()
    weights = {n: w.contiguous() for n, w in reference.state_dict().items()}
    save_file(weights, source / "model.safetensors")
    options = reference.config.to_dict() | {"mask_token_id": MASK}
    if name == "Dream":
        options["model_type"] = "Dream"
    (source / "config.json").write_text(json.dumps(options))
    experiment = load_experiment(convert_folder(source, tmp_path / "out")).experiment
    assert experiment.name == f"my-{name.lower()}"

    system = Diffusion.build(experiment).eval()
    start_from(system.model, tmp_path / "out" / "start.safetensors")
    ids = torch.randint(0, 30, (2, LENGTH))
    valid = torch.ones_like(ids, dtype=torch.bool)
    ours = system.model(State.of(ids), torch.ones(2), valid, {})
    theirs = their_logits(reference, ids)[..., :30]
    if name == "Dream":
        theirs = torch.cat([theirs[:, :1], theirs[:, :-1]], 1)
    torch.testing.assert_close(ours[..., :30], theirs, rtol=1e-5, atol=1e-5)

    # The positions that are asked for, as samplers ask, are those of the whole output.
    requested = torch.zeros_like(valid)
    requested[:, 3] = True
    part = system.model(
        replace(State.of(ids), requested=requested), torch.ones(2), valid, {}
    )
    torch.testing.assert_close(part[:, 3], ours[:, 3])


def test_a_model_of_qwen3_without_its_norms_does_not_start(
    folder: Path, tmp_path: Path, refusal
) -> None:
    (folder / "config.json").write_text(
        json.dumps(config() | {"model_type": "qwen3", "n_heads": 4})
    )
    experiment = load_experiment(convert_folder(folder, tmp_path / "out")).experiment
    system = Diffusion.build(experiment)
    file = tmp_path / "out" / "start.safetensors"
    assert refusal(start_from, system.model, file).codes == ["shape-mismatch"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"block.head_width": 5, "block.rope": True}, ("block", "head_width")),
        ({"block.head_width": 6, "block.qkv_bias": "qv"}, ("block", "head_width")),
        ({"reads": "previous", "block_size": 3}, ("reads",)),
    ],
)
def test_options_that_exclude_each_other(changes: dict, path: tuple) -> None:
    options: dict = {"use": "denoiser", "width": 32, "block": {"use": "adaln-zero"}}
    for key, value in changes.items():
        table = options["block"] if "." in key else options
        table[key.rpartition(".")[2]] = value
    spec = default_catalog().parse("model", options)
    space = TokenSpace((Field("text", LENGTH, IDS, mask=MASK),))
    assert path in [misfit.path for misfit in spec.check(space)]


def test_a_model_that_reads_the_previous_position_has_no_cache() -> None:
    spec = default_catalog().parse("model", {"use": "denoiser", "reads": "previous"})
    assert not spec.facts().cache
    plain = {"use": "denoiser", "embedding": {"use": "tokens", "position": "none"}}
    for reads in ("same", "previous"):
        facts = default_catalog().parse("model", plain | {"reads": reads}).facts()
        assert facts.position_free is (reads == "same")
    conv = default_catalog().parse("model", {"use": "denoiser", "block": "conv"})
    assert not conv.facts().cache
