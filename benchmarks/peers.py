"""Work of other libraries that dither does, too, on networks of the same size.

- Diffusers' loop of `DDIMScheduler` calls dither's DiT-S/2, so that only the sampler differs.
- A training step of a masked language model: `Encoder` of x-transformers (RMSNorm, SwiGLU, RoPE,
  fused attention), which has no noise level, and the same layers in dither.
- The likelihood bound of masked diffusion as LLaDA's code writes it: one batch of draws of one text.
- The exact log-likelihood of texts in lm-evaluation-harness: its `HFLM` of a Llama of transformers
  with random weights, and dither's autoregressive model of the same layers.
- Texts drawn from these two models one character after the other, with a KV cache.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

import torch
from alternate import Step
from rivals import ROOT
from torch.nn.functional import cross_entropy

from dither.engine.config.load_experiment import load_experiment
from dither.engine.sampling.session import Session, draw
from dither.engine.training.device import keep_freed_memory
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.likelihood import log_likelihood_of
from dither.engine.training.trainer import Trainer
from dither.registry import FeatureSpace
from dither.registry.contracts.records import Clean, State

__all__ = ["PEERS"]

IMAGES = 2
SAMPLING_STEPS = 5
DRAWS = 16
TEXTS = 8
TEXT = [
    "task.data=stdlib-text",
    "task.length=256",
    "train.batch_size=8",
    "train.device=cpu",
    "train.optimizer.lr=1e-4",
    "model.width=256",
    "model.depth=6",
    "model.condition=none",
    "model.final=norm",
    "model.block=pre-norm",
    "model.block.heads=8",
    "model.block.norm=rms",
    "model.block.affine=true",
    "model.block.mlp=swiglu",
    "model.block.bias=false",
    "model.block.rope=true",
    "process.estimator=mask-count",
]
"""Changes of language_model/attention.toml."""


def _images() -> tuple[Diffusion, Clean]:
    """Return DiT-S/2 without labels under Gaussian noise, and a batch to sample like."""
    changes = [
        'process={ use = "gaussian", predict = "eps", schedule = "cosine" }',
        "model.condition=level",
        "model.width=384",
        "model.depth=12",
        "model.block.heads=6",
        "model.head=features",
        f"sampler={{ use = 'ddim', steps = {SAMPLING_STEPS} }}",
    ]
    path = ROOT / "images" / "digits.toml"
    experiment = load_experiment(path, changes, ["sample.guidance"]).experiment
    space = FeatureSpace(32 * 32, 4, grid=(32, 32))
    process: Any = experiment.process.build(space)
    torch.manual_seed(0)
    model = experiment.model.build(process.space)
    sampler: Any = experiment.sampler.build()
    none = cast(Any, None)
    system = Diffusion(none, process, model, none, sampler).eval()
    return system, Clean.of(torch.zeros(IMAGES, 32 * 32, 4))


def _ddim() -> Step:
    """Return dither's sampling."""
    keep_freed_memory()
    system, like = _images()

    @torch.no_grad()
    def sample() -> None:
        for _ in system.sampler(system.process, Session(system, like), like):
            pass

    return sample


def _diffusers_ddim() -> Step:
    """Return sampling as pipelines of diffusers write it."""
    import diffusers

    keep_freed_memory()
    system, like = _images()
    scheduler = diffusers.DDIMScheduler(
        beta_schedule="squaredcos_cap_v2",
        clip_sample=False,
        timestep_spacing="trailing",
    )

    @torch.no_grad()
    def sample() -> None:
        scheduler.set_timesteps(SAMPLING_STEPS)
        x = torch.randn(like.x0.shape)
        for t in scheduler.timesteps:
            level = t.float().expand(IMAGES)
            eps = system.model(State.of(x), level, like.valid, {})
            x = scheduler.step(eps, t, x).prev_sample

    return sample


def _text() -> Trainer:
    path = ROOT / "language_model" / "attention.toml"
    experiment = load_experiment(path, TEXT).experiment
    return Trainer(Diffusion.build(experiment).train(), experiment.train, 0)


def _masked_lm() -> Step:
    """Return dither's training step."""
    keep_freed_memory()
    return _text().advance


def _x_transformers() -> Step:
    """Return the training step of an encoder of x-transformers on the same batches."""
    from x_transformers import Encoder, TransformerWrapper

    keep_freed_memory()
    trainer = _text()
    space: Any = trainer.system.process.space
    vocabulary = space.vocab
    encoder = Encoder(
        dim=256,
        depth=6,
        heads=8,
        attn_dim_head=32,
        rotary_pos_emb=True,
        use_rmsnorm=True,
        attn_flash=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
    )
    model = TransformerWrapper(
        num_tokens=vocabulary,
        max_seq_len=256,
        use_abs_pos_emb=False,
        attn_layers=encoder,
    )
    sizes = [
        sum(p.numel() for p in net.parameters()) for net in (model, trainer.system)
    ]
    if abs(sizes[0] / sizes[1] - 1) > 0.01:
        raise AssertionError(f"parameters: {sizes[0]:,} and {sizes[1]:,}")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    step = iter(range(10**9))
    mask = space.fields[0].mask

    def advance() -> None:
        clean = trainer.batches.read(next(step))
        length = clean.x0.shape[1]
        count = torch.randint(1, length + 1, (len(clean.x0), 1))
        hidden = torch.rand(clean.x0.shape).argsort(1).argsort(1) < count
        logits = model(clean.x0.masked_fill(hidden, mask))
        losses = cross_entropy(logits.mT, clean.x0, reduction="none")
        loss = (losses * hidden / count * length).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return advance


