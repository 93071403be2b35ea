"""The task as the engine sees it: windows of ids, figures, and samples to read.

Letters: B batch, L length, N samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import exp, log
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.protocols import Picture, Split
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Field, TokenSpace

from .data.corpus import Corpus
from .data.token_store import Documents, TokenShards, Windows
from .data.tokenizers.base import Tokenizer
from .data.tokenizers.names import ADD_END, NO_END
from .metrics.baselines import LIMIT, distribution_baselines, strong_baselines, trivial_baselines
from .metrics.diversity import diversity_metrics
from .metrics.judge import FolderJudge
from .metrics.ngrams import WittenBell
from .metrics.perplexity import TextMetrics, after_end

__all__ = ["LanguageModelling"]

REFERENCE = 256
"""Windows of the validation split whose variety stands beside that of samples."""

CONTROLS = {code: 0xFFFD for code in (*range(32), 127) if chr(code) not in "\n\t"}


class LanguageModelling:
    """Windows of text.

    The documents of a split stand one after the other and are cut into windows of equal length; only the last window of
    a split may be shorter. With `documents = "separate"` each document begins a window, and the rest of its last window
    is padding; drawn samples are as long as windows of the training split are. Padding is the id that ends a text,
    or 0. With `documents = "ended"` that rest repeats the id that ends a text and is learned like all else, so that a
    model ends texts by itself; it counts as neither tokens nor characters, but its nats count.

    Args:
        corpus: The documents by split, or shards of their ids.
        tokenizer: How they become ids.
        length: Ids per window.
        documents: Whether windows run across the borders of documents.
        prompt: The beginning of every drawn sample.
        ngrams: Longest n-gram to compare with, at least 2; None for none.
        judge: Folder of a language model that judges samples; None for none.
    """

    def __init__(
        self,
        corpus: Corpus | TokenShards,
        tokenizer: Tokenizer,
        *,
        length: int,
        documents: Documents = "stream",
        prompt: str = "",
        ngrams: int | None = None,
        judge: str | None = None,
    ) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.length = length
        self.space = TokenSpace((Field("text", length, tokenizer.size, end=tokenizer.end),))
        self._order = ngrams
        self._judge = None if judge is None else FolderJudge(Path(judge))
        streams = corpus.encoded(tokenizer)
        self.ids = {split: stream.ids for split, stream in streams.items()}
        self._pad = tokenizer.end or 0
        self._windows = {split: Windows(made, length, documents, self._pad) for split, made in streams.items()}
        self._documents = documents
        if documents == "ended" and tokenizer.end is None:
            raise Refused(Problem(NO_END, path=("task", "documents"), help=ADD_END))
        for split in ("train", "valid"):
            if not len(self.ids[split]):
                raise Refused(f'{corpus.name}: the split "{split}" holds no text')
        if len(self.ids["train"]) < length and documents == "stream":
            given = len(self.ids["train"])
            what = f"{corpus.name}: the training text is {given} ids long, less than one window of {length}"
            raise Refused(Problem(what, path=("task", "length"), help="lower length, or give more text"))
        self.prompt = _prompt_ids(prompt, tokenizer, length)

    def size(self, split: Split) -> int:
        """Number of windows of a split."""
        return len(self._windows[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number.

        Raises:
            Refused: There is an id outside the vocabulary, in shards that were not verified.
        """
        x0, valid = self._windows[split].take(rows)
        if x0.size and x0.max() >= self.tokenizer.size:
            what = f"{split}: an id outside the vocabulary 0..{self.tokenizer.size - 1}: {x0.max()}"
            raise Refused(Problem(what, path=("task", "data"), help='verify = "once" tells which file is damaged'))
        return Clean.of(torch.from_numpy(x0), torch.from_numpy(valid))

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` empty windows that begin with the prompt; `seed` draws their lengths where documents have some."""
        x0 = torch.full((n, self.length), self._pad)
        known = torch.zeros(n, self.length, dtype=torch.bool)
        x0[:, : len(self.prompt)] = torch.from_numpy(self.prompt)
        known[:, : len(self.prompt)] = True
        if self._documents != "separate":
            return Clean.of(x0, known=known)
        rows = np.random.default_rng(seed).integers(self.size("train"), size=n)
        sizes = np.maximum(self._windows["train"].spans(rows)[1], len(self.prompt) + 1)
        return Clean.of(x0, torch.arange(self.length) < torch.from_numpy(sizes)[:, None], known=known)

    def metrics(self) -> TextMetrics:
        """Return a fresh accumulator of nats per token, bits per character and perplexity."""
        return TextMetrics(self.tokenizer, self.space, filled=self._documents == "ended")

    def baselines(self, split: Split = "valid") -> dict[str, float]:
        """Return uniform, unigram, and on request n-grams and xz; and the variety of real windows."""
        train, held = self.ids["train"], self.ids[split]
        found = trivial_baselines(train, held, self.tokenizer)
        if self._ngrams is not None:
            found |= strong_baselines(self._ngrams, train, held, self.tokenizer)
        if self.corpus.law is not None:
            cut = [held[start : start + self.length] for start in range(0, len(held), self.length)]
            found |= distribution_baselines(self.corpus.law, cut, self.tokenizer)
        windows = self.batch(split, range(min(REFERENCE, self.size(split))))
        return found | {f"{name}/real": value for name, value in self.sample_metrics(windows.x0, windows).items()}

    def sample_metrics(self, samples: Int[Tensor, "N L"], like: Clean) -> dict[str, float]:
        """Return how varied samples are and, as asked, how the longest n-gram and the judge in a folder like them.

        `ngram_bits_per_char` is low for text that resembles the training split, and lower still for text that repeats
        itself, as are all such figures: read them beside those of real text and beside `distinct_2`.
        """
        rows, valid = samples.cpu().numpy(), like.valid.cpu().numpy()
        if self._documents == "ended" and self.tokenizer.end is not None:
            valid = valid & ~after_end(samples.cpu(), self.tokenizer.end).numpy()
        figures = diversity_metrics(rows, valid)
        kept = self._texts(samples, like)
        if self._ngrams is not None and kept:
            nats = sum(self._ngrams.nats(row)[-1] for row in kept)
            characters = sum(self.tokenizer.characters(row) for row in kept)
            figures["ngram_bits_per_char"] = nats / log(2) / max(characters, 1)
            figures["ngram_perplexity"] = exp(nats / max(sum(map(len, kept)), 1))
        if self._judge is not None:
            figures |= self._judge.figures(self.tokenizer.decode(row) for row in kept)
        return figures

    @cached_property
    def _ngrams(self) -> WittenBell | None:
        if self._order is None:
            return None
        return WittenBell(self.ids["train"][-LIMIT:], size=self.tokenizer.size, order=self._order)

    def plots(self, samples: Int[Tensor, "N L"], like: Clean) -> Iterator[Picture]:
        """Yield each sample as text, up to its end; control characters become U+FFFD."""
        for number, row in enumerate(self._texts(samples, like)):
            yield Picture(f"sample-{number:03d}", text=self.tokenizer.decode(row).translate(CONTROLS))

    def _texts(self, samples: Int[Tensor, "N L"], like: Clean) -> list[Integer[np.ndarray, " l"]]:
        """Return the ids of each sample before the first that ends a text, without padding."""
        rows = [row[keep] for row, keep in zip(samples.cpu().numpy(), like.valid.cpu().numpy(), strict=True)]
        if self.tokenizer.end is None:
            return rows
        return [row[: np.argmax(np.append(row, self.tokenizer.end) == self.tokenizer.end)] for row in rows]


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
