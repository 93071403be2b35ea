"""The toy distribution as a causal language model of transformers, for its `generate`.

Id 0 is the beginning of a text, so that ids are larger by one. Letters: B batch, L length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig
from transformers import PreTrainedModel as Base
from transformers.modeling_outputs import CausalLMOutput

from .sampler_report import Sample
from .toy_denoiser import IDS, LENGTH, ToyDenoiser

__all__ = ["causal_sample"]

BEGIN = 0


class _Config(PretrainedConfig):  # type: ignore[no-untyped-call]
    model_type = "dither-toy"
    vocab_size = IDS + 1


class _CausalModel(Base, GenerationMixin):  # type: ignore[no-untyped-call]
    """The exact p(next id | ids before)."""

    config_class = _Config

    def __init__(self, denoiser: ToyDenoiser) -> None:
        super().__init__(_Config())
        # transformers reads device and precision from a parameter.
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.denoiser = denoiser

    def forward(self, input_ids: Tensor, **options: Any) -> CausalLMOutput:
        before = input_ids[:, 1:] - 1
        count, length = before.shape
        masks = torch.full((count, LENGTH - length), IDS)
        log_clean = self.denoiser(torch.cat([before, masks], 1))
        logits = log_clean[:, length, None, :IDS]
        # The beginning does not occur again.
        return CausalLMOutput(
            logits=torch.nn.functional.pad(logits, (1, 0), value=-60.0)
        )


def causal_sample(options: dict[str, Any]) -> Sample:
    """Return `generate`, with these options, as a sampler of texts with a prompt at the beginning."""

    def sample(denoiser: ToyDenoiser, x: Tensor, known: Tensor, steps: int) -> Tensor:
        model = _CausalModel(denoiser)
        # Known tokens behind a gap are not seen by a causal model.
        prompt = int(known[0].long().cumprod(0).sum())
        begin = torch.full((len(x), 1), BEGIN)
        start = torch.cat([begin, x[:, :prompt] + 1], 1)
        ids = model.generate(
            start,
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                do_sample=True,
                max_new_tokens=LENGTH - prompt,
                min_new_tokens=LENGTH - prompt,
                use_cache=False,
                top_k=0,
                **options,
            ),
        )
        return torch.where(known, x, ids[:, 1:] - 1)

    return sample