def _likelihood() -> Step:
    """Return dither's bound of one text."""
    system: Any = _text().system.eval()
    clean = system.task.batch("valid", [0])
    return lambda: log_likelihood_of(system, clean, DRAWS, batch_size=DRAWS)


def _llada_likelihood() -> Step:
    """Return the bound of one text with the same model, as LLaDA's get_log_likelihood computes it."""
    system: Any = _text().system.eval()
    clean = system.task.batch("valid", [0])
    x0 = clean.x0.expand(DRAWS, -1)
    length = x0.shape[1]
    mask = system.process.space.fields[0].mask
    valid = torch.ones(x0.shape, dtype=torch.bool)

    @torch.no_grad()
    def bound() -> float:
        count = torch.randint(1, length + 1, (DRAWS, 1))
        hidden = torch.rand(x0.shape).argsort(1).argsort(1) < count
        state = State.of(x0.masked_fill(hidden, mask))
        logits = system.model(state, torch.zeros(DRAWS), valid, {})
        losses = cross_entropy(logits[hidden], x0[hidden], reduction="none")
        weights = (length / count).expand(x0.shape)[hidden]
        return float((losses * weights).sum() / DRAWS)

    return bound


def _causal() -> Diffusion:
    """Return an autoregressive model of characters with the layers of Llama."""
    path = ROOT / "language_model" / "autoregressive.toml"
    return Diffusion.build(load_experiment(path, TEXT).experiment).eval()


def _llama(system: Diffusion) -> Any:
    """Return a Llama of transformers with the layers of an autoregressive model of characters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=1024,
        vocab_size=cast(Any, system.process.space).vocab,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).eval()
    nets = (model, system)
    sizes = [sum(p.numel() for p in net.parameters()) for net in nets]
    if abs(sizes[0] / sizes[1] - 1) > 0.01:
        raise AssertionError(f"parameters: {sizes[0]:,} and {sizes[1]:,}")
    return model


def _generate() -> Step:
    """Return the drawing of texts from dither's autoregressive model."""
    keep_freed_memory()
    system = _causal()
    like = cast(Any, system.task).like(TEXTS, seed=0)
    return lambda: draw(system, like, seed=0)


def _generate_hf() -> Step:
    """Return the drawing of as many characters from transformers' Llama, with its KV cache."""
    keep_freed_memory()
    system = _causal()
    model = _llama(system)
    length = system.process.space.length
    # The id before the first character
    start = torch.zeros(TEXTS, 1, dtype=torch.long)

    @torch.no_grad()
    def generate() -> None:
        model.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=True,
            top_k=0,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
            eos_token_id=None,
        )

    return generate


def _requests(task: Any) -> list[Any]:
    """Return validation texts, one window each, as requests of the harness."""
    from lm_eval.api.instance import Instance

    texts = task.batch("valid", range(TEXTS)).x0
    return [
        Instance("loglikelihood_rolling", {}, (task.text(ids.tolist()),), number)
        for number, ids in enumerate(texts)
    ]


def _harness() -> Step:
    """Return the log-likelihood of texts by dither's model of the harness."""
    from dither.engine.runs.system import SystemModel
    from dither.tasks.language_model.lm_eval import HarnessModel

    keep_freed_memory()
    system = _causal()
    model = HarnessModel(SystemModel(system))
    requests = _requests(system.task)
    return lambda: model.loglikelihood_rolling(requests)


def _harness_hf() -> Step:
    """Return the log-likelihood of the same texts by the harness's own model of transformers."""
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    keep_freed_memory()
    system = _causal()
    requests = _requests(system.task)
    characters = sorted(set("".join(request.args[0] for request in requests)))
    ids = {character: number for number, character in enumerate(["<end>", *characters])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<end>"))
    # One id a character, line ends included.
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<end>"
    )
    harness = HFLM(_llama(system), tokenizer=wrapped, batch_size=TEXTS, device="cpu")
    return lambda: harness.loglikelihood_rolling(requests, disable_tqdm=True)


PEERS = {
    "DDIM of DiT-S/2, diffusers": (_diffusers_ddim, _ddim),
    "bound of a text, as LLaDA": (_llada_likelihood, _likelihood),
}
"""Steps of the rival and of dither."""
if find_spec("x_transformers"):
    PEERS["masked LM step, x-transformers"] = (_x_transformers, _masked_lm)
if find_spec("lm_eval"):
    PEERS["log-likelihood of texts, lm-eval"] = (_harness_hf, _harness)
if find_spec("transformers"):
    PEERS["autoregressive texts, transformers"] = (_generate_hf, _generate)
