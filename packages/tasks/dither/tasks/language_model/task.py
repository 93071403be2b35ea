"""The task as the engine sees it: windows of ids, figures, and samples to read.

Letters: B batch, L length, N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import log

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.parts import Picture, Split
from dither.registry.problems import Problem, Refused
from dither.registry.spaces import Field, TokenSpace

from .arrays import encode_documents
from .baselines import LIMIT, strong_baselines, trivial_baselines
from .corpora import Corpus
from .metrics import TextMetrics, sample_figures
from .ngrams import WittenBell
from .tokenizers import Tokenizer

__all__ = ["LanguageModelling"]

REFERENCE = 256
"""Windows of the validation split whose variety stands beside that of samples."""

CONTROLS = {code: 0xFFFD for code in (*range(32), 127) if chr(code) not in "\n\t"}


class LanguageModelling:
    """Windows of text.

    The documents of a split stand one after the other and are cut into windows of equal length; only the last window of
    a split may be shorter, with id 0 on its padding.

    Args:
        corpus: The documents by split.
        tokenizer: How they become ids.
        length: Ids per window.
        prompt: The beginning of every drawn sample.
        ngrams: Longest n-gram to compare with, at least 2; None for none.
    """

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, *, length: int, prompt: str = "", ngrams: int | None = None
    ) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.length = length
        self.space = TokenSpace((Field("text", length, tokenizer.size),))
        self._order = ngrams
        self.ids = {split: encode_documents(documents, tokenizer) for split, documents in corpus.splits.items()}
        for split in ("train", "valid"):
            if not len(self.ids[split]):
                raise Refused(f'{corpus.name}: the split "{split}" holds no text')
        if len(self.ids["train"]) < length:
            given = len(self.ids["train"])
            what = f"{corpus.name}: the training text is {given} ids long, less than one window of {length}"
            raise Refused(Problem(what, path=("task", "length"), help="lower length, or give more text"))
        self.prompt = _prompt_ids(prompt, tokenizer, length)

    def size(self, split: Split) -> int:
        """Number of windows of a split."""
        return -(-len(self.ids[split]) // self.length)

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number."""
        ids, numbers = self.ids[split], np.asarray(rows, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.size(split)):
            raise IndexError(f"windows of {split} are numbered 0..{self.size(split) - 1}, asked for {numbers.tolist()}")
        starts = numbers * self.length
        x0 = np.zeros((len(numbers), self.length), np.int64)
        valid = starts[:, None] + np.arange(self.length) < len(ids)
        for row, start in enumerate(starts):
            window = ids[start : start + self.length]
            x0[row, : len(window)] = window
        return Clean.of(torch.from_numpy(x0), torch.from_numpy(valid))

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` empty windows that begin with the prompt; nothing in them is random, so `seed` does not matter."""
        x0 = torch.zeros(n, self.length, dtype=torch.int64)
        known = torch.zeros(n, self.length, dtype=torch.bool)
        x0[:, : len(self.prompt)] = torch.from_numpy(self.prompt)
        known[:, : len(self.prompt)] = True
        return Clean.of(x0, known=known)

    def metrics(self) -> TextMetrics:
        """Return a fresh accumulator of nats per token, bits per character and perplexity."""
        return TextMetrics(self.tokenizer)

    def baselines(self) -> dict[str, float]:
        """Return uniform, unigram, and on request n-grams and xz; and the variety of real windows."""
        train, held = self.ids["train"], self.ids["valid"]
        found = trivial_baselines(train, held, self.tokenizer)
        if self._ngrams is not None:
            found |= strong_baselines(self._ngrams, train, held, self.tokenizer)
        windows = self.batch("valid", range(min(REFERENCE, self.size("valid"))))
        return found | {f"{name}/real": value for name, value in self.judge(windows.x0, windows).items()}

    def judge(self, samples: Int[Tensor, "N L"], like: Clean) -> dict[str, float]:
        """Return how varied samples are and, with `ngrams`, how the longest n-gram likes them.

        `ngram_bits_per_char` is low for text that resembles the training split, and lower still for text that repeats
        itself: read it beside the figure of real text and beside `distinct_2`.
        """
        rows, valid = samples.cpu().numpy(), like.valid.cpu().numpy()
        figures = sample_figures(rows, valid)
        if self._ngrams is not None:
            kept = [row[keep] for row, keep in zip(rows, valid, strict=True)]
            nats = sum(self._ngrams.nats(row)[-1] for row in kept)
            characters = sum(self.tokenizer.characters(row) for row in kept)
            figures["ngram_bits_per_char"] = nats / log(2) / max(characters, 1)
        return figures

    @cached_property
    def _ngrams(self) -> WittenBell | None:
        if self._order is None:
            return None
        return WittenBell(self.ids["train"][-LIMIT:], size=self.tokenizer.size, order=self._order)

    def show(self, samples: Int[Tensor, "N L"], like: Clean) -> Iterator[Picture]:
        """Yield each sample as text; control characters become U+FFFD."""
        for number, (row, keep) in enumerate(zip(samples.cpu().numpy(), like.valid.cpu().numpy(), strict=True)):
            yield Picture(f"sample-{number:03d}", text=self.tokenizer.decode(row[keep]).translate(CONTROLS))


def _prompt_ids(prompt: str, tokenizer: Tokenizer, length: int) -> Integer[np.ndarray, " K"]:
    ids = tokenizer.encode(prompt)
    if len(ids) >= length:
        what = f"the prompt is {len(ids)} ids long and leaves nothing to write in a window of {length}"
        raise Refused(Problem(what, path=("task", "prompt")))
    unknown = getattr(tokenizer, "unknown", None)
    if unknown is not None and (ids == unknown).any():
        strange = ", ".join(sorted({repr(letter) for letter, i in zip(prompt, ids, strict=True) if i == unknown}))
        raise Refused(Problem(f"the prompt holds {strange}, the training text does not", path=("task", "prompt")))
    return ids
