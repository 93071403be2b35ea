"""Nats per token, bits per character, perplexity and accuracy.

Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan, log
from typing import Any

import torch
from jaxtyping import Bool, Int, Integer
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.protocols import Metrics, RatioSums
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import TokenSpace

from ...token_metrics import Accuracy, NatSums
from ..data.tokenizers.base import Tokenizer

__all__ = ["TextMetrics", "after_end"]

_Mask = Bool[Tensor, "B L"]


def after_end(x: Int[Tensor, "B L"], end: int, known: _Mask) -> _Mask:
    """Return the positions after the first end-of-text id that is not known."""
    ends = (x == end) & ~known
    return ends.cumsum(1) > ends


def repeated_end(x: Int[Tensor, "B L"], end: int) -> _Mask:
    """Return the fill of windows: end-of-text ids up to the end of a window, except the first."""
    # From the right: the run of ends that reaches the end of the window.
    run = (x == end).flip(1).cumprod(1).flip(1)
    return run.cumsum(1) > 1


class TextMetrics(Metrics):
    """Nats per token, bits per character and perplexity of a split, and accuracy by noise level.

    The loss is weighted by its own weights; if it is a NELBO, these are upper bounds of the true
    values, and `nats_per_token_prior` and `nats_per_token_reconstruction` are the two end terms of
    the bound. Characters are those that the predicted ids decode to, so that metrics of different
    tokenizers are comparable; `unknown_tokens` counts the ids of unknown characters, whose metrics
    are too good, as a model need not distinguish them. With `filled`, repeated end-of-text ids only fill
    the window: their nats count, they do not. `nats_per_token_of_NAME` is that of the windows of
    each of the `sources`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        space: TokenSpace,
        *,
        filled: bool = False,
        sources: Sequence[str] = (),
    ) -> None:
        self._of_sources = {name: NatSums() for name in sources}
        self._tokenizer = tokenizer
        self._end = tokenizer.end if filled else None
        self._unknown = 0
        self._tokens = 0
        self._characters = 0
        self._nats = NatSums()
        self._accuracy = Accuracy(space)

    def update(
        self,
        clean: Clean,
        noised: Noised,
        pred: Any,
        measured: Measured,
    ) -> None:
        counted = self._counted(clean)
        self._nats.update(measured, counted)
        for number, nats in enumerate(self._of_sources.values()):
            rows = clean.cond["source"] == number
            part = Measured(measured.values[rows], measured.weights[rows])
            nats.update(part, counted[rows])
        ids = _marked_ids(clean, counted)
        ids = ids[ids >= 0]
        self._tokens += len(ids)
        if self._tokenizer.unknown is not None:
            self._unknown += int((ids == self._tokenizer.unknown).sum())
        self._characters += self._tokenizer.characters(ids)
        if pred is not None:
            noised = replace(noised, target_mask=noised.target_mask & counted)
            self._accuracy.update(noised, pred)

    def per_sample(self, clean: Clean, measured: Measured) -> dict[str, RatioSums]:
        """Return nats and tokens of each window, and bits and characters if weights are equal."""
        counted = self._counted(clean)
        weights = measured.weights.double()
        nats = (measured.values.double() * weights).sum(1)
        tokens = (weights * counted).sum(1)
        sums: dict[str, RatioSums] = {"nats_per_token": (nats, tokens)}
        if not self._accuracy.unweighted(clean, measured):
            return sums

        # Characters belong to ids, not to weights.
        characters = []
        for ids in _marked_ids(clean, counted):
            characters.append(self._tokenizer.characters(ids[ids >= 0]))
        counts = torch.tensor(characters, dtype=nats.dtype)
        counts = counts.to(nats.device, non_blocking=True)
        sums["bits_per_char"] = (nats / log(2), counts)
        return sums

    def unit_counts(self, clean: Clean) -> dict[str, list[int]]:
        """Return predicted tokens, characters and bytes of each window."""
        texts = [ids[ids >= 0] for ids in _marked_ids(clean, self._counted(clean))]
        unknown = self._tokenizer.unknown
        units = {
            "token": [len(ids) for ids in texts],
            "character": [self._tokenizer.characters(ids) for ids in texts],
            "byte": [self._tokenizer.bytes(ids) for ids in texts],
        }
        if unknown is not None:
            units["unknown token"] = [int((ids == unknown).sum()) for ids in texts]
        return units

    def _counted(self, clean: Clean) -> _Mask:
        counted = ~clean.fixed
        if self._end is not None:
            counted &= ~repeated_end(clean.x0, self._end)
        return counted

    def compute(self) -> dict[str, float]:
        """Return the metrics; NaN if nothing was predicted."""
        values = self._nats.compute("nats_per_token")
        bits = values["nats_per_token"] * self._tokens / log(2)
        # Without characters NaN, not an error: a split may be empty.
        values["bits_per_char"] = bits / (self._characters or float("nan"))
        if self._tokenizer.unknown is not None:
            values["unknown_tokens"] = float(self._unknown)
        for name, nats in self._of_sources.items():
            of_source = nats.compute("nats_per_token")["nats_per_token"]
            # Other text than that of the mixture has no source.
            if not isnan(of_source):
                values[f"nats_per_token_of_{name}"] = of_source
        return values | self._accuracy.compute()


def _marked_ids(clean: Clean, counted: _Mask) -> Integer[ndarray, "B L"]:
    """Return ids on the CPU, -1 where they do not count."""
    # In one copy: a boolean index would wait for the device once more, to learn its size.
    return torch.where(counted, clean.x0, -1).cpu().numpy()
