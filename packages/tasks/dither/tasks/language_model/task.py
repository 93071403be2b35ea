"""The language modelling task: windows of ids, metrics, and samples as text.

Letters: B batch, L length, N samples.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain
from math import exp, log
from pathlib import Path
from typing import Self

import numpy as np
import torch
from jaxtyping import Int, Int64
from numpy import ndarray
from torch import Tensor

from dither.registry.config.errors import Refused
from dither.registry.contracts.protocols import Picture, Split, Task
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import Field, TokenSpace

from ..infilling import MASK, with_known
from .data.chat import Piece, encode_piece
from .data.corpus import Corpus
from .data.mixture import MixedStream, MixedText, MixedWindows
from .data.pairs import Example, ExampleIds, Long, encode_examples
from .data.specs import ShardFolder, text_conditions
from .data.text_files import NotText, check_encodable
from .data.token_store import (
    Documents,
    EncodedPart,
    SplitWriter,
    TokenStore,
    TokenStream,
    Windows,
    encode_corpus,
)
from .data.tokenizers import ADD_END, NO_END
from .data.tokenizers.base import Ids, Tokenizer
from .data.tokenizers.factory import save_tokenizer
from .metrics.baselines import (
    LIMIT,
    WittenBell,
    check_vocabulary,
    distribution_baselines,
    diversity_metrics,
    strong_baselines,
    trivial_baselines,
)
from .metrics.frontier import frontier_plot, mauve, pair_features
from .metrics.judge import FolderJudge
from .metrics.perplexity import TextMetrics, after_end

__all__ = ["LanguageModelling", "TextTemplates"]

logger = logging.getLogger(__name__)

_Samples = Int[Tensor, "N L"]

REFERENCE = 256
"""Windows of the validation split whose diversity is reported next to that of samples."""

CONTROLS = {code: 0xFFFD for code in (*range(32), 127) if chr(code) not in "\n\t"}
"""Control characters, which could move the cursor of a terminal."""


class TextTemplates:
    """Prompts, gaps to fill in, and samples as text: everything that needs no data.

    Args:
        tokenizer: The tokenizer.
        length: Ids per window.
        prompt: Beginning of every sample.
        space: The space of a window.
        chat: Renders a prompt by a chat template; None for none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        prompt: str,
        space: TokenSpace,
        chat: Callable[[str], Piece] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.length = length
        self.space = space
        self._chat = chat
        # Any id would do: padding is neither attended to nor predicted.
        self._pad = tokenizer.end or 0
        self.prompt = self._prompt_ids(prompt)

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` empty windows that begin with the prompt."""
        x0 = torch.full((n, self.length), self._pad)
        known = torch.zeros(n, self.length, dtype=torch.bool)
        x0[:, : len(self.prompt)] = torch.from_numpy(self.prompt)
        known[:, : len(self.prompt)] = True
        return Clean.of(x0, known=known)

    def prompted(self, prompt: str, n: int, seed: int) -> Clean:
        """Return `n` windows that begin with a prompt, in place of that of the experiment."""
        gap = MASK.search(prompt)
        if gap is not None:
            logger.warning('"%s" is text of the prompt; gaps are for infill', gap[0])
        # A shallow copy, which shares the corpus.
        task = copy(self)
        task.prompt = self._prompt_ids(prompt)
        return task.like(n, seed)

    def with_length(self, length: int) -> Self:
        """Return the same with windows of another length."""
        task = copy(self)
        task.length = length
        field = replace(self.space.fields[0], length=length)
        task.space = replace(self.space, fields=(field,))
        task._require_room(self.prompt)
        return task

    def _prompt_ids(self, prompt: str) -> Ids:
        """Return the ids of a prompt, rendered by the chat template."""
        piece = Piece(prompt)
        if prompt and self._chat is not None:
            piece = self._chat(prompt)
        ids = _known_ids(
            piece,
            tokenizer=self.tokenizer,
            what="the prompt",
            path=("task", "prompt"),
        )
        self._require_room(ids)
        return ids

    def _require_room(self, prompt: Ids) -> None:
        """Refuse a prompt that leaves nothing to draw."""
        if len(prompt) >= self.length:
            message = (
                f"the prompt has {len(prompt)} ids and fills a window of {self.length}"
            )
            raise Refused(message, path=("task", "prompt"), code="misfit")

    def infill(self, text: str, n: int, seed: int) -> Clean:
        """Return `n` windows with the known ids of a text, and K free ids at each `[MASK:K]`.

        Ids after the text are drawn, too. Refused if the text is longer than a window, or has
        unknown characters.
        """

        def encode(text: str) -> Ids:
            return _known_ids(Piece(text), self.tokenizer, what="the text")

        return with_known(self.like(n, seed), text, encode)

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a text; unknown characters are a warning, as they make scores better."""
        ids = self.tokenizer.encode(text)
        count = np.count_nonzero(ids == self.tokenizer.unknown)
        if count:
            logger.warning("%d of %d ids are unknown to the tokenizer", count, len(ids))
        return [int(number) for number in ids]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.tokenizer.decode(np.asarray(ids, np.int64))

    def decode(self, samples: _Samples, like: Clean) -> list[str]:
        """Return each sample as text, up to its end."""
        return [self.tokenizer.decode(row) for row in self._texts(samples, like)]

    def sample_metrics(self, samples: _Samples, like: Clean) -> dict[str, float]:
        """Return the diversity of samples."""
        return diversity_metrics(samples.cpu().numpy(), like.valid.cpu().numpy())

    def plots(self, samples: _Samples, like: Clean) -> Iterator[Picture]:
        """Yield each sample as text, up to its end; control characters become U+FFFD."""
        for number, row in enumerate(self._texts(samples, like)):
            text = self.tokenizer.decode(row).translate(CONTROLS)
            yield Picture(f"sample-{number:03d}", text=text)

    def _texts(self, samples: _Samples, like: Clean) -> list[Ids]:
        """Return the ids of each sample up to its first end-of-text id that is not known, without padding."""
        end = self.tokenizer.end
        texts = []
        rows = samples.cpu().numpy()
        masks = (like.valid.cpu().numpy(), like.known.cpu().numpy())
        for row, valid, known in zip(rows, *masks, strict=True):
            ids = row[valid]
            # Ends in a prompt are those of earlier messages.
            ends = np.flatnonzero((ids == end) & ~known[valid])
            if end is not None and len(ends):
                ids = ids[: ends[0]]
            texts.append(ids)
        return texts


class LanguageModelling(TextTemplates, Task):
    """Windows of text.

    The documents of a split are joined and cut into windows of equal length; only the last window
    of a split may be shorter. With `documents = "separate"` each document begins a window, the rest
    of its last window is padding (the end-of-text id, or 0), and samples are as long as windows of
    the training split. With `documents = "ended"` that rest repeats the end-of-text id and is
    learned like everything else, so that a model ends texts by itself; it counts neither as tokens
    nor as characters, but its nats count.

    Args:
        corpus: Documents by split, or token ids.
        tokenizer: The tokenizer.
        length: Ids per window.
        documents: "stream", "separate", "ended" or "packed".
        prompt: Beginning of every sample.
        ngrams: Longest n-gram of the baselines, at least 2; None for none.
        judge: Folder of a language model that scores samples; None for none.
        labels: Names of the labels of documents, the condition "label".
        sources: Names of the sources of a mixture, the condition "source".
        weights: Whole numbers, the shares of the sources in training.
        long: Treatment of prompts with responses longer than a window.
        chat: Renders a prompt by a chat template; None for none.
    """

    space: TokenSpace

    def __init__(
        self,
        corpus: Corpus | TokenStore | MixedText,
        tokenizer: Tokenizer,
        *,
        length: int,
        documents: Documents = "stream",
        prompt: str = "",
        ngrams: int | None = None,
        judge: str | None = None,
        labels: Sequence[str] = (),
        sources: Sequence[str] = (),
        weights: Sequence[int] = (),
        long: Long = "truncate",
        chat: Callable[[str], Piece] | None = None,
    ) -> None:
        self._examples: Mapping[Split, ExampleIds] = {}
        self._long: Mapping[Split, int] = {}
        self._sources = tuple(sources)
        self._weights = tuple(weights)
        if isinstance(corpus, TokenStore):
            self.corpus = corpus
        elif isinstance(corpus, MixedText):
            self.corpus = corpus.encode(tokenizer)
        # All documents of a source are of one kind.
        elif isinstance(corpus.splits["train"][0], Example):
            self.corpus, self._examples, self._long = encode_examples(
                corpus, tokenizer, labels, length=length, long=long
            )
        else:
            self.corpus = encode_corpus(corpus, tokenizer)
        field = Field("text", length, tokenizer.size, end=tokenizer.end)
        super().__init__(
            tokenizer,
            length,
            prompt,
            TokenSpace((field,), text_conditions(documents, labels, sources)),
            chat,
        )
        self._order = ngrams
        self._judge: FolderJudge | None = None
        if judge is not None:
            self._judge = FolderJudge(Path(judge))
        streams = self.corpus.splits
        self.ids = {split: stream.ids for split, stream in streams.items()}
        self._documents = documents
        self._windows = {
            split: self._windows_of(stream) for split, stream in streams.items()
        }
        if documents == "ended" and tokenizer.end is None:
            raise Refused(
                NO_END, path=("task", "documents"), help=ADD_END, code="misfit"
            )
        self._require_text(corpus.name)

    def _require_text(self, name: str) -> None:
        """Refuse an empty split, and a source of training text that does not fill a window."""
        for split in ("train", "valid"):
            if not len(self.ids[split]):
                message = f'{name}: the split "{split}" is empty'
                raise Refused(message, code="no-samples")

        train = self.corpus.splits["train"]
        parts = train.parts if isinstance(train, MixedStream) else (train,)
        for source, part in zip(self._sources or (name,), parts, strict=True):
            if not len(part.ids):
                message = f'{source}: the split "train" is empty'
                raise Refused(message, code="no-samples")
            # Only windows of a stream must be full.
            if self._documents == "stream" and len(part.ids) < self.length:
                size = f"{len(part.ids)} ids, less than one window of {self.length}"
                message = f"{source}: the training text has {size}"
                fix = "lower length, or give more text"
                path = ("task", "length")
                raise Refused(message, path=path, help=fix, code="no-samples")

    def size(self, split: Split) -> int:
        return len(self._windows[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number.

        Raises:
            Refused: There is an id outside the vocabulary, in files that were not verified.
        """
        x0, valid = self._windows[split].take(rows)
        # An embedding would fail without the place, on a GPU for good.
        check_vocabulary(x0, self.tokenizer.size)
        clean = Clean.of(torch.from_numpy(x0), torch.from_numpy(valid))
        if self._sources:
            cond = {"source": torch.from_numpy(self._source(split, rows))}
            clean = replace(clean, cond=cond)
        if not self._examples and self._documents != "packed":
            return clean

        document = torch.from_numpy(self._windows[split].documents(rows))
        cond = dict(clean.cond)
        if self._documents == "packed":
            cond["document"] = document
        examples = self._examples.get(split)
        if examples is None:
            return replace(clean, cond=cond)

        # Prompts are known, and the loss is on responses.
        if self._has_labels:
            cond["label"] = torch.from_numpy(examples.labels)[document[:, 0]]
        known = self._windows[split].mask(examples.known, rows)
        return replace(clean, known=torch.from_numpy(known), cond=cond)

    def _source(
        self, split: Split, rows: Sequence[int] | Int64[ndarray, " B"]
    ) -> Int64[ndarray, " B"]:
        """Return the sources of windows; -1 for those of other text than that of the mixture."""
        windows = self._windows[split]
        if isinstance(windows, MixedWindows):
            return windows.sources(rows)
        return np.full(len(rows), -1)

    def mixture(self) -> Sequence[tuple[int, int]] | None:
        windows = self._windows["train"]
        if not isinstance(windows, MixedWindows):
            return None
        return [*zip(windows.sizes, self._weights, strict=True)]

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` empty windows that begin with the prompt.

        `seed` draws training windows, those of a mixture by its weights. Templates have their labels
        and sources, and if documents are separate also their lengths.
        """
        clean = super().like(n, seed)
        generator = np.random.default_rng(seed)
        mixture = self.mixture()
        if mixture is None:
            rows = generator.integers(self.size("train"), size=n)
        else:
            # As in training: a source by its weight, then one of its windows.
            sizes, weights = np.array(mixture).T
            drawn = generator.choice(len(sizes), size=n, p=weights / weights.sum())
            firsts = np.cumsum(sizes) - sizes
            rows = firsts[drawn] + generator.integers(sizes[drawn])
        if self._sources:
            source = torch.from_numpy(self._source("train", rows))
            clean = replace(clean, cond={"source": source})
        if self._has_labels:
            label = self.batch("train", rows.tolist()).cond["label"]
            clean = replace(clean, cond={**clean.cond, "label": label})
        if self._documents == "separate":
            _, sizes = self._windows["train"].spans(rows)
            # At least one id after the prompt.
            sizes = np.maximum(sizes, len(self.prompt) + 1)
            valid = torch.arange(self.length) < torch.from_numpy(sizes)[:, None]
            clean = replace(clean, valid=valid)
        return clean

    @property
    def _has_labels(self) -> bool:
        return "label" in (condition.name for condition in self.space.conditions)

    def data_warnings(self) -> Iterator[str]:
        """Yield how many examples are too long, and how many held-out ids unknown characters."""
        for split, count in self._long.items():
            if count:
                kept = len(self.corpus.splits[split].starts)
                yield (
                    f"{count:,} examples of the {split} split are longer than a window of "
                    f"{self.length} and cut or skipped; {kept:,} are used"
                )
        unknown = self.tokenizer.unknown
        if unknown is None:
            return
        for split in ("valid", "test"):
            ids = self.ids[split]
            counts = self.corpus.splits[split].count(self.tokenizer.size)
            count = int(counts[unknown])
            if count:
                yield (
                    f"{count:,} of {len(ids):,} ids of the {split} split are unknown to the "
                    "tokenizer, and metrics count them like one character"
                )

    def with_length(self, length: int) -> Self:
        """Return the same task with windows of another length."""
        task = super().with_length(length)
        streams = self.corpus.splits.items()
        task._windows = {split: task._windows_of(stream) for split, stream in streams}
        return task

    def _windows_of(self, stream: TokenStream) -> Windows:
        if isinstance(stream, MixedStream):
            return MixedWindows(stream, self.length, self._documents, self._pad)
        return Windows(stream, self.length, self._documents, self._pad)

    def save_assets(self, folder: Path) -> None:
        """Write the tokenizer, with which an export without data makes texts of ids."""
        save_tokenizer(self.tokenizer, folder)

    def over_texts(self, texts: Sequence[str]) -> LanguageModelling:
        """Return the task with other documents as its validation split."""
        writer = SplitWriter(self.tokenizer)
        for text in texts:
            ids = self.tokenizer.encode(text)
            # A writer has one split, so its number does not matter.
            writer.add(EncodedPart(0, ids, len(text), begins=True, ends=True))
        return self._over(writer.stream())

    def over_store(self, folder: str, split: Split) -> LanguageModelling:
        """Return the task with a split of prepared token ids, perhaps at an address, for validation.

        Raises:
            Refused: The ids are those of another tokenizer.
        """
        store = ShardFolder(path=folder).open(self.tokenizer)
        return self._over(store.splits[split])

    def _over(self, stream: TokenStream) -> LanguageModelling:
        task = copy(self)
        # Prompts of the data are not those of other text.
        task._examples = {
            split: ids for split, ids in self._examples.items() if split != "valid"
        }
        task._long = {}
        task.corpus = replace(
            self.corpus,
            splits={**self.corpus.splits, "valid": stream},
            # Other text does not follow the distribution of the corpus.
            distribution=None,
        )
        task.ids = {**self.ids, "valid": stream.ids}
        task._windows = {**self._windows, "valid": self._windows_of(stream)}
        return task

    def unit_counts(self, clean: Clean) -> dict[str, list[int]]:
        """Return predicted tokens, and the characters and bytes that they decode to."""
        return self.metrics().unit_counts(clean)

    def metrics(self) -> TextMetrics:
        """Return an accumulator of nats per token, bits per character and perplexity."""
        return TextMetrics(
            self.tokenizer,
            self.space,
            filled=self._documents == "ended",
            sources=self._sources,
        )

    def baselines(
        self, split: Split = "valid", samples: int | None = None
    ) -> dict[str, float]:
        """Return uniform and unigram, on request n-grams and xz, and the diversity of real windows.

        They are computed on the first `samples` windows, by default all. Like a model, n-grams see
        the ids before in the same window; only xz sees all text before.
        """
        count = min(samples or self.size(split), self.size(split))
        windows = self._windows[split].ids(count)
        # There may be no window. The smallest type does not widen that of the ids.
        text = np.concatenate([np.zeros(0, np.uint8), *windows])
        counts = self.corpus.splits["train"].count(self.tokenizer.size)
        metrics = trivial_baselines(counts, text, self.tokenizer)
        if self._ngrams is not None:
            starts = np.cumsum([0, *map(len, windows)])[:-1]
            metrics |= strong_baselines(
                ngrams=self._ngrams,
                train=self.ids["train"][-LIMIT:],
                text=text,
                tokenizer=self.tokenizer,
                starts=starts,
            )
        if self.corpus.distribution is not None:
            metrics |= distribution_baselines(
                self.corpus.distribution, windows, self.tokenizer
            )
        real = self.batch(split, range(min(REFERENCE, self.size(split))))
        for name, value in self.sample_metrics(real.x0, real).items():
            metrics[f"{name}/real"] = value
        return metrics

    def sample_metrics(self, samples: _Samples, like: Clean) -> dict[str, float]:
        """Return the diversity of samples, and on request scores of n-grams and of the judge.

        `ngram_bits_per_char` is low for text like the training split, and lower still for
        repetitive text, as are all such metrics: compare them with those of real text, and read
        them with `distinct_2`.
        """
        valid = like.valid.cpu()
        if self._documents == "ended" and self.tokenizer.end is not None:
            ended = after_end(samples.cpu(), self.tokenizer.end, like.known.cpu())
            valid = valid & ~ended
        metrics = diversity_metrics(samples.cpu().numpy(), valid.numpy())
        texts = self._texts(samples, like)
        if self._ngrams is not None and texts:
            nats = 0.0
            characters = 0
            tokens = 0
            for ids in texts:
                nats += self._ngrams.nats(ids)[-1]
                characters += self.tokenizer.characters(ids)
                tokens += len(ids)
            # An empty text has neither.
            metrics["ngram_bits_per_char"] = nats / log(2) / max(characters, 1)
            metrics["ngram_perplexity"] = exp(nats / max(tokens, 1))
        if self._judge is not None:
            metrics |= self._judge.metrics(self.tokenizer.decode(ids) for ids in texts)
        return metrics

    def frontier(
        self,
        draws: Iterable[tuple[Mapping[str, float], Tensor, Clean, Mapping[str, float]]],
        count: int,
    ) -> tuple[list[dict[str, float]], Picture]:
        """Return metrics of real windows and of each draw, with their distance from other windows.

        The distance, `mauve`, is from real windows between those that are the first row.
        """
        if self._judge is None and self._order is None:
            message = "a frontier requires the perplexity of samples"
            fix = "set task.ngrams or task.judge"
            raise Refused(message, ("task", "ngrams"), help=fix, code="misfit")
        size = self.size("valid")
        if size < 2 * count:
            message = (
                f"{2 * count} windows of validation are compared, but there are {size}"
            )
            raise Refused(message, ("evaluate", "samples"), code="no-samples")

        numbers = np.linspace(0, size - 1, 2 * count).astype(np.int64)
        # Alternating, so that both sets are from all parts of the split.
        reference = self.batch("valid", numbers[0::2].tolist())
        real = self.batch("valid", numbers[1::2].tolist())
        features = pair_features(self._texts(reference.x0, reference))
        rows: list[dict[str, float]] = []
        options: Mapping[str, float] = {}
        first = (options, real.x0, real, self.sample_metrics(real.x0, real))
        for options, samples, like, metrics in chain([first], draws):
            distance = mauve(pair_features(self._texts(samples, like)), features)
            rows.append({**options, **metrics, "mauve": distance})
        judge = "ngram_perplexity" if self._judge is None else "judge_perplexity"
        return rows, frontier_plot(rows, list(options), judge)

    @cached_property
    def _ngrams(self) -> WittenBell | None:
        if self._order is None:
            return None
        return WittenBell(
            self.ids["train"][-LIMIT:], size=self.tokenizer.size, order=self._order
        )


def _known_ids(
    piece: Piece, tokenizer: Tokenizer, what: str, path: tuple[str, ...] = ()
) -> Ids:
    """Return the ids of a text; Refused if one is that of unknown characters."""
    text = piece.text
    try:
        check_encodable(text)
        ids = encode_piece(piece, tokenizer)
    except NotText as error:
        message = f"{what} cannot be encoded: {error.message}"
        raise Refused(message, path=path, code="invalid-value") from None
    if tokenizer.unknown is not None and tokenizer.unknown in ids:
        letters = "words that the tokenizer lacks"
        # Tokenizers by character have an id for each.
        if len(ids) == len(text):
            unknown = np.flatnonzero(ids == tokenizer.unknown).tolist()
            letters = ", ".join(sorted({repr(text[place]) for place in unknown}))
        message = f"{what} contains {letters}, which the training text does not"
        raise Refused(message, path=path, code="unknown-value")
    return ids
